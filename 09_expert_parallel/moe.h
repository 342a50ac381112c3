// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in place of a block's MLP (Shazeer et al., 2017; Fedus et al., 2021), on one rank, forward and
// backward by hand. Each token is processed by K of the J experts, so the model has many more parameters than one token
// uses.
//
//   x ─ router ─ permute ─┬─ expert 0 ───┬─ combine ─ y
//     [tokens, E]         ├─ expert 1 ───┤
//                         └─ expert J-1 ─┘
//                         rows of x, sorted by expert
//
// How many tokens an expert gets is known only when the router has run, on the device. The host needs these numbers for
// the sizes of the matrix products, so it waits for the device in every block.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/transformer.h"
#include "09_expert_parallel/experts.h"
#include "09_expert_parallel/router.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Copies each token's row of x[tokens, width] to permuted[rows, width], once for each expert that it has chosen. Writes
// the row number of each copy to row_of[tokens, K], or -1 for a choice without a place. places[tokens, K] comes from
// take_places(), and starts[] from Experts::lay_out(). A sequence has `positions` tokens. A warp copies a row.
static __global__ void permute(Reals permuted, int* row_of, ConstReals x, const int* places, const int* chosen,
                               const int* starts, int tokens, int positions, int K, int width) {
  const int sequences = tokens / positions;
  for (int choice : warp_stride(tokens * K)) {
    const int token = choice / K, place = places[choice];
    // TODO 09.5: Compute the number of the row, and copy the token there.
    //   The rows of sequence s at expert e begin at starts[e * sequences + s]; places[choice] counts from there, and is
    //   -1 if there is no row. Write row_of[choice] exactly once, even if there is no row: all lanes write the same
    //   number. Copy in a loop `for (int j : lanes(width))`.
    todo("09.5");
    // END TODO 09.5
  }
}

// Computes y[tokens, width], the weighted sum of the outputs of each token's experts. The lanes of a warp share a
// token.
static __global__ void combine(Reals y, ConstReals outputs, const int* row_of, const float* weights, int tokens, int K,
                               int width) {
  for (int token : warp_stride(tokens)) {
    for (int j : lanes(width)) {
      float sum = 0;
      // TODO 09.7: Add up column j of the token's rows of outputs[rows, width], each times its weight.
      //   Its K rows are row_of[token * K + k]; the weight of each is weights[token * K + k]. A row of -1 adds nothing.
      todo("09.7");
      // END TODO 09.7
      y[token * width + j] = sum;
    }
  }
}

// Computes the gradients of combine(): doutputs[rows, width] and dweights[tokens, K], from dy[tokens, width]. The lanes
// of a warp share a choice.
static __global__ void combine_backward(Reals doutputs, float* dweights, ConstReals dy, ConstReals outputs,
                                        const int* row_of, const float* weights, int tokens, int K, int width) {
  for (int choice : warp_stride(tokens * K)) {
    const int row = row_of[choice];
    const ConstReals gradient = dy + choice / K * width;
    // TODO 09.8: Compute the gradients of this weight and of this row of the outputs.
    //   y contains the term weight · output for this row. So the gradient of the weight is the sum over the columns of
    //   dy · output, and that of the output is dy · weight. Without a row, the gradient of the weight is 0. All lanes
    //   write the gradient of the weight to the same place, so each must write it exactly once, with the final value.
    //   sum_of(width, f) adds up f(j). All lanes must call it together; a test of `row` before it is no problem,
    //   because all lanes have the same `row`.
    todo("09.8");
    // END TODO 09.8
  }
}

// Computes dx[tokens, width] from dpermuted[rows, width]: the gradient of permute(). The lanes of a warp share a token.
static __global__ void permute_backward(Reals dx, ConstReals dpermuted, const int* row_of, int tokens, int K,
                                        int width) {
  for (int token : warp_stride(tokens)) {
    for (int j : lanes(width)) {
      float sum = 0;
      // TODO 09.9: Add up column j of the gradients of the token's copies.
      //   Their rows are row_of[token * K + k]; -1 means that the choice has no row.
      todo("09.9");
      // END TODO 09.9
      dx[token * width + j] = sum;
    }
  }
}

