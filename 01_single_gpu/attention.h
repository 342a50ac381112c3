// SPDX-License-Identifier: Apache-2.0
// Multi-head causal self-attention (Vaswani et al., 2017) between its projections, forward and backward by hand: from
// queries, keys and values to what each position has looked up.
//
// B samples of T positions; H heads of width d. Heads and samples do not know of each other: where this says head, a
// matrix product is made for all samples in one call.
#pragma once

#include <cmath>

#include "01_single_gpu/dropout.h"
#include "common/record/record.h"
#include "model/blas.h"
#include "model/rows.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Turns rows of scores, which begin `stride` floats apart, into probabilities, in place. Row i belongs to position
// first + i mod positions, and has a score for each of the positions up to first + positions - 1. One row an iteration.
static __global__ void causal_softmax(Reals scores, float scale, int rows, int positions, int first, int stride) {
  for (int row : grid_stride(rows)) {
    const Reals p = scores + static_cast<std::size_t>(row) * stride;
    const int position = first + row % positions, keys = first + positions;
    // TODO 01.12: Make probabilities of the scores: the softmax of scale·p[j] over what this position may see.
    //   That is itself and the positions before it; the others, up to `keys`, get zero. e^x overflows, e^(x - max x)
    //   does not, and has the same quotients. max_of(n, p) is the largest of p[0] … p[n - 1]; sum_of(n, f) adds up
    //   f(j).
    todo("01.12");
    // END TODO 01.12
  }
}

// Turns the gradient dp[rows, positions] of probabilities p into that of the scores, in place.
static __global__ void causal_softmax_backward(Reals dp, ConstReals p, float scale, int rows, int positions) {
  for (int row : grid_stride(rows)) {
    const ConstReals probability = p + static_cast<std::size_t>(row) * positions;
    const Reals gradient = dp + static_cast<std::size_t>(row) * positions;
    const int seen = row % positions + 1;
    // TODO 01.13: Back through the softmax: the gradient of score j is scale·pⱼ·(dpⱼ - Σₖ pₖ·dpₖ), in place.
    //   The sum is over the row. What is not seen has probability zero: which gradient has its score? Write that too,
    //   because the matrix products that follow read whole rows.
    todo("01.13");
    // END TODO 01.13
  }
}

// ---- attention -----------------------------------------------------------------------------------------------------

// The heads that a rank holds, of samples of `positions` positions.
struct Heads {
  int positions, count, width;                    // T; H; d
  int features() const { return count * width; }  // of all heads
};

// What the forward pass computes, or the gradients of that.
struct AttentionValues {
  Real* qkv;      // [B·T, 3·H·d]: queries, keys and values side by side, of each the heads side by side
  Real* p;        // [B, H, T, T]: probabilities
  Real* context;  // [B·T, H·d]: what has been looked up
};

// What belongs to one head, sample by sample: q, k, v, context [T, d], p [T, T]. From position `first` on, where only
// those are to be computed.
struct Head {
  Head(const Heads& heads, const AttentionValues& values, int h, int first = 0) {
    const int features = heads.features(), T = heads.positions;
    const auto projection = [&](int which, int from) {
      return Matrices{values.qkv + from * 3 * features + which * features + h * heads.width, 3 * features,
                      3LL * features * T};
    };
    q = projection(0, first);
    k = projection(1, 0);
    v = projection(2, 0);
    p = {values.p + (h * T + first) * T, T, static_cast<long long>(heads.count) * T * T};
    context = {values.context + first * features + h * heads.width, features, static_cast<long long>(features) * T};
  }
  Matrices q, k, v, p, context;
};

// context and p of `count` positions from `first` on, for `samples` samples: values.qkv has their queries, and the keys
// and values of all positions up to them. So first = 0 and count = T is the forward pass of a batch, and count = 1 that
// of a position which is new. `dropped`, where probabilities are dropped, has room for as many as p.
inline void attention_forward(const Blas& blas, const Heads& heads, const AttentionValues& values, int samples,
                              int first, int count, const Dropout& dropout, Real* dropped) {
  const cudaStream_t stream = blas.stream();
  const int T = heads.positions, d = heads.width, keys = first + count;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, values, h, first);
    batched_gemm(blas, Op::as_is, Op::transposed, count, keys, d, 1, head.q, head.k, head.p, samples);
  }
  if (count == T) {
    const int rows = samples * heads.count * T;
    launch(causal_softmax, rows * T, stream, values.p, scale, rows, T, 0, T);
    probe("01.12", "probabilities", values.p, {samples, heads.count, T, T}, stream);
  } else {
    for (int h = 0; h < heads.count; ++h) {
      Real* p = Head(heads, values, h, first).p.data;
      launch(causal_softmax, count * keys, stream, p, scale, count, count, first, T);
      probe("01.12", "probabilities of a new position", p, {1, keys}, stream);
    }
  }
  AttentionValues looking = values;
  if (dropout.active()) {
    dropout.apply(dropped, values.p, samples, heads.count * T * T, stream);
    looking.p = dropped;
  }
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, looking, h, first);
    batched_gemm(blas, Op::as_is, Op::as_is, count, d, keys, 1, head.p, head.v, head.context, samples);
  }
}

// gradients.qkv from gradients.context; gradients.p is room for the probabilities' on the way.
inline void attention_backward(const Blas& blas, const Heads& heads, const AttentionValues& values,
                               const AttentionValues& gradients, int samples, const Dropout& dropout, Real* dropped) {
  const cudaStream_t stream = blas.stream();
  const int T = heads.positions, d = heads.width, rows = samples * heads.count * T;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  AttentionValues looked = values;
  if (dropout.active()) {
    dropout.apply(dropped, values.p, samples, heads.count * T * T, stream);
    looked.p = dropped;
  }
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, looked, h), g(heads, gradients, h);
    // TODO 01.14: Back through context = p v: the gradient g.p = dC vᵀ of the probabilities, from dC = g.context.
    //   As a linear layer's. One batched_gemm(), whose arguments are those of gemm() without beta, with a factor before
    //   A, here 1, and with the number of samples at the end. p is [T, T], the others are [T, d].
    todo("01.14");
    // END TODO 01.14
  }
  probe("01.14", "gradient of the probabilities", gradients.p, {samples, heads.count, T, T}, stream);
  if (dropout.active()) dropout.apply(gradients.p, gradients.p, samples, heads.count * T * T, stream);
  launch(causal_softmax_backward, rows * T, stream, gradients.p, values.p, scale, rows, T);
  probe("01.13", "gradient of the scores", gradients.p, {samples, heads.count, T, T}, stream);
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, looked, h), g(heads, gradients, h);
    // TODO 01.15: The gradients g.q = dS k, g.k = dSᵀ q and g.v = pᵀ dC.
    //   The gradient dS of the scores q kᵀ is in g.p now, and has the scale in it; p is head.p, and dC g.context. Three
    //   batched_gemm().
    todo("01.15");
    // END TODO 01.15
  }
  probe("01.15", "gradient of queries, keys and values", gradients.qkv, {samples * T, 3 * heads.features()}, stream);
}

}  // namespace workshop
