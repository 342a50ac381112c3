// SPDX-License-Identifier: Apache-2.0
// Multi-head causal self-attention (Vaswani et al., 2017) without its projections, forward and backward by hand: from
// queries, keys and values to the context of each position.
//
// B samples of T positions; H heads of width E/H. Heads and samples are independent of each other: for each head, one
// call computes a matrix product for all samples.
#pragma once

#include <cmath>

#include "01_single_gpu/dropout.h"
#include "01_single_gpu/heads.h"
#include "common/record/record.h"
#include "model/blas.h"
#include "model/rows.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Turns rows of scores, `stride` floats apart, into probabilities, in place. Row i belongs to position
// first + i mod positions and has a score for each position up to first + positions - 1. The threads of a warp, its
// lanes, share a row (model/rows.h).
static __global__ void causal_softmax(Reals scores, float scale, int rows, int positions, int first, int stride) {
  // WRITE 01.J: Turn each row of scores into the softmax of scale·score over the positions that it may see.
  //   A position sees itself and those before it. All others, up to first + positions - 1, get the probability 0. No
  //   exponential may overflow, however large the scores are. `for (int row : warp_stride(rows))` goes over the rows of
  //   this warp, and `for (int j : lanes(n))` over the places in a row that belong to this lane. Outside this loop, all
  //   lanes call max_of(n, p), the largest of p[0] … p[n - 1], and sum_of(n, f), which adds up f(j). expf() is e^x.
  for (int row : warp_stride(rows)) {
    const Reals p = scores + static_cast<std::size_t>(row) * stride;
    const int position = first + row % positions, keys = first + positions;
    // TODO 01.12: Turn the scores into probabilities: the softmax of scale·p[j] over the positions this one may see.
    //   `position` sees itself and those before it; set all others, up to `keys`, to zero. e^x overflows; e^(x - max x)
    //   does not and gives the same quotients. max_of(n, p) is the largest of p[0] … p[n - 1]; sum_of(n, f) adds up
    //   f(j). A warp shares the row: write p[j] in loops `for (int j : lanes(n))`, and call these two outside of them.
    const int seen = position + 1;
    const float largest = max_of(seen, p);
    for (int j : lanes(seen)) p[j] = expf(scale * (p[j] - largest));
    const float sum = sum_of(seen, [=](int j) { return p[j]; });
    for (int j : lanes(keys)) p[j] = j < seen ? p[j] / sum : 0.0f;
    // END TODO 01.12
  }
  // END WRITE 01.J
}

// Turns the gradient dp[rows, positions] of the probabilities p into the gradient of the scores, in place. A warp
// shares a row.
static __global__ void causal_softmax_backward(Reals dp, ConstReals p, float scale, int rows, int positions) {
  // WRITE 01.K: Turn each row of dp into the gradient of its scores: the derivative of p = softmax(scale·score).
  //   Rows are `positions` values long, in p and in dp; row i belongs to position i mod positions. The scores of the
  //   positions that it does not see have no effect, so their gradient is 0. Write these zeros, too, because the next
  //   matrix products read whole rows. Use warp_stride(), lanes() and sum_of() as in causal_softmax().
  for (int row : warp_stride(rows)) {
    const ConstReals probability = p + static_cast<std::size_t>(row) * positions;
    const Reals gradient = dp + static_cast<std::size_t>(row) * positions;
    const int seen = row % positions + 1;
    // TODO 01.13: Back through the softmax: the gradient of score j is scale·pⱼ·(dpⱼ - Σₖ pₖ·dpₖ), in place.
    //   The sum is over the row. An unseen position has probability zero: what is the gradient of its score? Write that
    //   too, because the matrix products that follow read whole rows. A warp shares the row: write gradient[j] in a
    //   loop `for (int j : lanes(n))`, and call sum_of(n, f) outside of it.
    const float dot = sum_of(seen, [=](int j) { return probability[j] * gradient[j]; });
    for (int j : lanes(positions)) gradient[j] = j < seen ? scale * probability[j] * (gradient[j] - dot) : 0.0f;
    // END TODO 01.13
  }
  // END WRITE 01.K
}

// ---- attention -----------------------------------------------------------------------------------------------------

// Turns the scores in values.p, of `count` positions from `first` on, into probabilities.
inline void softmax_of_scores(const Heads& heads, const AttentionValues& values, int samples, int first, int count,
                              cudaStream_t stream) {
  const int T = heads.positions, keys = first + count;
  const float scale = 1.0f / std::sqrt(static_cast<float>(heads.width));
  if (count == T) {
    const int rows = samples * heads.count * T;
    probe("01.J", "given to softmax_of_scores: scores", values.p, {samples, heads.count, T, T}, stream);
    launch(causal_softmax, rows * T, stream, values.p, scale, rows, T, 0, T);
    probe("01.12", "probabilities", values.p, {samples, heads.count, T, T}, stream);
  } else {
    for (int h = 0; h < heads.count; ++h) {
      Real* p = Head(heads, values, h, first).p.data;
      probe("01.J", "given to softmax_of_scores: scores of a new position", p, {1, keys}, stream);
      launch(causal_softmax, count * keys, stream, p, scale, count, count, first, T);
      probe("01.12", "probabilities of a new position", p, {1, keys}, stream);
    }
  }
}

// Returns `values` with the probabilities that multiply the values v: p itself or, with dropout, what that leaves of p.
// Then `dropped` must have room for as many values as p.
inline AttentionValues after_dropout(const Heads& heads, AttentionValues values, int samples, const Dropout& dropout,
                                     Real* dropped, cudaStream_t stream) {
  if (!dropout.active()) return values;
  const int T = heads.positions;
  probe("01.L", "given to after_dropout: probabilities", values.p, {samples, heads.count, T, T}, stream);
  dropout.apply(dropped, values.p, samples, heads.count * T * T, stream);
  values.p = dropped;
  return values;
}

