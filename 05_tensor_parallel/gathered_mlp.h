// SPDX-License-Identifier: Apache-2.0
// A multilayer perceptron of column-parallel layers alone.
//
// Activations are transposed here, [features, rows]: then the features of a rank are one block of memory, the blocks of
// all ranks lie in the order of the ranks, and all-gather and reduce-scatter work on them as they are. Row by row they
// would be columns, to be packed before and unpacked after each call.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "01_single_gpu/mlp.h"
#include "shards.h"

namespace workshop {

// y[rows, cols] += bias[rows], the same bias for every column.
static __global__ void add_bias_to_columns(Reals y, ConstReals bias, int rows, int cols) {
  for (int i : grid_stride(rows * cols)) y[i] += bias[i / cols];
}

class GatheredMlp {
 public:
  GatheredMlp(const Options& options, const Group& group, cudaStream_t stream)
      : widths_(options.layers),
        activation_(options.activation),
        group_(group),
        blas_(stream),
        parameters_(group, stream),
        mean_square_(options.layers.back()),
        x_(kMixedPrecision ? options.batch_size * options.layers.front() : 0, Memory::data),
        ones_(options.batch_size, Memory::data),
        target_(options.batch_size * options.layers.back(), Memory::data),
        scratch_(std::max(1, options.batch_size * mean_square_.scratch()), Memory::data) {
    const int rows = options.batch_size;
    for (int i = 0; i < depth(); ++i) {
      parameters_.add(name(i) + ".weight", {widths_[i + 1], widths_[i]}, Split::rows);
      parameters_.add(name(i) + ".bias", {widths_[i + 1]}, Split::rows);
    }
    parameters_.allocate();
    for (int i = 0; i < depth(); ++i) {
      layers_.push_back(linear_part(name(i), parameters_[2 * i], parameters_[2 * i + 1]));
      z_.emplace_back(activated(i) ? rows * layers_[i].out : 0, Memory::activations);
      output_.emplace_back(rows * widths_[i + 1], Memory::activations);
    }
    const int widest = *std::max_element(widths_.begin() + 1, widths_.end());
    gradient_ = DeviceBuffer<Real>(rows * widest, Memory::activations);
    dz_ = DeviceBuffer<Real>(rows * widest / group.size(), Memory::activations);
    launch(fill, rows, stream, ones_.data(), 1.0f, rows);
  }

  void initialize(std::uint64_t seed) {
    Generator generator(seed);
    for (int i = 0; i < depth(); ++i) {
      std::vector<float> weight(widths_[i] * widths_[i + 1]), bias(widths_[i + 1]);
      init_linear(generator, widths_[i], widths_[i + 1], weight.data(), bias.data());
      parameters_.load(2 * i, weight);
      parameters_.load(2 * i + 1, bias);
    }
  }

  // The samples are floats [rows, in], as the data set has them. Every layer's whole output is kept, transposed.
  void forward(const void* samples, int rows) {
    const Real* x = read_ = as_reals(samples, x_, rows * widths_.front(), blas_.stream());
    for (int i = 0; i < depth(); ++i) {
      const Linear& l = layers_[i];
      const Range range({"forward ", l.name}, blas_.stream());
      Real* whole = output_[i].data();                    // [size·l.out, rows]
      Real* part = whole + group_.rank() * l.out * rows;  // [l.out, rows], this rank's block of it
      Real* z = activated(i) ? z_[i].data() : part;
      // Zᵀ = W Xᵀ; chapter 01's y = x Wᵀ read the other way round. The data come in rows.
      gemm(blas_, Op::as_is, i == 0 ? Op::transposed : Op::as_is, l.out, rows, l.in, l.weight, input(i, x), 0, z);
      launch(add_bias_to_columns, rows * l.out, blas_.stream(), z, l.bias, l.out, rows);
      if (activated(i)) activation_forward(activation_, part, z, rows * l.out, blas_.stream());
      // TODO 05.5: Give every rank the whole output of this layer: gather all ranks' `part` into `whole`.
      //   One NCCL call over group_, on blas_.stream(). What is its count? It may work in place: `part` lies where it
      //   belongs.
      todo("05.5");
      // END TODO 05.5
      probe("05.5", {l.name, ": output, of all ranks"}, whole, {group_.size() * l.out, rows}, blas_.stream());
    }
  }

