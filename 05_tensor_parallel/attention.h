// Multi-head causal self-attention (Vaswani et al., 2017) with its heads cut over the ranks of a tensor-parallel group,
// forward and backward by hand.
//
// B samples of S positions of width E; H heads of width d = E/H, of which a rank has H/P. Heads do not know of each
// other until the output projection, so the block is a pair of layers as in parallel_linear.h: the projections to
// query, key and value are column-parallel, head by head, attention itself stands between in place of the activation,
// and the output projection is row-parallel. All that is sent is one all-reduce of [B·S, E] each way.
#pragma once

#include <cmath>
#include <vector>

#include "parallel_linear.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Turns scores[rows, S] into probabilities, in place; row i belongs to position i mod S. Position j gets a probability
// where allowed[position, j] is 1, and zero elsewhere. One row an iteration.
__global__ void masked_softmax(float* scores, const int* allowed, int rows, int S) {
  for (int row : grid_stride(rows)) {
    float* p = scores + row * S;
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
__global__ void row_dots(float* dots, const float* a, const float* b, int rows, int width) {
  for (int row : grid_stride(rows)) {
    float sum = 0;
    for (int j = 0; j < width; ++j) sum += a[row * width + j] * b[row * width + j];
    dots[row] = sum;
  }
}

// dp[rows, width] becomes p·(dp - dots[row]).
__global__ void softmax_backward(float* dp, const float* p, const float* dots, int rows, int width) {
  for (int i : grid_stride(rows * width)) dp[i] = p[i] * (dp[i] - dots[i / width]);
}

// ---- matrices ------------------------------------------------------------------------------------------------------

// One matrix a sample, each inside a bigger row-major one: rows are `row_stride` floats apart, samples `stride`.
struct Matrices {
  float* data;
  int row_stride;
  long long stride;
};

// C[m, n] = factor · op(A)[m, k] · op(B)[k, n], for `count` samples in one call; row-major, as gemm() in chapter 01.
inline void batched_gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, float factor, Matrices A,
                         Matrices B, Matrices C, int count) {
  const float zero = 0.0f;
  const auto blas_op = [](Op op) { return op == Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  CUBLAS_CHECK(cublasSgemmStridedBatched(blas, blas_op(op_b), blas_op(op_a), n, m, k, &factor, B.data, B.row_stride,
                                         B.stride, A.data, A.row_stride, A.stride, &zero, C.data, C.row_stride,
                                         C.stride, count));
}

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

class ParallelAttention {
 public:
  // The group divides `heads`, and these divide `width`; a batch has at most `max_samples` samples of `sequence`
  // positions.
  ParallelAttention(int sequence, int width, int heads, int max_samples, const TensorGroup& group, cudaStream_t stream)
      : S_(sequence),
        E_(width),
        d_(width / heads),
        heads_(heads / group.size),
        group_(group),
        blas_(stream),
        parameters_(group, stream),
        ones_(max_samples * sequence, Memory::data),
        scratch_(1, Memory::data),
        allowed_(sequence * sequence, Memory::data) {
    // A head's queries are d rows of the weight, and so on. Query, key and value lie one after the other, and this
    // rank's heads of them too: that makes them one layer from E to 3·E/P.
    for (const char* name : kProjections) parameters_.add(std::string(name) + ".weight", {E_, E_}, Split::rows);
    for (const char* name : kProjections) parameters_.add(std::string(name) + ".bias", {E_}, Split::rows);
    parameters_.add("out.weight", {E_, E_}, Split::columns);
    parameters_.add("out.bias", {E_}, Split::none);
    parameters_.allocate();
    const ShardedParameter &weight = parameters_[0], &bias = parameters_[3];
    qkv_ = {"qkv", E_, 3 * heads_ * d_, weight.value, bias.value, weight.grad, bias.grad};
    out_ = linear_part("out", parameters_[6], parameters_[7]);

    const int positions = max_samples * S_, features = heads_ * d_;
    const auto activation = [](int count) { return DeviceBuffer<float>(count, Memory::activations); };
    for (Buffers* buffers : {&values_, &gradients_}) {
      buffers->qkv = activation(positions * 3 * features);
      buffers->p = activation(heads_ * positions * S_);
      buffers->context = activation(positions * features);
      buffers->y = activation(positions * E_);
    }
    dots_ = activation(heads_ * positions);
    dx_ = activation(positions * E_);
    launch(fill, positions, stream, ones_.data(), 1.0f, positions);
    allowed_.upload(causal_mask(S_), stream);
  }

  // PyTorch's initial parameters of four nn.Linear, in the order query, key, value, out.
  void initialize(std::uint64_t seed) {
    Generator generator(seed);
    std::vector<float> weight(E_ * E_), bias(E_);
    for (int i = 0; i < 4; ++i) {
      init_linear(generator, E_, E_, weight.data(), bias.data());
      parameters_.load(i < 3 ? i : 6, weight);
      parameters_.load(i < 3 ? 3 + i : 7, bias);
    }
  }

  // The whole output [samples·S, E] for x[samples·S, E], the same on every rank.
  const float* forward(const float* x, int samples) {
    const cudaStream_t stream = blas_.stream();
    const Range range("forward attention", stream);
    const int positions = samples * S_;
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_));
    column_parallel_forward(blas_, qkv_, x, values_.qkv.data(), positions);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values_, h, samples);
      // TODO 05.14: Compute this head's scores for all samples: head.p = scale · q kᵀ.
      //   One batched_gemm(). q and k are [S, d] a sample, head.p is [S, S]; the softmax will make probabilities of
      //   it.
      todo("05.14");
      // END TODO 05.14
    }
    probe("05.14", "scores", values_.p.data(), {heads_, samples, S_, S_}, stream);
    launch(masked_softmax, heads_ * positions, stream, values_.p.data(), allowed_.data(), heads_ * positions, S_);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values_, h, samples);
      // TODO 05.15: What this head has looked up: head.context = p v, for all samples.
      //   p is [S, S] a sample; v and head.context are [S, d].
      todo("05.15");
      // END TODO 05.15
    }
    probe("05.15", "context", values_.context.data(), {positions, out_.in}, stream);
    row_parallel_forward(blas_, group_, out_, values_.context.data(), values_.y.data(), positions);
    return values_.y.data();
  }

  // Adds the mean square error to *loss. Every rank computes the same.
  void loss(const float* target, int samples, float* loss) {
    const int n = samples * S_ * E_;
    mse_loss(blas_, values_.y.data(), target, n, n, loss, gradients_.y.data(), scratch_.data());
  }

  // All gradients from the loss's gradient, and that of x, the same on every rank: [samples·S, E]. A block has another
  // one below it, or an embedding.
  float* backward(const float* x, int samples) {
    const cudaStream_t stream = blas_.stream();
    const Range range("backward attention", stream);
    const int positions = samples * S_, rows = heads_ * positions;
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_));
    row_parallel_backward(blas_, out_, values_.context.data(), gradients_.y.data(), gradients_.context.data(),
                          ones_.data(), positions, 0);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values_, h, samples), d = head_of(gradients_, h, samples);
      // TODO 05.16: Back through context = p v: the gradient d.p of the probabilities, from d.context.
      //   As a linear layer's: dP = dC vᵀ. One batched_gemm().
      todo("05.16");
      // END TODO 05.16
    }
    float *p = values_.p.data(), *dp = gradients_.p.data(), *dots = dots_.data();
    probe("05.16", "gradient of the probabilities", dp, {heads_, samples, S_, S_}, stream);
    // TODO 05.17: Back through the softmax: dp becomes the gradient of the scores, p·(dp - Σⱼ pⱼ·dpⱼ).
    //   Why a sum over the row? Two kernels from above, row_dots and softmax_backward, with `rows` rows of S_ values;
    //   `dots` has room for a number a row.
    todo("05.17");
    // END TODO 05.17
    probe("05.17", "gradient of the scores", dp, {heads_, samples, S_, S_}, stream);
    for (int h = 0; h < heads_; ++h) {
      const Head head = head_of(values_, h, samples), d = head_of(gradients_, h, samples);
      // TODO 05.18: The gradients d.v, d.q and d.k. That of the scores is in d.p now.
      //   Context = p v gives dV = pᵀ dC; scores = scale · q kᵀ gives dQ = scale · dS k and dK = scale · dSᵀ q. Three
      //   batched_gemm().
      todo("05.18");
      // END TODO 05.18
    }
    probe("05.18", "gradient of query, key and value", gradients_.qkv.data(), {positions, qkv_.out}, stream);
    column_parallel_backward(blas_, group_, qkv_, x, gradients_.qkv.data(), dx_.data(), ones_.data(), positions, 0);
    return dx_.data();
  }

  const ShardedParameters& parameters() const { return parameters_; }

 private:
  static constexpr const char* kProjections[] = {"query", "key", "value"};

  // What the forward pass computes, or the gradients of that.
  struct Buffers {
    DeviceBuffer<float> qkv;      // [samples·S, 3·E/P]: queries, keys and values of this rank's heads side by side
    DeviceBuffer<float> p;        // [H/P, samples, S, S]
    DeviceBuffer<float> context;  // [samples·S, E/P]
    DeviceBuffer<float> y;        // [samples·S, E]
  };
  // What belongs to one head, sample by sample: q, k, v, context [S, d], p [S, S].
  struct Head {
    Matrices q, k, v, p, context;
  };

  Head head_of(const Buffers& buffers, int h, int samples) const {
    const int features = heads_ * d_;
    const auto projection = [&](int which) {
      return Matrices{buffers.qkv.data() + which * features + h * d_, 3 * features, 3LL * features * S_};
    };
    return {projection(0),
            projection(1),
            projection(2),
            {buffers.p.data() + h * samples * S_ * S_, S_, static_cast<long long>(S_) * S_},
            {buffers.context.data() + h * d_, features, static_cast<long long>(features) * S_}};
  }

  int S_, E_, d_;  // positions, width, width of a head
  int heads_;      // of this rank
  TensorGroup group_;
  Blas blas_;
  ShardedParameters parameters_;
  Linear qkv_, out_;  // this rank's parts
  DeviceBuffer<float> ones_, scratch_;
  DeviceBuffer<int> allowed_;  // [S, S]
  Buffers values_, gradients_;
  DeviceBuffer<float> dots_, dx_;
};

}  // namespace workshop
