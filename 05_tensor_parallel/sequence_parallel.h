// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism with sequence parallelism (Korthikanti et al., 2022): between the pairs of layers each rank keeps
// its share of the rows and no more. The all-reduces of tensor_parallel.cu are taken apart into the reduce-scatter and
// the all-gather that they consist of, and what lies between those, here a layer norm, works on the rank's own rows.
//
//   x ─ norm ─ all-gather ─ column-parallel ─ activation ─ row-parallel ─ reduce-scatter ─ y      a pair, forward
//     own rows             all rows, own features                         own rows
//
// The rows of a batch stand for what are the positions of a sequence in a transformer.
#pragma once

#include "01_single_gpu/layer_norm.h"
#include "tensor_parallel.h"

namespace workshop {

// A layer norm and a pair of layers, and what the forward pass leaves for the backward pass. R: rows of the batch,
// r: of this rank.
struct Block {
  int in;                          // width of the norm
  const Real *gamma, *beta;        // [in]
  Real *gamma_grad, *beta_grad;    // [in]
  Linear column, row;              // this rank's parts
  DeviceBuffer<Real> normed;       // [r, in]
  DeviceBuffer<float> mean, rstd;  // [r], exact with mixed precision too
  DeviceBuffer<Real> z, a;         // [R, hidden/P] before and after the activation, if there is one
  DeviceBuffer<Real> y;            // [r, out]
};

class SequenceParallelMlp {
 public:
  SequenceParallelMlp(const Options& options, const Group& group, cudaStream_t stream)
      : widths_(options.layers),
        activation_(options.activation),
        group_(group),
        blas_(stream),
        parameters_(group, stream),
        mean_square_(options.layers.back()),
        x_(kMixedPrecision ? options.batch_size / group.size() * options.layers.front() : 0, Memory::data),
        ones_(options.batch_size, Memory::data),
        scratch_(std::max(1, options.batch_size / group.size() * mean_square_.scratch()), Memory::data) {
    // The norms' parameters come first: their gradients are one range, and one call sums them up.
    for (int k = 0; k < pairs(); ++k) {
      parameters_.add(name(k, 0) + ".weight", {widths_[2 * k]}, Split::none);
      parameters_.add(name(k, 0) + ".bias", {widths_[2 * k]}, Split::none);
      norms_ += 2 * widths_[2 * k];
    }
    for (int i = 0; i < 2 * pairs(); ++i) {
      const bool column = i % 2 == 0;
      const std::string layer = name(i / 2, column ? 1 : 2);
      parameters_.add(layer + ".weight", {widths_[i + 1], widths_[i]}, column ? Split::rows : Split::columns);
      parameters_.add(layer + ".bias", {widths_[i + 1]}, column ? Split::rows : Split::none);
    }
    parameters_.allocate();
    for (int k = 0; k < pairs(); ++k) add_block(k, options.batch_size);
    allocate_scratch(options.batch_size);
    launch(fill, options.batch_size, stream, ones_.data(), 1.0f, options.batch_size);
  }

  // PyTorch's: a norm starts with ones and zeros, and draws nothing.
  void initialize(std::uint64_t seed) {
    Generator generator(seed);
    for (int k = 0; k < pairs(); ++k) {
      parameters_.load(2 * k, std::vector<float>(widths_[2 * k], 1.0f));
      parameters_.load(2 * k + 1, std::vector<float>(widths_[2 * k], 0.0f));
    }
    for (int i = 0; i < 2 * pairs(); ++i) {
      std::vector<float> weight(widths_[i] * widths_[i + 1]), bias(widths_[i + 1]);
      init_linear(generator, widths_[i], widths_[i + 1], weight.data(), bias.data());
      parameters_.load(2 * pairs() + 2 * i, weight);
      parameters_.load(2 * pairs() + 2 * i + 1, bias);
    }
  }

