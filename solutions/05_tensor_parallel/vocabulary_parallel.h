// SPDX-License-Identifier: Apache-2.0
// The two ends of a language model, whose matrices have a row for each word, and its loss, with the vocabulary cut over
// the ranks of a tensor-parallel group (Shoeybi et al., 2019, section 3): rank r of P has the words from V·r/P on,
// rounded down, so that P need not divide V.
//
// The logits are the largest thing that a language model computes, and stay where they are: a rank has those of its
// own words, [rows, V/P], and what the loss needs of the others are three numbers a row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "01_single_gpu/rows.h"
#include "01_single_gpu/transformer.h"
#include "parallel_layer.h"

namespace workshop {

// The words that a rank has.
struct Words {
  int first, count;
  __host__ __device__ bool has(int word) const { return word >= first && word < first + count; }
};

inline Words words_of(const Parameter& p) { return {p.first_row(p.part), p.rows()}; }

// ---- embedding -----------------------------------------------------------------------------------------------------

// share[rows, width]: the vectors of the tokens that are among this rank's words, and zeros for the others.
static __global__ void embed_own_words(Reals share, const std::int32_t* tokens, ConstReals words, Words own, int rows,
                                       int width) {
  for_each_element(rows, width, [=](int i, int column) {
    const int word = tokens[i / width];
    float value = 0;
    // TODO 05.20: The value of this row's word in this column, if the word is one of this rank's, else zero.
    //   own.has(word) says whether it is. words[own.count, width] has the rows of words own.first, own.first + 1, ….
    if (own.has(word)) value = words[(word - own.first) * width + column];
    // END TODO 05.20
    share[i] = value;
  });
}

// y[rows, width] += positions[(first + row) mod context]
static __global__ void add_positions(Reals y, ConstReals positions, int first, int context, int rows, int width) {
  for_each_element(rows, width,
                   [=](int i, int column) { y[i] += positions[(first + i / width) % context * width + column]; });
}

// As chapter 01's embedding_backward(), for the words of this rank alone.
static __global__ void embedding_backward_of_own(Reals words_grad, Reals positions_grad, ConstReals dy,
                                                 const std::int32_t* tokens, Words own, int context, int rows,
                                                 int width) {
  for (int row = 0; row < rows; ++row) {
    const ConstReals gradient = dy + row * width;
    const Reals position = positions_grad + row % context * width;
    for (int column : grid_stride(width)) position[column] += gradient[column];
    if (!own.has(tokens[row])) continue;
    const Reals word = words_grad + (tokens[row] - own.first) * width;
    for (int column : grid_stride(width)) word[column] += gradient[column];
  }
}

// Reads token ids [samples, context]; returns this rank's rows of [samples·context, width].
class ParallelEmbedding : public ParallelLayer {
 public:
  ParallelEmbedding(const std::shared_ptr<const Layer>& whole, int context, int width,
                    const std::shared_ptr<TensorParallel>& cut)
      : ParallelLayer(whole, context, cut->own(context) * width, {Split::rows, Split::none}, cut),
        context_(context),
        width_(width),
        own_(words_of(parameters[0])) {}

  std::vector<int> saved() const override { return {out}; }
  int rows() const override { return context_; }
  void allocate(int max_samples, cudaStream_t) override { cut_->allocate(max_samples * context_ * width_); }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    const auto* tokens = static_cast<const std::int32_t*>(x);
    const int rows = samples * context_, own = cut_->own(rows);
    Real* y = saved.buffers[0].data();
    cut_->sum(y, rows, width_, stream, [&](Real* share) {
      launch(embed_own_words, rows * width_, stream, share, tokens, parameters[0].value, own_, rows, width_);
      probe("05.20", "vectors of this rank's words", share, {rows, width_}, stream);
    });
    launch(add_positions, own * width_, stream, y, parameters[1].value, cut_->first_own(rows), context_, own, width_);
    return y;
  }