// Turns gradients.p, the gradient of the probabilities that multiply v, into that of the scores q kᵀ. values.p must
// hold the probabilities before dropout.
inline void gradient_of_scores(const Heads& heads, const AttentionValues& values, const AttentionValues& gradients,
                               int samples, const Dropout& dropout, cudaStream_t stream) {
  const int T = heads.positions, rows = samples * heads.count * T;
  const float scale = 1.0f / std::sqrt(static_cast<float>(heads.width));
  probe("01.K", "given to gradient_of_scores: gradients", gradients.p, {samples, heads.count, T, T}, stream);
  if (dropout.active())
    probe("01.K", "given to gradient_of_scores: probabilities", values.p, {samples, heads.count, T, T}, stream);
  dropout.apply(gradients.p, gradients.p, samples, heads.count * T * T, stream);
  launch(causal_softmax_backward, rows * T, stream, gradients.p, values.p, scale, rows, T);
  probe("01.13", "gradient of the scores", gradients.p, {samples, heads.count, T, T}, stream);
}

// Computes context and p of `count` positions from `first` on, for `samples` samples. values.qkv must hold their
// queries, and the keys and values of all positions up to them. first = 0 and count = T is the forward pass of a batch;
// count = 1 is that of one new position.
inline void attention_forward(const Blas& blas, const Heads& heads, const AttentionValues& values, int samples,
                              int first, int count, const Dropout& dropout, Real* dropped) {
  const cudaStream_t stream = blas.stream();
  // WRITE 01.L: Compute the scores q kᵀ of each head in values.p, their softmax, and the context p v.
  //   Head(heads, values, h, first) has the matrices of head h: q, p and context from position `first` on, `count` rows
  //   of each; k and v from position 0 on. Of k and v, only the positions 0 to first + count - 1 are in use; of p, only
  //   as many columns. One batched_gemm() multiplies two of them, for all samples (docs/calls.md). The scores have no
  //   scale yet: softmax_of_scores() turns those of all heads into probabilities, scale included. after_dropout()
  //   returns AttentionValues with the p that multiplies v.
  const int d = heads.width, keys = first + count;
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, values, h, first);
    batched_gemm(blas, Op::as_is, Op::transposed, count, keys, d, 1, head.q, head.k, head.p, samples);
  }
  softmax_of_scores(heads, values, samples, first, count, stream);
  const AttentionValues looking = after_dropout(heads, values, samples, dropout, dropped, stream);
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, looking, h, first);
    batched_gemm(blas, Op::as_is, Op::as_is, count, d, keys, 1, head.p, head.v, head.context, samples);
  }
  // END WRITE 01.L
  const int features = heads.features();
  probe("01.L", "context", values.context + first * features, {samples * count, features}, stream);
}

// Computes gradients.qkv from gradients.context. gradients.p is scratch memory for the gradient of the probabilities.
inline void attention_backward(const Blas& blas, const Heads& heads, const AttentionValues& values,
                               const AttentionValues& gradients, int samples, const Dropout& dropout, Real* dropped) {
  const cudaStream_t stream = blas.stream();
  // WRITE 01.M: Go back through attention_forward(): from the gradient of the context to those of q, k and v.
  //   For head h, Head(heads, gradients, h) has the gradients: its context is given, its q, k and v are asked for, and
  //   its p is room for the gradient of the probabilities. Head(heads, values, h) has what the forward pass computed.
  //   gradient_of_scores() turns the gradients of the probabilities of all heads into those of the scores q kᵀ, with
  //   the scale in them. With dropout, the p that multiplied v is in the AttentionValues that after_dropout() returns.
  //   What the gradients held before does not count. One batched_gemm() computes each product, for all samples.
  const int T = heads.positions, d = heads.width;
  const AttentionValues looked = after_dropout(heads, values, samples, dropout, dropped, stream);
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, looked, h), g(heads, gradients, h);
    // TODO 01.14: Back through context = p v: the gradient g.p = dcontext vᵀ of the probabilities.
    //   It works as in a linear layer; dcontext is g.context. Use one batched_gemm(): its arguments are those of
    //   gemm() without beta, with a factor (here 1) before A and the number of samples at the end. p is [T, T], the
    //   others are [T, d].
    batched_gemm(blas, Op::as_is, Op::transposed, T, T, d, 1, g.context, head.v, g.p, samples);
    // END TODO 01.14
  }
  probe("01.14", "gradient of the probabilities", gradients.p, {samples, heads.count, T, T}, stream);
  gradient_of_scores(heads, values, gradients, samples, dropout, stream);
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, looked, h), g(heads, gradients, h);
    // TODO 01.15: The gradients g.q = dscores k, g.k = dscoresᵀ q and g.v = pᵀ dcontext.
    //   g.p now holds dscores, the gradient of the scores q kᵀ, with the scale in it; p is head.p, and dcontext is
    //   g.context. Use three batched_gemm().
    batched_gemm(blas, Op::as_is, Op::as_is, T, d, T, 1, g.p, head.k, g.q, samples);
    batched_gemm(blas, Op::transposed, Op::as_is, T, d, T, 1, g.p, head.q, g.k, samples);
    batched_gemm(blas, Op::transposed, Op::as_is, T, d, T, 1, head.p, g.context, g.v, samples);
    // END TODO 01.15
  }
  // END WRITE 01.M
  const int rows = samples * heads.positions;
  probe("01.15", "gradient of queries, keys and values", gradients.qkv, {rows, 3 * heads.features()}, stream);
}

}  // namespace workshop