// ---- the mixture ---------------------------------------------------------------------------------------------------

class Mixture : public FeedForward {
 public:
  // For `positions` positions of each sequence.
  Mixture(const GptOptions& options, int positions)
      : Mixture(
            options, positions,
            std::make_shared<Experts>(0, options.experts, options.experts, positions * options.top_k, options.width)) {}
  Mixture(const GptOptions& options, int positions, std::shared_ptr<Experts> experts)
      : Mixture(options, positions, std::move(experts), std::make_shared<Router>(options, positions)) {}
  Mixture(const GptOptions& options, int positions, std::shared_ptr<Experts> experts, std::shared_ptr<Router> router)
      : FeedForward(positions, options.width),
        owned_router_(std::move(router)),
        router_(*owned_router_),
        experts_(std::move(experts)),
        K_(options.top_k) {}

  std::vector<Parameter> parameters(const std::string& block) const override {
    std::vector<Parameter> parameters = {{block + ".router.weight", router_.weight()}};
    for (Parameter& parameter : experts_->parameters(block)) parameters.push_back(std::move(parameter));
    return parameters;
  }
  void draw(Generator& generator, float* values) const override {
    init_linear(generator, width_, router_.experts(), values, nullptr);
    experts_->draw(generator, values + router_.experts() * width_);
  }
  void bind(const std::string& block, const Parameter* p) override {
    name_ = block;
    router_.bind(block + ".router", p[0]);
    experts_->bind(block, p + 1);
  }

  std::vector<int> saved() const override {
    const int n = router_.experts(), rows = experts_->rows();
    const int numbers = positions_ * (n + 4 * K_) + (router_.has_own_rows() ? 2 * n : n);
    std::vector<int> sizes = {reals_spanning(numbers), rows * width_, rows * width_};
    for (int size : experts_->saved()) sizes.push_back(size);
    return sizes;
  }
  int scratch() const override { return experts_->rows() * width_ + experts_->scratch(); }
  int deferred() const override { return 0; }  // leaves nothing for later
  void allocate(int max_samples, cudaStream_t stream) override {
    router_.allocate(max_samples);
    experts_->allocate(max_samples, stream);
    starts_ = DeviceBuffer<int>(router_.experts() * max_samples + 1, Memory::activations);
    dweights_ = DeviceBuffer<float>(max_samples * positions_ * K_, Memory::activations);
    loads_ = DeviceBuffer<int>(router_.experts(), Memory::data);
    CUDA_CHECK(cudaMemsetAsync(loads_.data(), 0, loads_.bytes(), stream));
  }

  // Computes y from x, both [samples·count, E]: `count` positions from `first` on. There is no dropout within experts.
  void forward(const Blas& blas, const Real* x, Real* y, Saved& saved, int samples, int first, int count,
               const Dropout&) override {
    const cudaStream_t stream = blas.stream();
    const int tokens = samples * count;
    const Kept kept(saved, router_, samples, positions_);
    probe("09.E", {"given to the mixture: x of ", name_}, x, {tokens, width_}, stream);
    router_.forward(blas, x, kept.routing, samples, first, count);
    sort_rows(x, kept, samples, first, count, stream);
    experts_->forward(blas, kept.x, kept.y, starts_.data(), samples, saved);
    launch(combine, tokens * width_, stream, y, kept.y, kept.row_of + first * K_, kept.routing.weights + first * K_,
           tokens, K_, width_);
    probe("09.7", {name_, ": weighted sum"}, y, {tokens, width_}, stream);
    probe("09.E", {name_, ": output"}, y, {tokens, width_}, stream);
  }

