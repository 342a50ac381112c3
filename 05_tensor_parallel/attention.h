// SPDX-License-Identifier: Apache-2.0
// Multi-head causal self-attention (Vaswani et al., 2017) with its heads cut over the ranks of a tensor-parallel group,
// forward and backward by hand.
//
// B samples of S positions of width E; H heads of width d = E/H, of which a rank has H/P. Heads do not know of each
// other until the output projection, so the block is a pair of layers as in tensor_parallel.h: the projections to
// query, key and value are column-parallel, head by head, attention itself stands between in place of the activation,
// and the output projection is row-parallel. All that is sent is one all-reduce of [B·S, E] each way.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tensor_parallel.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Turns scores[rows, S] into probabilities, in place; row i belongs to position i mod S. Position j gets a probability
// where allowed[position, j] is 1, and zero elsewhere. One row an iteration.
static __global__ void masked_softmax(Reals scores, const int* allowed, int rows, int S) {
  for (int row : grid_stride(rows)) {
    const Reals p = scores + row * S;
    const int* mask = allowed + row % S * S;
    float largest = -INFINITY, sum = 0;
    for (int j = 0; j < S; ++j) largest = mask[j] == 1 && p[j] > largest ? p[j] : largest;
    for (int j = 0; j < S; ++j) {
      p[j] = mask[j] == 1 ? expf(p[j] - largest) : 0.0f;  // e^x overflows; e^(x - max x) has the same quotients
      sum += p[j];
    }
    for (int j = 0; j < S; ++j) p[j] /= sum;
  }
}

// dots[rows] = Σⱼ a[row, j]·b[row, j]
static __global__ void row_dots(float* dots, ConstReals a, ConstReals b, int rows, int width) {
  for (int row : grid_stride(rows)) {
    float sum = 0;
    for (int j = 0; j < width; ++j) sum += a[row * width + j] * b[row * width + j];
    dots[row] = sum;
  }
}

// dp[rows, width] becomes p·(dp - dots[row]).
static __global__ void softmax_backward(Reals dp, ConstReals p, const float* dots, int rows, int width) {
  for (int i : grid_stride(rows * width)) dp[i] = p[i] * (dp[i] - dots[i / width]);
}

// ---- the mask -------------------------------------------------------------------------------------------------------

// allowed[S, S]: 1 where position i (row) may look at position j (column), 0 elsewhere.
inline std::vector<int> causal_mask(int S) {
  std::vector<int> allowed(S * S);
  // TODO 05.13: Let every position see itself and what came before it.
  //   allowed[i * S + j] for all i and j. The first position sees itself alone, the last one sees all.
  todo("05.13");
  // END TODO 05.13
  probe("05.13", "causal mask", allowed);
  return allowed;
}

// ---- the block -----------------------------------------------------------------------------------------------------

// Takes and returns [samples·S, E], whole on every rank.
class ParallelAttention : public Layer {
 public:
  // The group divides `heads`, and these divide `width`; a sample has `sequence` positions.
  ParallelAttention(int sequence, int width, int heads, const Group& group)
      : Layer("attention", sequence * width, sequence * width),
        S_(sequence),
        E_(width),
        d_(width / heads),
        heads_(heads / group.size()),
        group_(group) {
    // A head's queries are d rows of the weight, and so on. Query, key and value lie one after the other, and this
    // rank's heads of them too: that makes them one layer from E to 3·E/P.
    for (const std::string projection : {"query", "key", "value"}) {
      parameters.push_back(sharded(projection + ".weight", {E_, E_}, Split::rows, group));
    }
    for (const std::string projection : {"query", "key", "value"}) {
      parameters.push_back(sharded(projection + ".bias", {E_}, Split::rows, group));
    }
    parameters.push_back(sharded("out.weight", {E_, E_}, Split::columns, group));
    parameters.push_back(sharded("out.bias", {E_}, Split::none, group));
  }