  // The gradients of the positions are whole on every rank: dy is that of all rows.
  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    const int rows = g.samples * context_;
    const Real* dy = cut_->gather(g.dy, rows, width_, stream);
    if (g.accumulate == 0) CUDA_CHECK(cudaMemsetAsync(parameters[0].grad, 0, count() * sizeof(Real), stream));
    launch(embedding_backward_of_own, rows * width_, stream, parameters[0].grad, parameters[1].grad, dy,
           static_cast<const std::int32_t*>(saved.x), own_, context_, rows, width_);
    return nullptr;  // words have no gradient
  }

 private:
  int context_, width_;
  Words own_;
};

// ---- head ----------------------------------------------------------------------------------------------------------

// The logits [samples, context, V/P] of this rank's words: a norm on its own rows, and a column-parallel layer.
class ParallelHead : public ParallelLayer {
 public:
  ParallelHead(const std::shared_ptr<const Layer>& whole, int context, int width, Words own,
               const std::shared_ptr<TensorParallel>& cut)
      : ParallelLayer(whole, cut->own(context) * width, context * own.count, {Split::none, Split::none, Split::rows},
                      cut),
        context_(context),
        width_(width) {}

  // The norm's output, mean and rstd; logits.
  std::vector<int> saved() const override { return {in, reals_spanning(2 * cut_->own(context_)), out}; }
  int widest() const override { return std::max(in, out); }
  int rows() const override { return context_; }
  void allocate(int max_samples, cudaStream_t) override {
    cut_->allocate(max_samples * context_ * width_);
    norm_gradients_.allocate(*cut_, 2 * width_);
  }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    norm_ = norm_gradients_.redirected(norm_of("norm", parameters[0], parameters[1]), 0);
    linear_ = linear_part("head", parameters[2], {});
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    Real *normed = saved.buffers[0].data(), *logits = saved.buffers[2].data();
    const int rows = samples * context_;
    norm_forward(norm_, static_cast<const Real*>(x), normed, statistics(saved), cut_->own(rows), blas.stream());
    cut_->column_forward(blas, linear_, normed, logits, rows);
    return logits;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    const int rows = g.samples * context_;
    cut_->column_backward(g.blas, linear_, saved.buffers[0].data(), g.dy, g.spare, g.ones, rows, g.accumulate);
    Real* dx = g.dx != nullptr ? g.dx : g.dy;
    norm_backward(norm_, static_cast<const Real*>(saved.x), statistics(saved), g.spare, nullptr, dx, cut_->own(rows),
                  norm_gradients_.accumulate(g), stream);
    norm_gradients_.sum(*cut_, parameters[0].grad, g);
    return dx;
  }

 private:
  static RowStatistics statistics(const Saved& saved) { return statistics_in(saved.buffers[1]); }

  int context_, width_;
  LayerNorm norm_{};
  Linear linear_{};
  NormGradients norm_gradients_;
};

// ---- loss ----------------------------------------------------------------------------------------------------------

// maxima[rows] of this rank's logits z[rows, words].
static __global__ void row_maxima(float* maxima, ConstReals z, int rows, int words) {
  for (int row : grid_stride(rows)) maxima[row] = max_of(words, z + static_cast<std::size_t>(row) * words);
}

// sums[rows] of e^(z - maximum) over this rank's logits.
static __global__ void row_exponentials(float* sums, ConstReals z, const float* maxima, int rows, int words) {
  for (int row : grid_stride(rows)) {
    const ConstReals logits = z + static_cast<std::size_t>(row) * words;
    const float maximum = maxima[row];
    sums[row] = sum_of(words, [=](int j) { return expf(logits[j] - maximum); });
  }
}

// target_logits[rows]: the logits of the words that come next, as far as they are this rank's, and zeros for the
// others.
static __global__ void own_target_logits(float* target_logits, ConstReals z, const std::int32_t* targets, Words own,
                                         int rows) {
  for (int row : grid_stride(rows)) {
    const ConstReals logits = z + static_cast<std::size_t>(row) * own.count;
    const int target = targets[row];
    float logit = 0;
    // TODO 05.23: The logit of the word `target`, if the word is one of this rank's, else zero.
    //   logits[own.count] are those of words own.first, own.first + 1, ….
    if (own.has(target)) logit = logits[target - own.first];
    // END TODO 05.23
    target_logits[row] = logit;
  }
}

