// SPDX-License-Identifier: Apache-2.0
// Embedding, head and loss of a language model, with the vocabulary cut over the ranks of a tensor-parallel group
// (Shoeybi et al., 2019, section 3). The matrices of the embedding and the head have a row for each word. Rank r of P
// has the words from V·r/P on, rounded down, so P need not divide V.
//
// The logits are the largest tensor that a language model computes. They stay where they are: a rank has those of its
// own words, [rows, V/P], and for the loss the ranks exchange only three numbers per row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "01_single_gpu/embedding.h"
#include "05_tensor_parallel/parallel_transformer.h"
#include "model/rows.h"

namespace workshop {

// The words of the vocabulary that belong to one rank.
struct VocabRange {
  int first, count;
  __host__ __device__ bool has(int word) const { return word >= first && word < first + count; }
};

inline VocabRange vocab_range(int vocabulary, const Group& group) {
  const auto first = [&](int rank) { return static_cast<int>(first_row(vocabulary, rank, group.size())); };
  return {first(group.rank()), first(group.rank() + 1) - first(group.rank())};
}

// ---- embedding -----------------------------------------------------------------------------------------------------

// Writes to share[rows, width] the vectors of the tokens that are among this rank's words, and zeros for all others.
static __global__ void embed_vocab_range(Reals share, const std::int32_t* tokens, ConstReals words, VocabRange vocab,
                                         int rows, int width) {
  // WRITE 05.M: Write all elements of `share`.
  //   for_each_element(rows, width, [=](int i, int column) { … }) is called by all threads. It calls the function for
  //   each element i of a matrix [rows, width]; `column` is its column. words[vocab.count, width] has the vectors of
  //   the words vocab.first, vocab.first + 1, …; tokens[rows] has words of the whole vocabulary.
  for_each_element(rows, width, [=](int i, int column) {
    const int word = tokens[i / width];
    float value = 0;
    // TODO 05.12: Set `value` to this column of the word's vector, if the word belongs to this rank.
    //   vocab.has(word) says whether it does. If not, leave 0. The rows of words[vocab.count, width] are the vectors of
    //   the words vocab.first, vocab.first + 1, ….
    if (vocab.has(word)) value = words[(word - vocab.first) * width + column];
    // END TODO 05.12
    share[i] = value;
  });
  // END WRITE 05.M
}

// y[rows, width] += positions[at[(first + row) mod at.count]]
static __global__ void add_positions(Reals y, ConstReals positions, int first, Positions at, int rows, int width) {
  for_each_element(rows, width,
                   [=](int i, int column) { y[i] += positions[at[(first + i / width) % at.count] * width + column]; });
}

// Reads token ids [samples, context.count]; returns this rank's rows of [samples·context.count, width]. The embedding
// is a product of one-hot rows with the words' vectors, which are cut like the weight of a row-parallel layer: so g
// follows it.
class ParallelEmbedding : public ParallelLayer {
 public:
  ParallelEmbedding(const std::shared_ptr<const Layer>& whole, Positions context, int width, VocabRange vocab,
                    const std::shared_ptr<TensorParallelContext>& tp)
      : ParallelLayer({whole}, context.count, tp->local_rows(context.count) * width, {Cut::rows, Cut::none},
                      tp->group()),
        tp_(tp),
        context_(context),
        width_(width),
        vocab_(vocab) {}

  std::vector<int> saved() const override { return {out}; }
  int rows() const override { return context_.count; }
  void allocate(int max_samples, cudaStream_t) override {
    tp_->allocate(max_samples * context_.count * width_);
    links_ = DeviceBuffer<int>(2 * max_samples * context_.count, Memory::data);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    const auto* tokens = static_cast<const std::int32_t*>(x);
    const int rows = samples * context_.count, local = tp_->local_rows(rows);
    Real *y = saved.buffers[0].data(), *share = tp_->share_of(y);
    launch(embed_vocab_range, rows * width_, stream, share, tokens, parameters[0].value, vocab_, rows, width_);
    probe("05.12", "vectors of this rank's words", share, {rows, width_}, stream);
    ReduceFromTensorParallel(*tp_).forward(share, y, rows, width_, stream);
    launch(add_positions, local * width_, stream, y, parameters[1].value, tp_->first_local_row(rows), context_, local,
           width_);
    return y;
  }

