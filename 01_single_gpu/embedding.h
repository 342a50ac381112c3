// SPDX-License-Identifier: Apache-2.0
// The first layer of a language model: a vector for each word plus one for each position.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/random.h"
#include "model/model.h"

namespace workshop {

// Computes y[rows, width]: row i is words[tokens[i]] + positions[first + i mod context].
static __global__ void embedding_forward(Reals y, const std::int32_t* tokens, ConstReals words, ConstReals positions,
                                         int first, int context, int rows, int width) {
  for_each_element(rows, width, [=](int i, int column) {
    const int row = i / width;
    y[i] = words[tokens[row] * width + column] + positions[(first + row % context) * width + column];
  });
}

// Adds the rows of dy[rows, width] to the gradients of the words and positions that they came from. Each thread owns
// some columns and goes down all rows. So no two threads write to the same place, and each sum always has the same
// order, unlike with atomicAdd().
static __global__ void embedding_backward(Reals words_grad, Reals positions_grad, ConstReals dy,
                                          const std::int32_t* tokens, int context, int rows, int width) {
  for (int row = 0; row < rows; ++row) {
    const ConstReals gradient = dy + row * width;
    const Reals position = positions_grad + row % context * width;
    for (int column : grid_stride(width)) position[column] += gradient[column];
    // TODO 01.9: Add this row's gradient to that of its word.
    //   words_grad is [vocabulary, width], and the row's word is tokens[row]. A word may occur several times. As in the
    //   line above, write only to this thread's columns.
    todo("01.9");
    // END TODO 01.9
  }
}

// Maps token ids [samples, context] to vectors [samples, context, width].
class Embedding : public Layer {
 public:
  Embedding(int vocabulary, int context, int width)
      : Layer("embedding", context, context * width), context_(context), width_(width) {
    parameters = {{"tokens.weight", {vocabulary, width}}, {"positions.weight", {context, width}}};
  }

  // Standard normal, as in nn.Embedding.
  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count());
    generator.randn(values.data(), parameters[0].count());
    generator.randn(values.data() + parameters[0].count(), parameters[1].count());
    return values;
  }
  std::vector<int> saved() const override { return {out}; }
  int rows() const override { return context_; }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    compute(x, saved.buffers[0].data(), 0, samples * context_, blas.stream());
    return saved.buffers[0].data();
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    const Parameter &words = parameters[0], &positions = parameters[1];
    if (g.accumulate == 0) CUDA_CHECK(cudaMemsetAsync(words.grad, 0, count() * sizeof(Real), stream));
    const int rows = g.samples * context_;
    launch(embedding_backward, rows * width_, stream, words.grad, positions.grad, g.dy,
           static_cast<const std::int32_t*>(saved.x), context_, rows, width_);
    probe("01.9", "tokens.weight.grad", words.grad, {words.rows(), width_}, stream);
    return nullptr;  // words have no gradient
  }

  // x points to the token.
  const Real* forward_position(const Blas& blas, const void* x, int position, Saved& saved) override {
    compute(x, saved.buffers[0].data(), position, 1, blas.stream());
    return saved.buffers[0].data();
  }

 private:
  void compute(const void* x, Real* y, int first, int rows, cudaStream_t stream) const {
    launch(embedding_forward, rows * width_, stream, y, static_cast<const std::int32_t*>(x), parameters[0].value,
           parameters[1].value, first, context_, rows, width_);
  }

  int context_, width_;
};

}  // namespace workshop