  // Takes this rank's rows x[r, in] of a batch of R = size·r rows; keeps this rank's rows of the output, [r, out].
  void forward(const Batch& batch) {
    const cudaStream_t stream = blas_.stream();
    const int r = batch.samples, R = group_.size() * r;
    const Real* x = read_ = as_reals(batch.x, x_, r * widths_.front(), stream);
    for (int k = 0; k < pairs(); ++k) {
      const Block& b = blocks_[k];
      const Range range({"forward ", b.column.name}, stream);
      launch(layer_norm_forward, r, stream, b.normed.data(), b.mean.data(), b.rstd.data(), input(k, x), b.gamma, b.beta,
             r, b.in);
      linear_forward(blas_, b.column, gather_normed(b, r), b.z.data(), R);
      if (activated()) activation_forward(activation_, b.a.data(), b.z.data(), R * b.column.out, stream);
      Real *share = whole_[1].data(), *y = b.y.data();
      gemm(blas_, Op::as_is, Op::transposed, R, b.row.out, b.row.in, hidden(b), b.row.weight, 0, share);
      const int count = r * b.row.out;
      // TODO 05.9: Add the ranks' shares of the product up, each rank for its own rows, and add the bias.
      //   From share[R, out] to y[r, out], which has `count` elements: half of an all-reduce, one NCCL call over
      //   group_. Then launch() the kernel add_bias(y, bias, rows, cols) with b.row.bias: how many rows has y?
      todo("05.9");
      // END TODO 05.9
      probe("05.9", {b.row.name, ": this rank's rows"}, y, {r, b.row.out}, stream);
    }
  }

  // Adds this rank's share of the mean square error of the batch to *loss: that of its rows, y[r, out].
  void loss(const Batch& batch, float* loss) {
    mean_square_.add(blas_, blocks_.back().y.data(), batch.y, batch.samples, group_.size() * batch.samples, loss,
                     rows_[0].data(), scratch_.data());
  }

  // All gradients, from the loss's gradient with respect to this rank's rows of the output.
  void backward(const Batch& batch) {
    const cudaStream_t stream = blas_.stream();
    const int r = batch.samples, R = group_.size() * r;
    for (int k = pairs() - 1; k >= 0; --k) {
      const Block& b = blocks_[k];
      const Range range({"backward ", b.column.name}, stream);
      Real *mine = rows_[0].data(), *whole = whole_[0].data();
      // TODO 05.10: Give every rank the gradients of all rows: the reduce-scatter's backward.
      //   A row of the output came from all ranks' shares. Each rank has mine[r, out]; together they are whole[R,
      //   out]. One NCCL call over group_. What is its count?
      todo("05.10");
      // END TODO 05.10
      probe("05.10", {b.row.name, ": gradients of all rows"}, whole, {R, b.row.out}, stream);
      linear_backward(blas_, b.row, hidden(b), whole, hidden_gradient_.data(), ones_.data(), R, 0);
      if (activated()) {
        activation_backward(activation_, hidden_gradient_.data(), b.z.data(), R * b.column.out, stream);
      }
      // The normed rows of all ranks again: to have kept them would have cost what this technique is to save.
      Real* share = whole_[1].data();
      linear_backward(blas_, b.column, gather_normed(b, r), hidden_gradient_.data(), share, ones_.data(), R, 0);
      Real* dy = rows_[1].data();
      // TODO 05.11: Add the ranks' shares of the gradient up, each rank for its own rows: the all-gather's backward.
      //   share[R, in] is what reached the norm's output through this rank's features; dy is [r, in]. One NCCL call
      //   over group_.
      todo("05.11");
      // END TODO 05.11
      probe("05.11", {b.column.name, ": gradients of this rank's rows"}, dy, {r, b.in}, stream);
      launch(layer_norm_parameter_gradients, b.in, stream, b.gamma_grad, b.beta_grad, dy, input(k, read_),
             b.mean.data(), b.rstd.data(), r, b.in, 0.0f);
      launch(layer_norm_backward, r, stream, mine, nullptr, dy, input(k, read_), b.mean.data(), b.rstd.data(), b.gamma,
             r, b.in);
    }
    sum_norm_gradients();
  }

  const ShardedParameters& parameters() const { return parameters_; }

 private:
  int pairs() const { return (static_cast<int>(widths_.size()) - 1) / 2; }
  bool activated() const { return activation_ != Activation::none; }
  const Real* input(int k, const Real* x) const { return k == 0 ? x : blocks_[k - 1].y.data(); }
  // What the row-parallel layer reads.
  const Real* hidden(const Block& b) const { return activated() ? b.a.data() : b.z.data(); }

