// SPDX-License-Identifier: Apache-2.0
// Attention in blocks of keys (FlashAttention: Dao et al., 2022), forward and backward by hand. It computes what
// attention.h computes without ever holding a whole row of scores: of a head's T·T scores, only those of C keys exist
// at a time. The softmax of a row grows block by block. For the backward pass, it keeps one number per row, the
// logarithm of the sum of e^score. From it, the probabilities of any block can be computed again: p = e^(score -
// log_sum).
//
// The letters and the matrices of a head are those of attention.h. Heads are computed one after the other, all samples
// at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "01_single_gpu/dropout.h"
#include "01_single_gpu/heads.h"
#include "common/record/record.h"
#include "model/blas.h"
#include "model/rows.h"

namespace workshop {

// The scores of `queries` positions, from `first` on, for `keys` keys, from `begin` on, of one head: [samples·queries,
// keys]. Each of these positions sees at least one of the keys.
struct ScoreBlock {
  int first, queries, begin, keys;
  int positions;  // T
  int ahead = 0;  // position i sees the keys 0 to i + ahead; not 0 if queries and keys are parts of a longer sequence

  __device__ int position(int row) const { return first + row % queries; }
  // Returns how many of the block's keys the row's position sees: by default, itself and those before it.
  __device__ int seen(int row) const {
    const int until = position(row) + ahead - begin + 1;
    return until < keys ? until : keys;
  }
  // Returns the row in arrays with one row for each position of each sample, [samples·T].
  __device__ int row_of_all(int row) const { return row / queries * positions + position(row); }
  // Returns the same in arrays with such rows for each of `heads` heads, [samples, heads, T], from the head's first on.
  __device__ int row_of_head(int row, int heads) const { return row / queries * heads * positions + position(row); }
};

// Dropout of one head's probabilities.
struct BlockDropout {
  bool active = false;
  DropoutMask mask{};
  std::int64_t first = 0;  // the place in a sample of the head's probability of position 0 and key 0
  int positions = 0;       // T