  // The gradients of the positions are whole on every rank, because g's backward pass returns dy of all rows.
  Real* backward(const Saved& saved, const Gradients& gradients) override {
    const cudaStream_t stream = gradients.blas.stream();
    const Range range({"backward ", name}, stream);
    const int rows = gradients.samples * context_.count;
    const auto* tokens = static_cast<const std::int32_t*>(saved.x);
    Real *words = parameters[0].grad, *positions = parameters[1].grad;  // one behind the other, count() in all
    const SameWord same{links_.data(), links_.data() + rows};
    // WRITE 05.N: Compute the gradients of this rank's words and of the positions.
    //   gradients.dy is the gradient of this rank's own rows of the output. The backward pass of g,
    //   ReduceFromTensorParallel(*tp_), turns it into the gradient of this rank's share. Chapter 01's
    //   embedding_backward() adds to the gradients of the positions, and to those of vocab_.count words, from
    //   vocab_.first on; `same` is its scratch memory. In a step's first micro-batch, gradients.accumulate is 0, and
    //   what is left from the step before must not count. Everything is on `stream`.
    const ReduceFromTensorParallel g(*tp_);
    const Real* dy = g.backward(gradients.dy, rows, width_, stream);
    if (gradients.accumulate == 0) CUDA_CHECK(cudaMemsetAsync(words, 0, count() * sizeof(Real), stream));
    embedding_backward(words, positions, dy, tokens, same, vocab_.first, vocab_.count, context_, rows, width_, stream);
    // END WRITE 05.N
    probe("05.N", "gradients of this rank's words", words, {vocab_.count, width_}, stream);
    probe("05.N", "gradients of the positions", positions, {context_.whole, width_}, stream);
    return nullptr;  // token ids have no gradient
  }

 private:
  std::shared_ptr<TensorParallelContext> tp_;
  Positions context_;  // of each sample
  int width_;
  VocabRange vocab_;
  DeviceBuffer<int> links_;  // SameWord's two arrays
};

// ---- head ----------------------------------------------------------------------------------------------------------

// Computes the logits [samples, context, V/P] of this rank's words: a norm on its own rows, and a column-parallel
// layer.
class ParallelHead : public ParallelLayer {
 public:
  ParallelHead(const std::shared_ptr<const Layer>& whole, int context, int width, VocabRange vocab,
               const std::shared_ptr<TensorParallelContext>& tp)
      : ParallelLayer({whole}, tp->local_rows(context) * width, context * vocab.count,
                      {Cut::none, Cut::none, Cut::rows}, tp->group()),
        tp_(tp),
        context_(context),
        width_(width) {}

  // The norm's output; its mean and 1/√variance; the logits.
  std::vector<int> saved() const override { return {in, reals_spanning(2 * tp_->local_rows(context_)), out}; }
  int widest() const override { return std::max(in, out); }
  int rows() const override { return context_; }
  void allocate(int max_samples, cudaStream_t) override {
    tp_->allocate(max_samples * context_ * width_);
    norm_gradients_.allocate(*tp_, 2 * width_);
  }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    norm_ = norm_gradients_.redirected(norm_of("norm", parameters[0], parameters[1]), 0);
    linear_ = linear_of("head", parameters[2], {});
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    Real *normed = saved.buffers[0].data(), *logits = saved.buffers[2].data();
    const int rows = samples * context_;
    norm_forward(norm_, static_cast<const Real*>(x), normed, statistics(saved), tp_->local_rows(rows), blas.stream());
    column_parallel_forward(*tp_, blas, linear_, normed, logits, rows);
    return logits;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    const int rows = g.samples * context_;
    column_parallel_backward(*tp_, g.blas, linear_, saved.buffers[0].data(), g.dy, g.spare, g.ones, rows, g.accumulate);
    Real* dx = g.dx != nullptr ? g.dx : g.dy;
    norm_backward(norm_, static_cast<const Real*>(saved.x), statistics(saved), g.spare, nullptr, dx,
                  tp_->local_rows(rows), norm_gradients_.accumulate(g), stream);
    norm_gradients_.sum(*tp_, parameters[0].grad, g);
    return dx;
  }

