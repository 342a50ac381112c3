// SPDX-License-Identifier: Apache-2.0
// A linear layer by hand, forward and backward, the activations and the loss: on cuBLAS and a few small kernels.
//
// Matrices are row-major, as in C++ and PyTorch: an activation is [rows, width], one row a sample; a weight is
// [out, in], as nn.Linear keeps it, so that y = x Wᵀ + b. README.md derives every line of the backward pass.
#pragma once

#include <string>

#include "blas.h"
#include "common/device.h"
#include "common/options.h"
#include "common/record.h"
#include "elementwise.h"
#include "model.h"
#include "rows.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// y[rows, cols] += bias[cols], the same bias for every row.
static __global__ void add_bias(Reals y, ConstReals bias, int rows, int cols) {
  for_each_element(rows, cols, [=](int i, int column) { y[i] += bias[column]; });
}

static __global__ void relu_forward(Reals a, ConstReals z, int n) {
  for (int i : grid_stride(n)) a[i] = z[i] > 0 ? z[i] : 0;
}

// dz = da · relu'(z); dz may be da.
static __global__ void relu_backward(Reals dz, ConstReals da, ConstReals z, int n) {
  for (int i : grid_stride(n)) dz[i] = z[i] > 0 ? da[i] : 0;
}

// The exact GELU, z·Φ(z) with the normal distribution Φ (Hendrycks and Gimpel, 2016); not the tanh approximation.
static __global__ void gelu_forward(Reals a, ConstReals z, int n) {
  for (int i : grid_stride(n)) a[i] = 0.5f * z[i] * (1.0f + erff(z[i] * 0.70710678f));
}

// gelu'(z) = Φ(z) + z·φ(z)
static __global__ void gelu_backward(Reals dz, ConstReals da, ConstReals z, int n) {
  for (int i : grid_stride(n)) {
    const float cdf = 0.5f * (1.0f + erff(z[i] * 0.70710678f));
    const float pdf = 0.39894228f * expf(-0.5f * z[i] * z[i]);
    dz[i] = da[i] * (cdf + z[i] * pdf);
  }
}

// a = activation(z).
inline void activation_forward(Activation activation, Real* a, const Real* z, int n, cudaStream_t stream) {
  launch(activation == Activation::relu ? relu_forward : gelu_forward, n, stream, a, z, n);
}

// Turns the gradient of a into that of z, in place.
inline void activation_backward(Activation activation, Real* da, const Real* z, int n, cudaStream_t stream) {
  launch(activation == Activation::relu ? relu_backward : gelu_backward, n, stream, da, da, z, n);
}

static __global__ void subtract(float* difference, ConstReals a, const float* b, int n) {
  for (int i : grid_stride(n)) difference[i] = a[i] - b[i];
}

// ---- one layer -----------------------------------------------------------------------------------------------------

// y = x Wᵀ + b. Points into memory that is held elsewhere.
struct Linear {
  std::string name;  // PyTorch's, such as "0": the parameters are 0.weight and 0.bias
  int in, out;
  Real *weight, *bias;            // [out, in], [out]; no bias where it is null
  Real *weight_grad, *bias_grad;  // likewise
};

// The layer with these parameters; `bias` is a Parameter() where it has none.
inline Linear linear_of(const std::string& name, const Parameter& weight, const Parameter& bias) {
  return {name, weight.columns(), weight.rows(), weight.value, bias.value, weight.grad, bias.grad};
}

// y[rows, out] from x[rows, in].
inline void linear_forward(const Blas& blas, const Linear& l, const Real* x, Real* y, int rows) {
  const cudaStream_t stream = blas.stream();
  // TODO 01.1: Multiply: y = x Wᵀ.
  //   One gemm(), of blas.h (docs/calls.md). y is [rows, out], x is [rows, in], the weight is [out, in]: which operand
  //   is transposed?
  gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 0, y);
  // END TODO 01.1
  probe("01.1", {l.name, ": x W^T"}, y, {rows, l.out}, stream);
  if (l.bias == nullptr) return;
  // TODO 01.2: Add the bias to every row of y.
  //   launch(kernel, elements, stream, the kernel's arguments...) with the kernel add_bias above, for all elements of
  //   y: which of its sizes is the length of a row?
  launch(add_bias, rows * l.out, stream, y, l.bias, rows, l.out);
  // END TODO 01.2
  probe("01.2", {l.name, ": x W^T + b"}, y, {rows, l.out}, stream);
}