  // That of nn.Sequential(LayerNorm, Linear, activation, Linear, LayerNorm, …): module 0 of pair k is its norm, 1 and 2
  // are its layers.
  std::string name(int k, int module) const {
    return std::to_string(k * (activated() ? 4 : 3) + module + (activated() && module == 2 ? 1 : 0));
  }

  void add_block(int k, int R) {
    const int r = R / group_.size(), norm = 2 * k, linear = 2 * pairs() + 4 * k;
    Block b;
    b.in = widths_[2 * k];
    b.gamma = parameters_[norm].value;
    b.beta = parameters_[norm + 1].value;
    b.gamma_grad = parameters_[norm].grad;
    b.beta_grad = parameters_[norm + 1].grad;
    b.column = linear_part(name(k, 1), parameters_[linear], parameters_[linear + 1]);
    b.row = linear_part(name(k, 2), parameters_[linear + 2], parameters_[linear + 3]);
    b.normed = DeviceBuffer<Real>(r * b.in, Memory::activations);
    b.mean = DeviceBuffer<float>(r, Memory::activations);
    b.rstd = DeviceBuffer<float>(r, Memory::activations);
    b.z = DeviceBuffer<Real>(R * b.column.out, Memory::activations);
    b.a = DeviceBuffer<Real>(activated() ? R * b.column.out : 0, Memory::activations);
    b.y = DeviceBuffer<Real>(r * b.row.out, Memory::activations);
    blocks_.push_back(std::move(b));
  }

  // What one block at a time needs.
  void allocate_scratch(int R) {
    int outside = 0, inside = 0;  // widest between the pairs, and of this rank's part within them
    for (const Block& b : blocks_) {
      outside = std::max({outside, b.in, b.row.out});
      inside = std::max(inside, b.column.out);
    }
    for (auto& whole : whole_) whole = DeviceBuffer<Real>(R * outside, Memory::activations);
    for (auto& rows : rows_) rows = DeviceBuffer<Real>(R / group_.size() * outside, Memory::activations);
    hidden_gradient_ = DeviceBuffer<Real>(R * inside, Memory::activations);
  }

  // The normed rows [R, in] of all ranks.
  const Real* gather_normed(const Block& b, int r) {
    const Real* mine = b.normed.data();
    Real* whole = whole_[0].data();
    // TODO 05.8: Gather the normed rows of all ranks, because the column-parallel layer needs them all.
    //   From mine[r, in] to whole[R, in]: the other half of an all-reduce, one NCCL call over group_, on
    //   blas_.stream(). What is its count?
    todo("05.8");
    // END TODO 05.8
    probe("05.8", {b.column.name, ": normed rows of all ranks"}, whole, {group_.size() * r, b.in}, blas_.stream());
    return whole;
  }

  // γ and β are replicas, but each rank has seen its own rows.
  void sum_norm_gradients() {
    Real* grads = parameters_.grads();
    // TODO 05.12: Sum the gradients of all norms' parameters over the ranks, in place.
    //   They are the first norms_ numbers of grads. One NCCL call over group_, on blas_.stream(). What would happen to
    //   the replicas otherwise? And why do the biases of the row-parallel layers, replicas too, need no sum?
    todo("05.12");
    // END TODO 05.12
    probe("05.12", "gradients of the norms, summed over the ranks", grads, {norms_}, blas_.stream());
  }

  std::vector<int> widths_;
  Activation activation_;
  const Group& group_;
  Blas blas_;
  ShardedParameters parameters_;
  int norms_ = 0;  // parameters of all norms together
  std::vector<Block> blocks_;
  MeanSquaredError mean_square_;
  const Real* read_ = nullptr;   // this rank's rows of x, in the last forward pass
  DeviceBuffer<Real> x_, ones_;  // x_: with mixed precision, those rows
  DeviceBuffer<float> scratch_;
  DeviceBuffer<Real> whole_[2], rows_[2], hidden_gradient_;  // [R, width], [r, width], [R, hidden/P]
};

}  // namespace workshop