 private:
  static RowStatistics statistics(const Saved& saved) { return statistics_in(saved.buffers[1]); }

  std::shared_ptr<TensorParallelContext> tp_;
  int context_, width_;
  LayerNorm norm_{};
  Linear linear_{};
  NormGradients norm_gradients_;
};

// ---- loss ----------------------------------------------------------------------------------------------------------

// Computes maxima[rows], the largest of this rank's logits z[rows, words] in each row. A warp shares a row,
// as in chapter 01.
static __global__ void row_maxima(float* maxima, ConstReals z, int rows, int words) {
  for (int row : warp_stride(rows)) maxima[row] = max_of(words, z + static_cast<std::size_t>(row) * words);
}

// Computes sums[rows] of e^(z - maximum) over this rank's logits.
static __global__ void row_exponentials(float* sums, ConstReals z, const float* maxima, int rows, int words) {
  for (int row : warp_stride(rows)) {
    const ConstReals logits = z + static_cast<std::size_t>(row) * words;
    const float maximum = maxima[row];
    sums[row] = sum_of(words, [=](int j) { return expf(logits[j] - maximum); });
  }
}

// Writes to target_logits[rows] the logits of the target words that belong to this rank, and zeros for all others.
static __global__ void local_target_logits(float* target_logits, ConstReals z, const std::int32_t* targets,
                                           VocabRange vocab, int rows) {
  for (int row : grid_stride(rows)) {
    const ConstReals logits = z + static_cast<std::size_t>(row) * vocab.count;
    target_logits[row] = vocab.has(targets[row]) ? static_cast<float>(logits[targets[row] - vocab.first]) : 0.0f;
  }
}

// Turns log_sums, the sums of e^(z - maximum), into log Σ e^z over the whole vocabulary, and `losses`, the logits of
// the targets, into losses.
static __global__ void sharded_losses(float* losses, float* log_sums, const float* maxima, int rows) {
  for (int row : grid_stride(rows)) {
    log_sums[row] = maxima[row] + logf(log_sums[row]);
    losses[row] = log_sums[row] - losses[row];
  }
}

// Computes the gradient of Σ losses / `tokens` with respect to this rank's logits, as in chapter 01. Only the rank that
// has the target subtracts 1.
static __global__ void sharded_cross_entropy_backward(Reals gradient, ConstReals z, const float* log_sums,
                                                      const std::int32_t* targets, VocabRange vocab, int rows,
                                                      int tokens) {
  for (int row : warp_stride(rows)) {
    const std::size_t begin = static_cast<std::size_t>(row) * vocab.count;
    const ConstReals logits = z + begin;
    const float log_sum = log_sums[row], factor = 1.0f / static_cast<float>(tokens);
    const Reals dz = gradient + begin;
    const int target = targets[row] - vocab.first;  // none of these words if another rank has it
    for (int j : lanes(vocab.count)) dz[j] = factor * (expf(logits[j] - log_sum) - (j == target ? 1.0f : 0.0f));
  }
}

// Chapter 01's cross entropy, where each rank has only the logits of its words. Every rank gets the whole loss and the
// gradient of its own logits. Every rank needs the targets of all rows. The group must outlive this.
class ParallelCrossEntropy : public Loss {
 public:
  ParallelCrossEntropy(int context, VocabRange vocab, const Group& group)
      : context_(context), vocab_(vocab), group_(group) {}

