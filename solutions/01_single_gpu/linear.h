// SPDX-License-Identifier: Apache-2.0
// A linear layer by hand, forward and backward, on cuBLAS and a small kernel.
//
// Matrices are row-major, as in C++ and PyTorch: an activation is [rows, width], one row a sample; a weight is
// [out, in], as nn.Linear keeps it, so that y = x Wᵀ + b. README.md derives every line of the backward pass.
#pragma once

#include <string>

#include "common/device/device.h"
#include "common/record/record.h"
#include "model/blas.h"
#include "model/elementwise.h"
#include "model/model.h"

namespace workshop {

// y[rows, cols] += bias[cols], the same bias for every row.
static __global__ void add_bias(Reals y, ConstReals bias, int rows, int cols) {
  for_each_element(rows, cols, [=](int i, int column) { y[i] += bias[column]; });
}

// y = x Wᵀ + b. Points into memory that is held elsewhere.
struct Linear {
  std::string name;  // PyTorch's, such as "0": the parameters are 0.weight and 0.bias
  int in, out;
  Real *weight, *bias;            // [out, in], [out]; bias is null if there is none
  Real *weight_grad, *bias_grad;  // the same
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

// Both; skips dx if null. dx comes first, because another rank may be waiting for it.
inline void linear_backward(const Blas& blas, const Linear& l, const Real* x, const Real* dy, Real* dx,
                            const Real* ones, int rows, float accumulate) {
  if (dx != nullptr) linear_backward_input(blas, l, dy, dx, rows);
  linear_backward_parameters(blas, l, x, dy, ones, rows, accumulate);
}

}  // namespace workshop
