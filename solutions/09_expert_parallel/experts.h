// SPDX-License-Identifier: Apache-2.0
// The experts of a mixture. Each has the same linear layers as the MLP that they replace, and processes the tokens that
// chose it.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "01_single_gpu/linear.h"
#include "common/base/random.h"
#include "model/activation.h"
#include "model/model.h"
#include "model/rows.h"

namespace workshop {

// Computes starts[experts·sequences + 1]: the first row of each sequence at each expert, expert by expert, and finally
// the total number of rows. counts[sequences, experts] is Routing::rows. Each warp computes one of these numbers.
static __global__ void first_rows(int* starts, const int* counts, int sequences, int experts, int places) {
  for (int i : warp_stride(experts * sequences + 1)) {
    if (sequences == 0) {  // of a rank without samples: only the total number of rows
      starts[i] = 0;
      continue;
    }
    // TODO 09.4: Set starts[i] to the number of rows before those of entry i.
    //   Entry i belongs to expert i / sequences and sequence i % sequences. An expert gets counts[sequence * experts +
    //   expert] rows of a sequence, but at most `places`. sum_of(i, f) adds up f(j) for all j < i; it returns a float.
    starts[i] = static_cast<int>(sum_of(i, [=](int j) {
      const int count = counts[j % sequences * experts + j / sequences];
      return static_cast<float>(count < places ? count : places);
    }));
    // END TODO 09.4
  }
}

// Rows of the experts: one for each choice that has a place, and with fixed counts also empty ones. The rows of an
// expert are consecutive.
struct ExpertRows {
  Real *x, *z, *a, *y;  // input [rows, E], before and after GELU [rows, 4E], output [rows, E]
};

// Which features of each expert this rank holds, on a mesh that splits them across a tensor group. The ranks' outputs
// are summed, so only rank 0 adds the bias of the second layer.
struct FeatureCut {
  int rank = 0, ranks = 1;
};

// All experts of a block. ParallelExperts (moe_parallel.h) derives from it; there, each rank has only some of them.
class Experts {
 public:
  // Experts [first, first + count) of `all`, for at most `rows` rows per sample.
  Experts(int first, int count, int all, int rows, int width, FeatureCut cut = {})
      : rows_(rows),
        first_(first),
        all_(all),
        width_(width),
        hidden_(4 * width / cut.ranks),
        adds_bias_(cut.rank == 0),
        linear_(2 * count) {}
  virtual ~Experts() = default;
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;

  int count() const { return static_cast<int>(linear_.size()) / 2; }
  int rows() const { return rows_; }

  // Returns the parameters of these experts in memory order; `block` is the block's name.
  std::vector<Parameter> parameters(const std::string& block) const {
    std::vector<Parameter> parameters;
    for (int e = first_; e < first_ + count(); ++e) {
      const std::string name = block + ".experts." + std::to_string(e);
      parameters.push_back({name + ".linear1.weight", {4 * width_, width_}});
      parameters.push_back({name + ".linear1.bias", {4 * width_}});
      parameters.push_back({name + ".linear2.weight", {width_, 4 * width_}});
      parameters.push_back({name + ".linear2.bias", {width_}});
    }
    return parameters;
  }
  // Draws the initial values of all experts, in PyTorch's order, and keeps only those of this object's experts.
  void draw(Generator& generator, float* values) const {
    const int E = width_, matrix = 4 * E * E, of_expert = 2 * matrix + 5 * E;
    std::vector<float> others(of_expert);
    for (int e = 0; e < all_; ++e) {
      const bool mine = e >= first_ && e < first_ + count();
      float* const to = mine ? values + (e - first_) * of_expert : others.data();
      init_linear(generator, E, 4 * E, to, to + matrix);
      init_linear(generator, 4 * E, E, to + matrix + 4 * E, to + 2 * matrix + 4 * E);
    }
  }
  // From now on, uses the memory of the 4·count() parameters at p, which must be in the order of parameters().
  void bind(const std::string& block, const Parameter* p) {
    for (int i = 0; i < count(); ++i, p += 4) {
      const std::string name = block + ".experts." + std::to_string(first_ + i);
      linear_[2 * i] = linear_of(name + ".linear1", p[0], p[1]);
      linear_[2 * i + 1] = linear_of(name + ".linear2", p[2], p[3]);
    }
  }

  // Returns the size of each buffer that backward() needs, in Reals per sample. In Saved, these buffers come after the
  // mixture's own.
  virtual std::vector<int> saved() const { return {rows_ * hidden_, rows_ * hidden_}; }
  // Returns the size of backward()'s `scratch`, in Reals per sample.
  virtual int scratch() const { return rows_ * hidden_; }
  virtual void allocate(int max_samples, cudaStream_t) { host_starts_ = HostBuffer<int>(all_ * max_samples + 1); }

  // Writes starts[all·samples + 1] to the device: the first row of each sample at each expert, expert by expert, and
  // finally the total number of rows. counts[samples, all] is Routing::rows.
  virtual void lay_out(int* starts, const int* counts, int samples, int places, cudaStream_t stream) const {
    launch(first_rows, (all_ * samples + 1) * kWarp, stream, starts, counts, samples, all_, places);
  }
  // Zeroes rows[rows, E] before they are written, if some may have no token. Here, every row has one, so this does
  // nothing.
  virtual void clear(Real* /*rows*/, cudaStream_t) const {}