  int scratch() const override { return 3 * context_; }

  void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
           Real* gradient, float* scratch) const override {
    const cudaStream_t stream = blas.stream();
    const auto* targets = static_cast<const std::int32_t*>(y);
    const int rows = samples * context_, tokens = samples_of_step * context_, logits = rows * vocab_.count;
    float *maxima = scratch, *sums = maxima + rows, *losses = sums + rows;
    // WRITE 05.O: Compute the losses of all rows, their part of the mean over `tokens`, and the gradient of the logits.
    //   output[rows, vocab_.count] has this rank's logits. Write the largest logit of each row, of all ranks, to
    //   maxima[rows] and the loss of each row to losses[rows]. Add the sum of losses / tokens to *loss, and write the
    //   gradient of this sum with respect to this rank's logits to `gradient`.
    //   The kernels above do all that happens on one rank; row_maxima, row_exponentials and
    //   sharded_cross_entropy_backward are launched for `logits` elements, the other two for `rows`. The kernel
    //   add_sum(loss, losses, factor, rows), launched for 1 element, adds factor * Σ losses to *loss. Between the
    //   kernels, the ranks exchange `rows` floats (ncclFloat) three times, in place in maxima, sums and losses, over
    //   group_.comm(). Everything is on `stream`.
    const ncclComm_t comm = group_.comm();
    launch(row_maxima, logits, stream, maxima, output, rows, vocab_.count);
    // TODO 05.14: Combine over the ranks what the loss needs: three numbers per row, with one all-reduce each.
    //   All three are floats (ncclFloat), `rows` of them, reduced in place over `comm` on `stream`.
    //   1. `maxima` has the largest of this rank's logits: make it the largest of all ranks' logits.
    //   2. Launch row_exponentials for `logits` elements, with the arguments sums, output, maxima, rows, vocab_.count.
    //      It writes Σ e^(z - maximum) over this rank's words to `sums`: make that the sum over all words.
    //   3. Launch local_target_logits for `rows` elements, with the arguments losses, output, targets, vocab_, rows.
    //      For each row, it writes the target's logit to `losses` on the rank that has the target, and zero on the
    //      others: give every rank all of these logits.
    NCCL_CHECK(ncclAllReduce(maxima, maxima, rows, ncclFloat, ncclMax, comm, stream));
    launch(row_exponentials, logits, stream, sums, output, maxima, rows, vocab_.count);
    NCCL_CHECK(ncclAllReduce(sums, sums, rows, ncclFloat, ncclSum, comm, stream));
    launch(local_target_logits, rows, stream, losses, output, targets, vocab_, rows);
    NCCL_CHECK(ncclAllReduce(losses, losses, rows, ncclFloat, ncclSum, comm, stream));
    // END TODO 05.14
    probe("05.14", "largest logits of all ranks", maxima, {rows}, stream);
    probe("05.14", "sums of exponentials of all ranks", sums, {rows}, stream);
    probe("05.14", "logits of all targets", losses, {rows}, stream);

    launch(sharded_losses, rows, stream, losses, sums, maxima, rows);
    launch(add_sum, 1, stream, loss, losses, 1.0f / static_cast<float>(tokens), rows);
    launch(sharded_cross_entropy_backward, logits, stream, gradient, output, sums, targets, vocab_, rows, tokens);
    // END WRITE 05.O
    probe("05.O", "maxima", maxima, {rows}, stream);
    probe("05.O", "losses of all rows", losses, {rows}, stream);
    probe("05.O", "loss", loss, {1}, stream);
    probe("05.O", "gradient of this rank's logits", gradient, {rows, vocab_.count}, stream);
  }

 private:
  int context_;
  VocabRange vocab_;
  const Group& group_;
};

}  // namespace workshop