// Turns the sums into their logarithms, log Σ e^z over the whole vocabulary, and the logits of the targets into losses.
static __global__ void sharded_losses(float* losses, float* log_sums, const float* maxima, int rows) {
  for (int row : grid_stride(rows)) {
    log_sums[row] = maxima[row] + logf(log_sums[row]);
    losses[row] = log_sums[row] - losses[row];
  }
}

// The gradient of Σ losses / `tokens` by this rank's logits: chapter 01's, where 1 is taken off only on the rank that
// has the target.
static __global__ void sharded_cross_entropy_backward(Reals gradient, ConstReals z, const float* log_sums,
                                                      const std::int32_t* targets, Words own, int rows, int tokens) {
  for (int row : grid_stride(rows)) {
    const std::size_t begin = static_cast<std::size_t>(row) * own.count;
    const ConstReals logits = z + begin;
    const float log_sum = log_sums[row], factor = 1.0f / static_cast<float>(tokens);
    const Reals dz = gradient + begin;
    for (int j = 0; j < own.count; ++j) dz[j] = factor * expf(logits[j] - log_sum);
    if (own.has(targets[row])) dz[targets[row] - own.first] -= factor;
  }
}

// Chapter 01's cross entropy over logits of which each rank has those of its words. Every rank gets the whole loss, and
// the gradient by its own logits. Needs the targets of all rows on every rank. The group must live as long.
class ParallelCrossEntropy : public Loss {
 public:
  ParallelCrossEntropy(int context, Words own, const Group& group) : context_(context), own_(own), group_(group) {}

  int scratch() const override { return 3 * context_; }

  void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
           Real* gradient, float* scratch) const override {
    const cudaStream_t stream = blas.stream();
    const ncclComm_t comm = group_.comm();
    const auto* targets = static_cast<const std::int32_t*>(y);
    const int rows = samples * context_, tokens = samples_of_step * context_, logits = rows * own_.count;
    float *maxima = scratch, *sums = maxima + rows, *losses = sums + rows;

    launch(row_maxima, logits, stream, maxima, output, rows, own_.count);
    // TODO 05.21: The largest logit of each row, over the words of all ranks, in place.
    //   maxima[rows] has the largest of this rank's. One NCCL call over comm, on `stream`: with which reduction? It
    //   comes before the exponentials: those of two ranks can be added up only if the same number was taken off above
    //   them.
    NCCL_CHECK(ncclAllReduce(maxima, maxima, rows, ncclFloat, ncclMax, comm, stream));
    // END TODO 05.21
    probe("05.21", "largest logits of all ranks", maxima, {rows}, stream);

    launch(row_exponentials, logits, stream, sums, output, maxima, rows, own_.count);
    // TODO 05.22: Add the ranks' sums of exponentials up, in place.
    //   One NCCL call, for sums[rows].
    NCCL_CHECK(ncclAllReduce(sums, sums, rows, ncclFloat, ncclSum, comm, stream));
    // END TODO 05.22
    probe("05.22", "sums of exponentials of all ranks", sums, {rows}, stream);

    launch(own_target_logits, rows, stream, losses, output, targets, own_, rows);
    probe("05.23", "logits of the targets that are this rank's", losses, {rows}, stream);
    // TODO 05.24: Give every rank the logits of all targets, in place, in losses[rows].
    //   Each of them is on one rank, and zero on the others. One NCCL call.
    NCCL_CHECK(ncclAllReduce(losses, losses, rows, ncclFloat, ncclSum, comm, stream));
    // END TODO 05.24
    probe("05.24", "logits of all targets", losses, {rows}, stream);

    launch(sharded_losses, rows, stream, losses, sums, maxima, rows);
    launch(add_sum, 1, stream, loss, losses, 1.0f / static_cast<float>(tokens), rows);
    launch(sharded_cross_entropy_backward, logits, stream, gradient, output, sums, targets, own_, rows, tokens);
  }

 private:
  int context_;
  Words own_;
  const Group& group_;
};

}  // namespace workshop