  // Computes the gradients of the parameters, and dx from dy.
  void backward(const Real* x, const Real* dy, Real* dx, Real* scratch, const Saved& saved, const Gradients& g,
                const Dropout&) override {
    const cudaStream_t stream = g.blas.stream();
    const int tokens = g.samples * positions_;
    const Kept kept(saved, router_, g.samples, positions_);
    const int rows = saved.numbers.back();
    float* dweights = dweights_.data();                      // [tokens, K]
    Real *drows = scratch, *beside = drows + rows * width_;  // [rows, E]; experts_->scratch() values
    experts_->clear(drows, stream);
    probe("09.H", {"given to the mixture: dy of ", name_}, dy, {tokens, width_}, stream);
    launch(combine_backward, tokens * K_ * width_, stream, drows, dweights, dy, kept.y, kept.row_of,
           kept.routing.weights, tokens, K_, width_);
    experts_->backward(kept.x, drows, beside, saved, g);
    launch(permute_backward, tokens * width_, stream, dx, drows, kept.row_of, tokens, K_, width_);
    router_.backward(x, dweights, kept.routing, dx, saved.batch, g);
    probe("09.H", {name_, ": gradient of x"}, dx, {tokens, width_}, stream);
    launch(add_loads, router_.experts(), stream, loads_.data(), kept.routing.counts, g.samples, router_.experts());
  }

  // Returns how many of this rank's tokens chose each expert, over all batches that went through backward() since the
  // last call. Waits for the stream.
  std::vector<int> take_loads(cudaStream_t stream) {
    std::vector<int> loads = loads_.download(stream);
    CUDA_CHECK(cudaMemsetAsync(loads_.data(), 0, loads_.bytes(), stream));
    return loads;
  }

 protected:
  // What the backward pass needs about `samples` sequences, in buffers of Saved.
  struct Kept {
    Kept(const Saved& saved, const Router& router, int samples, int positions) {
      const auto at = [&](int i) { return saved.buffers[kFirst + i].data(); };
      const int tokens = samples * positions, choices = tokens * router.choices();
      auto* scores = static_cast<float*>(static_cast<void*>(at(0)));
      float* weights = scores + tokens * router.experts();
      auto* chosen = static_cast<int*>(static_cast<void*>(weights + choices));
      int* places = chosen + choices;
      row_of = places + choices;
      int* counts = row_of + choices;
      routing = {scores, weights, chosen,
                 places, counts,  router.has_own_rows() ? counts + samples * router.experts() : counts};
      x = at(1);
      y = at(2);
    }
    Routing routing;
    int* row_of;  // [tokens, K]: the row of each choice, or -1
    Real *x, *y;  // rows, sorted by expert: the experts' inputs and outputs
  };
  // Writes kept.x, starts_ and kept.row_of. When text is generated, a new position moves the earlier tokens to other
  // rows, so all tokens are copied again. The rows of the `first` earlier positions must lie right before x.
  void sort_rows(const Real* x, const Kept& kept, int samples, int first, int count, cudaStream_t stream) {
    const int n = router_.experts(), numbers = n * samples + 1, positions = first + count, tokens = samples * positions;
    probe("09.E", {"given to sort_rows: tokens of each expert of ", name_}, kept.routing.counts, {samples, n}, stream);
    experts_->lay_out(starts_.data(), kept.routing.rows, samples, router_.places(), stream);
    probe("09.4", {name_, ": first rows"}, starts_.data(), {numbers}, stream);
    experts_->clear(kept.x, stream);
    launch(permute, tokens * K_ * width_, stream, kept.x, kept.row_of, x - first * width_, kept.routing.places,
           kept.routing.chosen, starts_.data(), tokens, positions, K_, width_);
    probe("09.5", {name_, ": row of each choice"}, kept.row_of, {tokens, K_}, stream);
  }

  std::string name_;  // of the block
  std::shared_ptr<Router> owned_router_;
  Router& router_;
  std::shared_ptr<Experts> experts_;
  int K_;
  DeviceBuffer<int> starts_, loads_;
  DeviceBuffer<float> dweights_;
};

inline std::shared_ptr<FeedForward> make_moe(const GptOptions& options, int positions) {
  return std::make_shared<Mixture>(options, positions);
}

}  // namespace workshop