  // Those of four nn.Linear, drawn in the order query, key, value, out, weight and bias in turns.
  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> weights, biases;
    for (int projection = 0; projection < 3; ++projection) {
      std::vector<float> layer;
      append_initial(layer, generator, parameters[projection], parameters[3 + projection], group_);
      const auto bias = layer.begin() + parameters[projection].count();
      weights.insert(weights.end(), layer.begin(), bias);
      biases.insert(biases.end(), bias, layer.end());
    }
    weights.insert(weights.end(), biases.begin(), biases.end());
    append_initial(weights, generator, parameters[6], parameters[7], group_);
    return weights;
  }
  std::vector<int> saved() const override { return {3 * features() * S_, heads_ * S_ * S_, features() * S_, out}; }
  int rows() const override { return S_; }

  void allocate(int max_samples, cudaStream_t stream) override {
    allowed_ = DeviceBuffer<int>(S_ * S_, Memory::data);
    allowed_.upload(causal_mask(S_), stream);
    dots_ = DeviceBuffer<float>(max_samples * heads_ * S_, Memory::activations);
    for (int size : {3 * features() * S_, heads_ * S_ * S_, features() * S_}) {
      gradients_.emplace_back(max_samples * size, Memory::activations);
    }
  }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const Parameter &weight = parameters[0], &bias = parameters[3];
    qkv_ = {"qkv", E_, 3 * features(), weight.value, bias.value, weight.grad, bias.grad};
    out_ = linear_part("out", parameters[6], parameters[7]);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range("forward attention", stream);
    const Buffers values = buffers(saved.buffers);
    Real* y = saved.buffers[3].data();
    const int positions = samples * S_;
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_));
    column_parallel_forward(blas, qkv_, static_cast<const Real*>(x), values.qkv, positions);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values, h, samples);
      // TODO 05.14: Compute this head's scores for all samples: head.p = scale · q kᵀ.
      //   One batched_gemm() (docs/calls.md). q and k are [S_, d_] a sample, head.p is [S_, S_]; the softmax will make
      //   probabilities of it.
      todo("05.14");
      // END TODO 05.14
    }
    probe("05.14", "scores", values.p, {heads_, samples, S_, S_}, stream);
    launch(masked_softmax, heads_ * positions, stream, values.p, allowed_.data(), heads_ * positions, S_);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values, h, samples);
      // TODO 05.15: What this head has looked up: head.context = p v, for all samples.
      //   p is [S_, S_] a sample; v and head.context are [S_, d_].
      todo("05.15");
      // END TODO 05.15
    }
    probe("05.15", "context", values.context, {positions, out_.in}, stream);
    row_parallel_forward(blas, group_, out_, values.context, y, positions);
    return y;
  }

  // The gradient of x is the same on every rank. It is computed even where it is not asked for: below a block is
  // another one, or an embedding.
  Real* backward(const Saved& saved, const Gradients& g) override {
    const Blas& blas = g.blas;
    const cudaStream_t stream = blas.stream();
    const Range range("backward attention", stream);
    const Buffers values = buffers(saved.buffers), gradients = buffers(gradients_);
    const int samples = g.samples;
    const int positions = samples * S_, rows = heads_ * positions;
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_));
    row_parallel_backward(blas, out_, values.context, g.dy, gradients.context, g.ones, positions, g.accumulate);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values, h, samples), d = head_of(gradients, h, samples);
      // TODO 05.16: Back through context = p v: the gradient d.p of the probabilities, from d.context.
      //   As a linear layer's: dP = dC vᵀ, where `d` has the gradients of this head, as `head` has its values, and d_
      //   is its width. One batched_gemm(), from [S_, d_] to [S_, S_].
      todo("05.16");
      // END TODO 05.16
    }
    Real *p = values.p, *dp = gradients.p;
    float* dots = dots_.data();
    probe("05.16", "gradient of the probabilities", dp, {heads_, samples, S_, S_}, stream);
    // TODO 05.17: Back through the softmax: dp becomes the gradient of the scores, p·(dp - Σⱼ pⱼ·dpⱼ).
    //   Why a sum over the row? Two kernels from above, row_dots and softmax_backward, with `rows` rows of S_ values;
    //   `dots` has room for a number a row.
    todo("05.17");
    // END TODO 05.17
    probe("05.17", "gradient of the scores", dp, {heads_, samples, S_, S_}, stream);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values, h, samples), d = head_of(gradients, h, samples);
      // TODO 05.18: The gradients d.v, d.q and d.k. That of the scores is in d.p now.
      //   Context = p v gives dV = pᵀ dC; scores = scale · q kᵀ gives dQ = scale · dS k and dK = scale · dSᵀ q. Three
      //   batched_gemm(); all results are [S_, d_], and `d` is not the width but this head's gradients.
      todo("05.18");
      // END TODO 05.18
    }
    probe("05.18", "gradient of query, key and value", gradients.qkv, {positions, qkv_.out}, stream);
    Real* dx = g.dx != nullptr ? g.dx : g.spare;
    column_parallel_backward(blas, group_, qkv_, static_cast<const Real*>(saved.x), gradients.qkv, dx, g.ones,
                             positions, g.accumulate);
    return dx;
  }

 private:
  // What the forward pass computes, or the gradients of that.
  struct Buffers {
    Real* qkv;      // [samples·S, 3·E/P]: queries, keys and values of this rank's heads side by side
    Real* p;        // [H/P, samples, S, S]
    Real* context;  // [samples·S, E/P]
  };
  static Buffers buffers(const std::vector<DeviceBuffer<Real>>& of) {
    return {of[0].data(), of[1].data(), of[2].data()};
  }

  // What belongs to one head, sample by sample: q, k, v, context [S, d], p [S, S].
  struct Head {
    Matrices q, k, v, p, context;
  };

  Head head_of(const Buffers& buffers, int h, int samples) const {
    const int features = this->features();
    const auto projection = [&](int which) {
      return Matrices{buffers.qkv + which * features + h * d_, 3 * features, 3LL * features * S_};
    };
    return {projection(0),
            projection(1),
            projection(2),
            {buffers.p + h * samples * S_ * S_, S_, static_cast<long long>(S_) * S_},
            {buffers.context + h * d_, features, static_cast<long long>(features) * S_}};
  }

  int features() const { return heads_ * d_; }  // of this rank

  int S_, E_, d_;  // positions, width, width of a head
  int heads_;      // of this rank
  const Group& group_;
  Linear qkv_{}, out_{};       // this rank's parts
  DeviceBuffer<int> allowed_;  // [S, S]
  std::vector<DeviceBuffer<Real>> gradients_;
  DeviceBuffer<float> dots_;
};

// One block, which is to give the targets. The group must live as long.
inline Network make_attention(int sequence, int width, int heads, const Group& group) {
  Network network;
  network.layers.push_back(std::make_shared<ParallelAttention>(sequence, width, heads, group));
  network.loss = std::make_shared<MeanSquaredError>(sequence * width);
  return network;
}

}  // namespace workshop