  // Computes y[rows, E] from x[rows, E]; lay_out() has written `starts`. Keeps numbers for backward() in saved.numbers.
  // The last one is the number of rows.
  virtual void forward(const Blas& blas, Real* x, Real* y, const int* starts, int samples, Saved& saved) {
    if (probing()) probe("09.E", {"given to experts_->forward: samples of ", name()}, std::array{samples});
    get_first_rows(saved.numbers, starts, samples, blas.stream());
    probe("09.5", {name(), ": rows of x"}, x, {saved.numbers[count()], width_}, blas.stream());
    compute(blas, rows_in(saved, x, y), saved.numbers.data());
  }
  // Computes the gradients of the parameters, and replaces dy[rows, E] with the gradient of x.
  virtual void backward(Real* x, Real* dy, Real* scratch, const Saved& saved, const Gradients& g) {
    probe("09.8", {name(), ": gradients of the rows of y"}, dy, {saved.numbers[count()], width_}, g.blas.stream());
    compute_backward(rows_in(saved, x, nullptr), saved.numbers.data(), dy, scratch, g);
  }

 protected:
  static constexpr int kFirst = 12;  // the experts' first buffer in Saved

  // Copies the first row of each expert to first_row[all_ + 1] on the host, which needs the sizes of the matrix
  // products. Waits for the stream.
  void get_first_rows(std::vector<int>& first_row, const int* starts, int samples, cudaStream_t stream) {
    const std::size_t numbers = all_ * samples + 1;
    CUDA_CHECK(cudaMemcpyAsync(host_starts_.data(), starts, numbers * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    first_row.resize(all_ + 1);
    for (int e = 0; e <= all_; ++e) first_row[e] = host_starts_.data()[e * samples];
    if (first_row[0] != 0 || !std::ranges::is_sorted(first_row) || first_row[all_] > samples * rows_) {
      fail(kFailed, "the first rows of the experts are not in order, or there are more rows than choices");
    }
  }

  // Computes rows.y from rows.x. The rows of this object's expert i are first[i] … first[i + 1] - 1.
  void compute(const Blas& blas, const ExpertRows& rows, const int* first) const {
    probe("09.6", {"given to compute: rows of x of ", name()}, rows.x, {first[count()], width_}, blas.stream());
    // WRITE 09.D: Compute rows.z, rows.a and rows.y of each expert from its rows of rows.x.
    //   Expert i of count() has the layers linear_[2 * i] and second_layer(i), with GELU between them, and the rows
    //   first[i] … first[i + 1] - 1. An expert may have no rows. Each row of rows.x and rows.y has width_ values. Each
    //   row of rows.z (before GELU) and rows.a (after GELU) has hidden_ values. Call linear_forward(blas, layer, x, y,
    //   number of rows) and activation_forward(Activation::gelu, a, z, number of values, stream).
    for (int i = 0; i < count(); ++i) {
      const Linear linear1 = linear_[2 * i], linear2 = second_layer(i);
      // TODO 09.6: Compute the rows of expert i, as the MLP does: linear1, GELU, linear2.
      //   They are first[i] … first[i + 1] - 1. A row has width_ values in rows.x and rows.y, and hidden_ values in
      //   rows.z and rows.a, which the backward pass needs. Call linear_forward(blas, layer, x, y, number of rows) and
      //   activation_forward(Activation::gelu, a, z, number of values, stream). It is possible that no token chose the
      //   expert: both functions do nothing for 0 rows.
      const int n = first[i + 1] - first[i], features = hidden_;
      const Real* x = rows.x + first[i] * width_;
      Real *z = rows.z + first[i] * features, *a = rows.a + first[i] * features, *y = rows.y + first[i] * width_;
      linear_forward(blas, linear1, x, z, n);
      activation_forward(Activation::gelu, a, z, n * features, blas.stream());
      linear_forward(blas, linear2, a, y, n);
      // END TODO 09.6
    }
    // END WRITE 09.D
    probe("09.6", {name(), ": rows after GELU"}, rows.a, {first[count()], hidden_}, blas.stream());
    probe("09.6", {name(), ": rows of y"}, rows.y, {first[count()], width_}, blas.stream());
  }

  // Computes the gradients of the parameters, and replaces dy[rows, E] with the gradient of rows.x. dz[rows, hidden_]
  // is scratch.
  void compute_backward(const ExpertRows& rows, const int* first, Real* dy, Real* dz, const Gradients& g) const {
    for (int i = 0; i < count(); ++i) {
      const int n = first[i + 1] - first[i], at = first[i] * width_, in_hidden = first[i] * hidden_;
      Real* gradient = dz + in_hidden;
      linear_backward(g.blas, linear_[2 * i + 1], rows.a + in_hidden, dy + at, gradient, g.ones, n, g.accumulate);
      activation_backward(Activation::gelu, gradient, rows.z + in_hidden, n * hidden_, g.blas.stream());
      linear_backward(g.blas, linear_[2 * i], rows.x + at, gradient, dy + at, g.ones, n, g.accumulate);
    }
  }

  std::string name() const { return linear_[0].name.substr(0, linear_[0].name.find(".linear")); }

  int rows_;                          // per sample, at most
  int first_, all_, width_, hidden_;  // hidden_: features of an expert on this rank

 private:
  static ExpertRows rows_in(const Saved& saved, Real* x, Real* y) {
    return {x, saved.buffers[kFirst].data(), saved.buffers[kFirst + 1].data(), y};
  }

  Linear second_layer(int i) const {
    Linear layer = linear_[2 * i + 1];
    if (!adds_bias_) layer.bias = nullptr;
    return layer;
  }

  bool adds_bias_;
  std::vector<Linear> linear_;  // two per expert
  HostBuffer<int> host_starts_;
};

}  // namespace workshop
