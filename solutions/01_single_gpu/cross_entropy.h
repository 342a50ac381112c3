// SPDX-License-Identifier: Apache-2.0
// Cross entropy over token ids: -log of the probability that the softmax of the logits gives to the next word.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/record/record.h"
#include "model/model.h"
#include "model/rows.h"

namespace workshop {

// Computes losses[rows] = log Σⱼ e^z[j] - z[target] of the logits z[rows, vocabulary], and log_sums[rows], its first
// term. The threads of a warp, its lanes, share a row (model/rows.h).
static __global__ void cross_entropy_forward(float* losses, float* log_sums, ConstReals logits,
                                             const std::int32_t* targets, int rows, int vocabulary) {
  for (int row : warp_stride(rows)) {
    const ConstReals z = logits + static_cast<std::size_t>(row) * vocabulary;
    // TODO 01.17: Compute log_sums[row], the logarithm of the sum of e^z[j] over the vocabulary, and losses[row].
    //   With logits as large as 100 the sum would be infinite: first take out the largest, max_of(vocabulary, z).
    //   All lanes get the results of max_of() and sum_of(), so all of them write the same.
    const float largest = max_of(vocabulary, z);
    log_sums[row] = largest + logf(sum_of(vocabulary, [=](int j) { return expf(z[j] - largest); }));
    losses[row] = log_sums[row] - z[targets[row]];
    // END TODO 01.17
  }
}

// Computes the gradient of Σ losses / `tokens` with respect to the logits. A warp shares a row.
static __global__ void cross_entropy_backward(Reals gradient, ConstReals logits, const float* log_sums,
                                              const std::int32_t* targets, int rows, int vocabulary, int tokens) {
  for (int row : warp_stride(rows)) {
    const ConstReals z = logits + static_cast<std::size_t>(row) * vocabulary;
    const Reals dz = gradient + static_cast<std::size_t>(row) * vocabulary;
    const float log_sum = log_sums[row], factor = 1.0f / static_cast<float>(tokens);
    // TODO 01.18: Set dz[j] to the probability of word j, minus 1 for the next word, all times `factor`.
    //   The derivative of log Σ e^z with respect to z[j] is e^z[j] / Σ e^z = e^(z[j] - log_sum). A warp shares the row:
    //   write dz[j] only in a loop `for (int j : lanes(vocabulary))`, where each j belongs to one lane.
    for (int j : lanes(vocabulary)) dz[j] = factor * (expf(z[j] - log_sum) - (j == targets[row] ? 1.0f : 0.0f));
    // END TODO 01.18
  }
}

// Sets correct[rows] to 1 where the target has the largest logit (the first one among equals), else to 0. A warp
// shares a row.
static __global__ void mark_correct(float* correct, ConstReals logits, const std::int32_t* targets, int rows,
                                    int vocabulary) {
  for (int row : warp_stride(rows)) {
    const ConstReals z = logits + static_cast<std::size_t>(row) * vocabulary;
    const int target = targets[row];
    const float smaller =
        sum_of(vocabulary, [=](int j) { return z[j] < z[target] || (z[j] == z[target] && j > target) ? 1.0f : 0.0f; });
    correct[row] = smaller == static_cast<float>(vocabulary - 1) ? 1.0f : 0.0f;
  }
}

// The mean over all tokens; `context` targets per sample.
class CrossEntropy : public Loss {
 public:
  CrossEntropy(int context, int vocabulary) : context_(context), vocabulary_(vocabulary) {}

  int scratch() const override { return 2 * context_; }

  void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
           Real* gradient, float* scratch) const override {
    const cudaStream_t stream = blas.stream();
    const auto* targets = static_cast<const std::int32_t*>(y);
    const int rows = samples * context_, tokens = samples_of_step * context_;
    float *losses = scratch, *log_sums = scratch + rows;
    launch(cross_entropy_forward, rows * vocabulary_, stream, losses, log_sums, output, targets, rows, vocabulary_);
    probe("01.17", "losses", losses, {rows}, stream);
    probe("01.17", "log_sums", log_sums, {rows}, stream);
    launch(add_sum, 1, stream, loss, losses, 1.0f / static_cast<float>(tokens), rows);
    launch(cross_entropy_backward, rows * vocabulary_, stream, gradient, output, log_sums, targets, rows, vocabulary_,
           tokens);
    probe("01.18", "gradient of the logits", gradient, {rows, vocabulary_}, stream);
  }

  void add_correct(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step,
                   float* correct, float* scratch) const override {
    const auto* targets = static_cast<const std::int32_t*>(y);
    const int rows = samples * context_, tokens = samples_of_step * context_;
    launch(mark_correct, rows, blas.stream(), scratch, output, targets, rows, vocabulary_);
    launch(add_sum, 1, blas.stream(), correct, scratch, 1.0f / static_cast<float>(tokens), rows);
  }

 private:
  int context_, vocabulary_;
};

}  // namespace workshop