  __device__ float factor(const ScoreBlock& block, int row, int key) const {
    const std::int64_t at = std::int64_t{1} * block.position(row) * positions + block.begin + key;
    return mask.factor(row / block.queries, first + at);
  }
};

// ---- kernels -------------------------------------------------------------------------------------------------------

// Takes a block of scores into the softmax of each row: turns each score into p = e^(scale·score - y), and updates the
// numbers of the row, y = largest[row_of_all(row)] and the sum of all p so far in `sums`. `context` [samples·T, width]
// is the sum of p·v over the earlier blocks, with an older y: it is corrected, too. A warp shares a row.
static __global__ void softmax_of_block(Reals scores, float* context, float* largest, float* sums, float scale,
                                        ScoreBlock block, int rows, int width, BlockDropout dropout) {
  // WRITE 01.N: Extend the softmax of each row by this block's scores.
  //   Row i has block.keys scores, from scores + i·block.keys on; its position sees the first block.seen(i). Replace
  //   them by e^(scale·score - y), where y is the largest scale·score of this and all earlier blocks; the others become
  //   0. Keep y in largest[] and the sum of all these powers, of this and all earlier blocks, in sums[], at place
  //   block.row_of_all(i). In the first block (block.begin is 0), nothing has written largest[], sums[] or the row's
  //   context yet, the `width` floats from context + place·width on. Later, sums[] and this context hold sums with an
  //   older y: multiply them by what makes them right. Last, with dropout.active, multiply each power, but not their
  //   sum, by dropout.factor(block, i, j). Use warp_stride(), lanes(), max_of() and sum_of() as in causal_softmax().
  //   All lanes read and write the row's numbers in largest[] and sums[]: call sync_lanes() in between.
  for (int row : warp_stride(rows)) {
    const Reals p = scores + static_cast<std::ptrdiff_t>(row) * block.keys;
    const int seen = block.seen(row), at = block.row_of_all(row);
    const bool first = block.begin == 0;
    const float largest_before = first ? -INFINITY : largest[at], sum_before = first ? 0.0f : sums[at];
    float now = 0, sum = 0, correction = 0;
    // TODO 01.26: Turn the scores p[j] into powers, and compute `now`, `correction` and `sum`.
    //   `now` is the largest scale·p[j] of the keys that the position sees, in this block and in all earlier ones. That
    //   of the earlier ones is largest_before, which is -INFINITY in the first block. Then p[j] becomes
    //   e^(scale·p[j] - now), or 0 for the keys from `seen` to block.keys - 1, which the position does not see. The
    //   powers of earlier blocks, whose sum is sum_before, were computed with largest_before: `correction` is the
    //   factor that makes them right. `sum` is the sum of all powers so far.
    now = fmaxf(largest_before, scale * max_of(seen, p));
    for (int j : lanes(seen)) p[j] = expf(scale * p[j] - now);
    for (int j : lanes(block.keys)) {
      if (j >= seen) p[j] = 0;
    }
    correction = expf(largest_before - now);
    sum = sum_before * correction + sum_of(seen, [=](int j) { return p[j]; });
    // END TODO 01.26
    sync_lanes();  // all lanes have read largest[at] and sums[at]
    largest[at] = now;
    sums[at] = sum;
    float* of_context = context + static_cast<std::ptrdiff_t>(at) * width;
    if (!first) {
      for (int j : lanes(width)) of_context[j] *= correction;
    }
    if (dropout.active) {
      for (int j : lanes(seen)) p[j] = p[j] * dropout.factor(block, row, j);
    }
  }
  // END WRITE 01.N
}

// Completes the rows of `all`, the scores of all keys: writes the context, `stride` values per position, from the sum
// of p·v, and the logarithm of the sum of e^(scale·score) to log_sums[sample, h, position]. A warp shares a row.
static __global__ void complete_softmax(Reals context, float* log_sums, const float* sum_of_values,
                                        const float* largest, const float* sums, ScoreBlock all, int rows, int width,
                                        int stride, int heads) {
  for (int row : warp_stride(rows)) {
    const int at = all.row_of_all(row);
    const Reals out = context + static_cast<std::ptrdiff_t>(at) * stride;
    const float* values = sum_of_values + static_cast<std::ptrdiff_t>(at) * width;
    // TODO 01.27: Write the row's context to out[j], and the logarithm of its sum to log_sums[…].
    //   values[width] is the sum of p·v over all keys, with p = e^(scale·score - largest[at]); the sum of all these p
    //   is sums[at]. The logarithm of the sum of e^(scale·score) must not overflow. Its place is all.row_of_head(row,
    //   heads).
    for (int j : lanes(width)) out[j] = values[j] / sums[at];
    log_sums[all.row_of_head(row, heads)] = largest[at] + logf(sums[at]);
    // END TODO 01.27
  }
}

// For each position, the sum of dcontext·context over the head's width: dots[samples·T]. A warp shares a row.
static __global__ void dots_of_rows(float* dots, ConstReals dcontext, ConstReals context, int rows, int width,
                                    int stride) {
  for (int row : warp_stride(rows)) {
    const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(row) * stride;
    dots[row] = sum_of(width, [=](int j) { return dcontext[begin + j] * context[begin + j]; });
  }
}

// Turns a block of scores and the gradients dp of its probabilities into what the products of the backward pass need,
// in place: `scores` into the probabilities that multiplied v, dp into the gradient of the scores. A warp shares a row.
static __global__ void gradient_of_block(Reals scores, Reals dp, const float* log_sums, const float* dots, float scale,
                                         ScoreBlock block, int rows, int heads, BlockDropout dropout) {
  // WRITE 01.O: Turn the block's scores into probabilities, and dp into the gradients of the scores.
  //   Row i has block.keys values in `scores` and in dp; its position sees the first block.seen(i), and both become 0
  //   for the others. The probability of a score is e^(scale·score - log_sum); the row's log_sum is at
  //   log_sums[block.row_of_head(i, heads)]. The gradient of a score is scale·p·(dp - D), where D is the sum of p·dp
  //   over the whole row. This block has only a part of that sum; dots[block.row_of_all(i)] has all of it. With
  //   dropout.active, dp is the gradient of the probability after dropout: multiply it by dropout.factor(block, i, j)
  //   first. The result in `scores` is p times this factor, because that is what multiplied v.
  for (int row : warp_stride(rows)) {
    const Reals p = scores + static_cast<std::ptrdiff_t>(row) * block.keys;
    const Reals gradient = dp + static_cast<std::ptrdiff_t>(row) * block.keys;
    const int seen = block.seen(row);
    const float log_sum = log_sums[block.row_of_head(row, heads)];
    const float dot = dots[block.row_of_all(row)];
    for (int j : lanes(seen)) {
      const float kept = dropout.active ? dropout.factor(block, row, j) : 1.0f;
      float probability = 0, dscore = 0;
      // TODO 01.28: Compute `probability`, and `dscore`, the gradient of the score p[j].
      //   p[j] still is the score, without the scale; with log_sum, it gives the probability. The gradient is
      //   scale·probability·(dp - D), where D is the sum of probability·dp over the whole row. `dot` holds D, computed
      //   as the sum of dcontext·context, which is the same number. dp is gradient[j] times `kept`, the factor by which
      //   dropout has multiplied the probability.
      probability = expf(scale * p[j] - log_sum);
      dscore = scale * probability * (gradient[j] * kept - dot);
      // END TODO 01.28
      p[j] = probability * kept;
      gradient[j] = dscore;
    }
    for (int j : lanes(block.keys)) {
      if (j >= seen) p[j] = gradient[j] = 0;
    }
  }
  // END WRITE 01.O
}

// Copies sums, [rows, width], to rows that are `stride` values apart, and rounds them to Reals.
static __global__ void copy_rows(Reals to, const float* from, int rows, int width, int stride) {
  for (int row : warp_stride(rows)) {
    for (int j : lanes(width)) to[static_cast<std::ptrdiff_t>(row) * stride + j] = from[row * width + j];
  }
}

// ---- attention -----------------------------------------------------------------------------------------------------

// The memory in which the blocks of one head are computed; all heads of a layer share it.
struct BlockwiseRoom {
  // Returns the Reals per sample that it takes.
  static int size(const Heads& heads) {
    const int T = heads.positions;
    return 2 * T * heads.block + reals_spanning(T * (heads.width + 2));
  }
  BlockwiseRoom(const Heads& heads, Real* room, int samples) {
    const std::ptrdiff_t rows = std::ptrdiff_t{1} * samples * heads.positions;
    scores = room;
    dp = scores + rows * heads.block;
    largest = reinterpret_cast<float*>(dp + rows * heads.block);
    sums = largest + rows;
    accumulated = {sums + rows, heads.width, static_cast<long long>(heads.positions) * heads.width};
  }
  Matrices of(Real* block_of, const ScoreBlock& block) const {
    return {block_of, block.keys, static_cast<long long>(block.queries) * block.keys};
  }
  Real *scores, *dp;              // a block of scores or probabilities, and of their gradients
  float *largest, *sums;          // [samples·T]; sums: in the backward pass, those of dcontext·context
  MatricesOf<float> accumulated;  // [samples, T, width]: the context, or the gradient of q, before it is complete
  int ahead = 0;                  // of all blocks (ScoreBlock)
};

// The mask of head h, if dropout is active.
inline BlockDropout dropout_of_head(const Heads& heads, const Dropout& dropout, int h) {
  if (!dropout.active()) return {};
  const std::int64_t of_head = std::int64_t{1} * heads.positions * heads.positions;
  return {true, dropout.mask(heads.count * of_head), dropout.first() + h * of_head, heads.positions};
}

// Takes the scores in in.scores into the softmax of the block's rows: softmax_of_block().
inline void take_into_softmax(const Heads& heads, const BlockwiseRoom& in, ScoreBlock block, int samples,
                              const BlockDropout& dropout, cudaStream_t stream) {
  const int rows = samples * block.queries, all = samples * heads.positions, d = heads.width;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  block.ahead = in.ahead;
  probe("01.25", "scores of a block", in.scores, {rows, block.keys}, stream);
  launch(softmax_of_block, rows * block.keys, stream, in.scores, in.accumulated.data, in.largest, in.sums, scale, block,
         rows, d, dropout);
  probe("01.26", "powers of a block", in.scores, {rows, block.keys}, stream);
  probe("01.26", "sums of the powers so far", in.sums, {all}, stream);
  probe("01.26", "corrected context of earlier blocks", in.accumulated.data, {all, d}, stream);
}

// Sums p·v of one head in in.accumulated, for the positions `first` to end - 1 and the keys 0 to end - 1, heads.block
// keys at a time. p = e^(scale·score - y); in.largest has each row's y, in.sums the sum of its p.
inline void sum_over_blocks(const Blas& blas, const Heads& heads, const BlockwiseRoom& in, const Head& head,
                            int samples, int first, int end, const BlockDropout& masked) {
  const cudaStream_t stream = blas.stream();
  const int d = heads.width, T = heads.positions, count = end - first;
  // WRITE 01.P: For each block of keys, from the first to the last: its scores, and its part of the sum of p·v.
  //   The keys are those of the positions 0 to end - 1, heads.block at a time; the last block may have fewer. The
  //   queries are the `count` positions from `first` to end - 1, but only those that see at least one key of the block:
  //   ScoreBlock{first, queries, begin, keys, T}. Position i sees the keys 0 to i + in.ahead; in.ahead is 0 in this
  //   chapter, but not in chapter 08, which cuts the sequence. head.q, head.k and head.v begin at position 0;
  //   m.from_row(i) is m from row i on. in.of(in.scores, block) is where the scores go, which a batched_gemm() computes
  //   without the scale. take_into_softmax() turns them into powers. Then add_batched_gemm() adds the product of the
  //   powers and v to the rows of in.accumulated: with beta = 0 in the first block, because nothing has written them.
  for (int begin = 0; begin < end; begin += heads.block) {
    ScoreBlock block{first, count, begin, std::min(heads.block, end - begin), T};
    // TODO 01.25: Set block.first and block.queries: the positions that see at least one key of this block.
    //   They are consecutive positions out of `first` to end - 1. Position i sees the keys 0 to i + in.ahead. in.ahead
    //   is 0 in this chapter, but not in chapter 08, which cuts the sequence.
    block.first = std::max(first, begin - in.ahead);
    block.queries = end - block.first;
    // END TODO 01.25
    const Matrices scores = in.of(in.scores, block);
    batched_gemm(blas, Op::as_is, Op::transposed, block.queries, block.keys, d, 1, head.q.from_row(block.first),
                 head.k.from_row(begin), scores, samples);
    take_into_softmax(heads, in, block, samples, masked, stream);
    add_batched_gemm(blas, Op::as_is, Op::as_is, block.queries, d, block.keys, scores, head.v.from_row(begin),
                     begin > 0 ? 1.0f : 0.0f, in.accumulated.from_row(block.first), samples);
  }
  // END WRITE 01.P
  probe("01.P", "sum of powers times v", in.accumulated.data, {samples * T, d}, stream);
}

// As attention_forward(), with heads.block keys at a time. Keeps values.log_sums() instead of values.p. `room` has
// samples·BlockwiseRoom::size(heads) Reals.
inline void blockwise_forward(const Blas& blas, const Heads& heads, const AttentionValues& values, int samples,
                              int first, int count, const Dropout& dropout, Real* room) {
  const cudaStream_t stream = blas.stream();
  const int d = heads.width, T = heads.positions, features = heads.features();
  const BlockwiseRoom in(heads, room, samples);
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, values, h);
    sum_over_blocks(blas, heads, in, head, samples, first, first + count, dropout_of_head(heads, dropout, h));
    const ScoreBlock all{first, count, 0, first + count, T};
    launch(complete_softmax, samples * count * d, stream, head.context.data, values.log_sums() + h * T,
           in.accumulated.data, in.largest, in.sums, all, samples * count, d, features, heads.count);
  }
  if (count == T) {
    probe("01.27", "context", values.context, {samples * T, features}, stream);
    probe("01.27", "logarithms of the sums", values.log_sums(), {samples, heads.count, T}, stream);
  } else {
    probe("01.27", "context of a new position", values.context + first * features, {count, features}, stream);
  }
}

