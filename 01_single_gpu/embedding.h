// SPDX-License-Identifier: Apache-2.0
// The first layer of a language model: a vector for each word plus one for each position.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/random.h"
#include "common/device/device.h"
#include "model/model.h"
#include "model/positions.h"

namespace workshop {

// Computes y[rows, width]: row i is words[tokens[i]] + positions[at[i mod at.count]].
static __global__ void embedding_forward(Reals y, const std::int32_t* tokens, ConstReals words, ConstReals positions,
                                         Positions at, int rows, int width) {
  for_each_element(rows, width, [=](int i, int column) {
    const int row = i / width;
    y[i] = words[tokens[row] * width + column] + positions[at[row % at.count] * width + column];
  });
}

// Links the rows of a batch that have the same word; [rows] each.
struct SameWord {
  int* is_first;  // 1 if no earlier row has this row's word, else 0
  int* next;      // the next row with this row's word; the number of rows if there is none
};

static __global__ void link_same_words(SameWord same, const std::int32_t* tokens, int rows) {
  for (int row : warp_stride(rows)) {
    const int word = tokens[row], behind = row + 1;
    same.is_first[row] = first_of(row, [=](int i) { return tokens[i] == word; }) == row;
    same.next[row] = behind + first_of(rows - behind, [=](int i) { return tokens[behind + i] == word; });
  }
}

// Adds the rows of dy[rows, width] to the gradients of their words, words_grad[count, width]: those of the words first,
// first + 1, …; chapter 05 cuts the vocabulary. One thread adds up a column of all rows of a word, in float32. So no
// two threads write to the same place, and each sum always has the same order, unlike with atomicAdd().
static __global__ void word_gradients(Reals words_grad, ConstReals dy, const std::int32_t* tokens, SameWord same,
                                      int first, int count, int rows, int width) {
  for_each_element(rows, width, [=](int i, int column) {
    const int row = i / width, word = tokens[row] - first;
    if (!same.is_first[row] || word < 0 || word >= count) return;
    float sum = words_grad[word * width + column];
    // TODO 01.9: Add to `sum` this column of dy, for all rows that have this row's word.
    //   This row is the first of them; same.next[row] is the one behind it, and so on. For the last one, same.next is
    //   `rows`.
    todo("01.9");
    // END TODO 01.9
    words_grad[word * width + column] = sum;
  });
}

// Adds the rows of dy[rows, width] to the gradients of their positions, positions_grad[at.whole, width].
static __global__ void position_gradients(Reals positions_grad, ConstReals dy, Positions at, int rows, int width) {
  for_each_element(at.count, width, [=](int i, int column) {
    const int first = i / width, place = at[first] * width + column;
    float sum = positions_grad[place];
    for (int row = first; row < rows; row += at.count) sum += dy[row * width + column];
    positions_grad[place] = sum;
  });
}

// Adds dy[rows, width] to the gradients of the words first, first + 1, …, words_grad[count, width], and to those of the
// positions `at`. `same` is scratch memory.
inline void embedding_backward(Real* words_grad, Real* positions_grad, const Real* dy, const std::int32_t* tokens,
                               SameWord same, int first, int count, Positions at, int rows, int width,
                               cudaStream_t stream) {
  launch(link_same_words, rows * width, stream, same, tokens, rows);
  launch(word_gradients, rows * width, stream, words_grad, dy, tokens, same, first, count, rows, width);
  launch(position_gradients, at.count * width, stream, positions_grad, dy, at, rows, width);
}

// Maps token ids [samples, positions.count] to vectors [samples, positions.count, width].
class Embedding : public Layer {
 public:
  Embedding(int vocabulary, Positions positions, int width)
      : Layer("embedding", positions.count, positions.count * width), positions_(positions), width_(width) {
    parameters = {{"tokens.weight", {vocabulary, width}}, {"positions.weight", {positions.whole, width}}};
  }

  // Standard normal, as in nn.Embedding.
  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count());
    generator.randn(values.data(), parameters[0].count());
    generator.randn(values.data() + parameters[0].count(), parameters[1].count());
    return values;
  }
  std::vector<int> saved() const override { return {out}; }
  int rows() const override { return positions_.count; }
  void allocate(int max_samples, cudaStream_t) override {
    links_ = DeviceBuffer<int>(2 * max_samples * rows(), Memory::data);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    compute(x, saved.buffers[0].data(), positions_, samples * rows(), blas.stream());
    return saved.buffers[0].data();
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    const Parameter &words = parameters[0], &positions = parameters[1];
    if (g.accumulate == 0) CUDA_CHECK(cudaMemsetAsync(words.grad, 0, count() * sizeof(Real), stream));
    const int rows = g.samples * this->rows();
    embedding_backward(words.grad, positions.grad, g.dy, static_cast<const std::int32_t*>(saved.x),
                       {links_.data(), links_.data() + rows}, 0, words.rows(), positions_, rows, width_, stream);
    probe("01.9", "tokens.weight.grad", words.grad, {words.rows(), width_}, stream);
    return nullptr;  // words have no gradient
  }

  // x points to the token.
  const Real* forward_position(const Blas& blas, const void* x, int position, Saved& saved) override {
    compute(x, saved.buffers[0].data(), {positions_.whole, 1, position}, 1, blas.stream());
    return saved.buffers[0].data();
  }

 private:
  void compute(const void* x, Real* y, Positions at, int rows, cudaStream_t stream) const {
    launch(embedding_forward, rows * width_, stream, y, static_cast<const std::int32_t*>(x), parameters[0].value,
           parameters[1].value, at, rows, width_);
  }

  Positions positions_;
  int width_;
  DeviceBuffer<int> links_;  // SameWord's two arrays
};

}  // namespace workshop