  // Adds these rows' share of the mean square error over `rows_of_mean` rows to *loss. All ranks have the whole output,
  // and compute the whole loss and its gradient.
  void loss(const float* target, int rows, int rows_of_mean, float* loss) {
    const int outputs = widths_.back();
    // A loss is a sum over all elements, in whatever order; they must only be in the same one. Here target is [rows,
    // outputs], for cuBLAS a column-major [outputs, rows], which it transposes.
    const float one = 1.0f, zero = 0.0f;
    CUBLAS_CHECK(cublasSgeam(blas_, CUBLAS_OP_T, CUBLAS_OP_N, rows, outputs, &one, target, outputs, &zero,
                             target_.data(), rows, target_.data(), rows));
    mean_square_.add(blas_, output_.back().data(), target_.data(), rows, rows_of_mean, loss, gradient_.data(),
                     scratch_.data());
  }

  // The gradients of this rank's parts, from the loss's gradient. What would go down to the data is left out.
  void backward(int rows) {
    const cudaStream_t stream = blas_.stream();
    const int outputs = rows * layers_.back().out;
    // TODO 05.6: Copy this rank's features of the output's gradient to dz_: the last all-gather's backward.
    //   gradient_ is [size·out, rows], dz_ is [out, rows], `outputs` numbers. Every rank has computed the same loss:
    //   what would be wrong with a reduce-scatter here? cudaMemcpyAsync(to, from, bytes, kind, stream) counts in
    //   bytes, and its kind is cudaMemcpyDeviceToDevice.
    todo("05.6");
    // END TODO 05.6
    probe("05.6", "gradient of the output, this rank's features", dz_.data(), {layers_.back().out, rows}, stream);
    for (int i = depth() - 1; i >= 0; --i) {
      const Linear& l = layers_[i];
      const Range range({"backward ", l.name}, stream);
      Real* dz = dz_.data();  // [l.out, rows]
      if (activated(i)) activation_backward(activation_, dz, z_[i].data(), rows * l.out, stream);
      gemm(blas_, Op::as_is, i == 0 ? Op::as_is : Op::transposed, l.out, l.in, rows, dz, input(i, read_), 0,
           l.weight_grad);
      add_up_rows(dz, l.bias_grad, l.out, rows);
      if (i == 0) return;
      Real* dx = gradient_.data();  // [l.in, rows], what reached x through this rank's features
      gemm(blas_, Op::transposed, Op::as_is, l.in, rows, l.out, l.weight, dz, 0, dx);
      const int part = rows * layers_[i - 1].out;
      // TODO 05.7: Add the ranks' shares of dx up, each rank for its own features, which go to dz.
      //   The conjugate of the all-gather: one NCCL call over group_, on `stream`. Its count is that of the `part`.
      todo("05.7");
      // END TODO 05.7
      probe("05.7", {l.name, ": W^T dz, summed over the ranks"}, dz, {layers_[i - 1].out, rows}, stream);
    }
  }

  const ShardedParameters& parameters() const { return parameters_; }

 private:
  int depth() const { return static_cast<int>(widths_.size()) - 1; }
  bool activated(int i) const { return activation_ != Activation::none && i + 1 < depth(); }
  std::string name(int i) const { return layer_name(i, activation_); }

  // sums[n] of the rows of x[n, columns]. Of bfloat16s cuBLAS has no such product with a vector, but that of matrices.
  void add_up_rows(const Real* x, Real* sums, int n, int columns) const {
    const float* floats = as_floats_or_null(x);
    if (floats == nullptr) return gemm(blas_, Op::as_is, Op::transposed, 1, n, columns, ones_.data(), x, 0, sums);
    const float one = 1.0f, zero = 0.0f;
    CUBLAS_CHECK(cublasSgemv(blas_, CUBLAS_OP_T, columns, n, &one, floats, columns, as_floats_or_null(ones_.data()), 1,
                             &zero, as_floats_or_null(sums), 1));
  }

  const Real* input(int i, const Real* x) const { return i == 0 ? x : output_[i - 1].data(); }

  std::vector<int> widths_;
  Activation activation_;
  const Group& group_;
  Blas blas_;
  ShardedParameters parameters_;
  std::vector<Linear> layers_;
  MeanSquaredError mean_square_;
  const Real* read_ = nullptr;              // the samples of the last forward pass
  DeviceBuffer<Real> x_, ones_;             // x_: with mixed precision, those samples
  DeviceBuffer<float> target_, scratch_;    // target_ is transposed
  std::vector<DeviceBuffer<Real>> z_;       // [out/P, rows] before the activation, if there is one
  std::vector<DeviceBuffer<Real>> output_;  // [out, rows]
  DeviceBuffer<Real> gradient_, dz_;        // of a whole output, and of this rank's features
};

}  // namespace workshop