// Takes the block's scores in in.scores and the gradients of its probabilities in in.dp back through the softmax:
// gradient_of_block(). log_sums begins at the head's first one.
inline void take_gradient(const Heads& heads, const BlockwiseRoom& in, ScoreBlock block, const float* log_sums,
                          int samples, const BlockDropout& dropout, cudaStream_t stream) {
  const int rows = samples * block.queries;
  const float scale = 1.0f / std::sqrt(static_cast<float>(heads.width));
  block.ahead = in.ahead;
  probe("01.Q", "given to take_gradient: scores", in.scores, {rows, block.keys}, stream);
  probe("01.Q", "given to take_gradient: gradients of the probabilities", in.dp, {rows, block.keys}, stream);
  launch(gradient_of_block, rows * block.keys, stream, in.scores, in.dp, log_sums, in.sums, scale, block, rows,
         heads.count, dropout);
  probe("01.28", "probabilities of a block", in.scores, {rows, block.keys}, stream);
  probe("01.28", "gradient of the scores of a block", in.dp, {rows, block.keys}, stream);
}

// Computes the gradients of one head: those of k and v in g.k and g.v, that of q in in.accumulated. in.sums must hold
// the sums of dcontext·context; log_sums begins at the head's first one.
inline void gradients_of_blocks(const Blas& blas, const Heads& heads, const BlockwiseRoom& in, const Head& head,
                                const Head& g, const float* log_sums, int samples, const BlockDropout& masked) {
  const cudaStream_t stream = blas.stream();
  const int d = heads.width, T = heads.positions;
  // WRITE 01.Q: For each block of keys, in order: the gradients of its k and v, and its part of the gradient of q.
  //   A block has heads.block keys, from `begin` on, or fewer if it is the last. Position i sees the keys 0 to i +
  //   in.ahead; in.ahead is 0, except in chapter 08. So only the positions from first = max(0, begin - in.ahead) on see
  //   the block: ScoreBlock{first, T - first, begin, keys, T}. Two batched_gemm() compute the block's scores again,
  //   without the scale, into in.of(in.scores, block), and the gradients dp = dcontext vᵀ of its probabilities into
  //   in.of(in.dp, block); dcontext is g.context. All matrices of `head` and `g` begin at position 0; m.from_row(i) is
  //   m from row i on. take_gradient() turns scores into the probabilities that multiplied v, and dp into the gradients
  //   of the scores, with the scale in them. Then compute the rows of g.k and g.v that belong to the block with
  //   batched_gemm(). The gradient of q is a sum over all blocks: add the block's part to in.accumulated with
  //   add_batched_gemm(), with beta = 0 in the first block.
  for (int begin = 0; begin < T; begin += heads.block) {
    const int first = std::max(0, begin - in.ahead);  // who sees the block
    const ScoreBlock block{first, T - first, begin, std::min(heads.block, T - begin), T};
    const Matrices p = in.of(in.scores, block), dp = in.of(in.dp, block);
    const Matrices q = head.q.from_row(first), k = head.k.from_row(begin), dcontext = g.context.from_row(first);
    batched_gemm(blas, Op::as_is, Op::transposed, block.queries, block.keys, d, 1, q, k, p, samples);
    batched_gemm(blas, Op::as_is, Op::transposed, block.queries, block.keys, d, 1, dcontext, head.v.from_row(begin), dp,
                 samples);
    take_gradient(heads, in, block, log_sums, samples, masked, stream);
    // TODO 01.29: The gradients of the block's k and v, and its part of the gradient of q, a sum over all blocks.
    //   p now holds the probabilities [block.queries, block.keys], dp the gradients of the scores, with the scale in
    //   them. With two batched_gemm(), write the gradients of this block's keys and values to g.k.from_row(begin) and
    //   g.v.from_row(begin). With add_batched_gemm(), add its part of q's gradient to the rows of in.accumulated, from
    //   row `first` on: which block sets these rows (beta 0), and which add to them (beta 1)?
    batched_gemm(blas, Op::transposed, Op::as_is, block.keys, d, block.queries, 1, dp, q, g.k.from_row(begin), samples);
    batched_gemm(blas, Op::transposed, Op::as_is, block.keys, d, block.queries, 1, p, dcontext, g.v.from_row(begin),
                 samples);
    add_batched_gemm(blas, Op::as_is, Op::as_is, block.queries, d, block.keys, dp, k, begin > 0 ? 1.0f : 0.0f,
                     in.accumulated.from_row(first), samples);
    // END TODO 01.29
  }
  // END WRITE 01.Q
}

// As attention_backward(), with heads.block keys at a time; `room` as in blockwise_forward(). gradients.p is not used.
inline void blockwise_backward(const Blas& blas, const Heads& heads, const AttentionValues& values,
                               const AttentionValues& gradients, int samples, const Dropout& dropout, Real* room) {
  const cudaStream_t stream = blas.stream();
  const int d = heads.width, T = heads.positions, features = heads.features();
  const BlockwiseRoom in(heads, room, samples);
  for (int h = 0; h < heads.count; ++h) {
    const Head head(heads, values, h), g(heads, gradients, h);
    launch(dots_of_rows, samples * T * d, stream, in.sums, g.context.data, head.context.data, samples * T, d, features);
    gradients_of_blocks(blas, heads, in, head, g, values.log_sums() + h * T, samples,
                        dropout_of_head(heads, dropout, h));
    launch(copy_rows, samples * T * d, stream, g.q.data, in.accumulated.data, samples * T, d, 3 * features);
  }
  probe("01.29", "gradient of queries, keys and values", gradients.qkv, {samples * T, 3 * features}, stream);
}

}  // namespace workshop