// The gradients of the layer's parameters from dy[rows, out]. `accumulate` adds to the gradients that are there already
// (0 overwrites them, 1 adds). `ones` are `rows` ones.
inline void linear_backward_parameters(const Blas& blas, const Linear& l, const Real* x, const Real* dy,
                                       const Real* ones, int rows, float accumulate) {
  const cudaStream_t stream = blas.stream();
  // TODO 01.3: The weight's gradient: dW = dyᵀ x, summed over the rows.
  //   One gemm(). dW is [out, in]: which operand is transposed now? Its beta is `accumulate`.
  gemm(blas, Op::transposed, Op::as_is, l.out, l.in, rows, dy, x, accumulate, l.weight_grad);
  // END TODO 01.3
  probe("01.3", {l.name, ".weight.grad"}, l.weight_grad, {l.out, l.in}, stream);
  if (l.bias == nullptr) return;
  // TODO 01.4: The bias' gradient: the sum of dy over its rows, db = 1ᵀ dy.
  //   One gemm() again. `ones` is a matrix of one row, [1, rows], and so is db, [1, out]. Its beta is `accumulate`.
  gemm(blas, Op::as_is, Op::as_is, 1, l.out, rows, ones, dy, accumulate, l.bias_grad);
  // END TODO 01.4
  probe("01.4", {l.name, ".bias.grad"}, l.bias_grad, {l.out}, stream);
}

// The gradient that goes down to the layer below, dx[rows, in], from dy[rows, out].
inline void linear_backward_input(const Blas& blas, const Linear& l, const Real* dy, Real* dx, int rows) {
  // TODO 01.5: The gradient that goes down to the layer below: dx = dy W.
  //   One gemm(). dx is [rows, in], dy is [rows, out], the weight is [out, in].
  gemm(blas, Op::as_is, Op::as_is, rows, l.in, l.out, dy, l.weight, 0, dx);
  // END TODO 01.5
  probe("01.5", {l.name, ": dy W"}, dx, {rows, l.in}, blas.stream());
}

// Both; no dx where it is null. It comes first, because other ranks may wait for it.
inline void linear_backward(const Blas& blas, const Linear& l, const Real* x, const Real* dy, Real* dx,
                            const Real* ones, int rows, float accumulate) {
  if (dx != nullptr) linear_backward_input(blas, l, dy, dx, rows);
  linear_backward_parameters(blas, l, x, dy, ones, rows, accumulate);
}

// ---- loss ----------------------------------------------------------------------------------------------------------

// Adds Σ(prediction - target)² / elements to *loss, and writes the gradient of that to gradient[n]. `elements` is n for
// a whole batch, and the n of the whole batch for each of its micro-batches. `scratch` is one float on the device.
inline void mse_loss(const Blas& blas, const Real* prediction, const float* target, int n, int elements, float* loss,
                     float* gradient, float* scratch) {
  const cudaStream_t stream = blas.stream();
  launch(subtract, n, stream, gradient, prediction, target, n);
  // The sum stays on the device: a host that waited for it would stop the stream from running ahead.
  CUBLAS_CHECK(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE));
  CUBLAS_CHECK(cublasSdot(blas, n, gradient, 1, gradient, 1, scratch));
  CUBLAS_CHECK(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST));
  launch(add_sum, 1, stream, loss, scratch, 1.0f / static_cast<float>(elements), 1);
  // TODO 01.6: Turn the differences in `gradient` into the gradient of the mean square, in place.
  //   What is the derivative of (p - t)² / elements by p? cublasSscal(handle, n, &factor, x, incx) scales a vector.
  const float factor = 2.0f / static_cast<float>(elements);
  CUBLAS_CHECK(cublasSscal(blas, n, &factor, gradient, 1));
  // END TODO 01.6
  probe("01.6", "gradient of the loss", gradient, {n}, stream);
}

}  // namespace workshop
