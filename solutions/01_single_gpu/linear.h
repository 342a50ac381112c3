// SPDX-License-Identifier: Apache-2.0
// A linear layer by hand, forward and backward, on cuBLAS and a small kernel.
//
// Matrices are row-major, as in C++ and PyTorch: an activation is [rows, width], with one row per sample; a weight is
// [out, in], as in nn.Linear, so that y = x Wᵀ + b. math.md derives every line of the backward pass.
#pragma once

#include <array>
#include <string>

#include "common/device/device.h"
#include "common/record/record.h"
#include "model/blas.h"
#include "model/deferred_weights.h"
#include "model/elementwise.h"
#include "model/model.h"

namespace workshop {

// y[rows, cols] += bias[cols], the same bias for every row.
static __global__ void add_bias(Reals y, ConstReals bias, int rows, int cols) {
  for_each_element(rows, cols, [=](int i, int column) { y[i] += bias[column]; });
}

// y = x Wᵀ + b. Does not own the memory it points into.
struct Linear {
  std::string name;  // PyTorch's, such as "0": the parameters are 0.weight and 0.bias
  int in, out;
  Real *weight, *bias;            // [out, in], [out]; bias is null if there is none
  Real *weight_grad, *bias_grad;  // the same
};

// Makes a layer of these parameters. `bias` is a Parameter() if there is none.
inline Linear linear_of(const std::string& name, const Parameter& weight, const Parameter& bias) {
  return {name, weight.columns(), weight.rows(), weight.value, bias.value, weight.grad, bias.grad};
}

// Computes y[rows, out] from x[rows, in].
inline void linear_forward(const Blas& blas, const Linear& l, const Real* x, Real* y, int rows) {
  const cudaStream_t stream = blas.stream();
  // WRITE 01.A: Compute y = x Wᵀ + b. The layer has no bias if l.bias is null.
  //   y is [rows, out] and x is [rows, in]; all matrices are row-major. Overwrite what y held. l.weight is [out, in],
  //   l.bias is [out], and every row of y gets it. Use gemm(), and launch() with the kernel add_bias (docs/calls.md).
  //   The host must not wait.
  // TODO 01.1: Multiply: y = x Wᵀ.
  //   Use one gemm() (docs/calls.md). y is [rows, out], x is [rows, in], the weight is [out, in]: which operand has to
  //   be transposed?
  gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 0, y);
  // END TODO 01.1
  probe("01.1", {l.name, ": x W^T"}, y, {rows, l.out}, stream);
  if (l.bias != nullptr) {
    // TODO 01.2: Add the bias to every row of y.
    //   Use launch(kernel, elements, stream, the kernel's arguments...) with the kernel add_bias above, for all
    //   elements of y. Which of its sizes is the length of a row?
    launch(add_bias, rows * l.out, stream, y, l.bias, rows, l.out);
    // END TODO 01.2
  }
  // END WRITE 01.A
  if (l.bias != nullptr) probe("01.2", {l.name, ": x W^T + b"}, y, {rows, l.out}, stream);
}

// Computes the gradients of the layer's parameters from x[rows, in] and dy[rows, out]. `accumulate` is 0 to overwrite
// the gradients, 1 to add to them. `ones` must hold `rows` ones.
inline void linear_backward_parameters(const Blas& blas, const Linear& l, const Real* x, const Real* dy,
                                       const Real* ones, int rows, float accumulate) {
  const cudaStream_t stream = blas.stream();
  probe("01.B", "given to model.backward: accumulate", std::array{static_cast<int>(accumulate)});
  // WRITE 01.B: Compute the gradients of the weight and of the bias from x and dy.
  //   l.weight_grad is [out, in] and l.bias_grad is [out], as the weight and the bias. x is [rows, in], dy is [rows,
  //   out]. With `accumulate` 0, overwrite the old gradients; with 1, add the new ones to them. If l.bias is null,
  //   there is only the weight. One gemm() computes each gradient.
  // TODO 01.3: The weight's gradient: dW = dyᵀ x, summed over the rows.
  //   Use one gemm(), with `accumulate` as its beta. dW is [out, in]: which operand has to be transposed now?
  gemm(blas, Op::transposed, Op::as_is, l.out, l.in, rows, dy, x, accumulate, l.weight_grad);
  // END TODO 01.3
  probe("01.3", {l.name, ".weight.grad"}, l.weight_grad, {l.out, l.in}, stream);
  if (l.bias != nullptr) {
    // TODO 01.4: The bias's gradient: the sum of dy over its rows, db = 1ᵀ dy.
    //   Use one gemm() again, with `accumulate` as its beta. `ones` is a matrix of one row, [1, rows], and so is db,
    //   [1, out].
    gemm(blas, Op::as_is, Op::as_is, 1, l.out, rows, ones, dy, accumulate, l.bias_grad);
    // END TODO 01.4
  }
  // END WRITE 01.B
  if (l.bias == nullptr) return;
  probe("01.B", {l.name, ".weight.grad"}, l.weight_grad, {l.out, l.in}, stream);
  probe("01.4", {l.name, ".bias.grad"}, l.bias_grad, {l.out}, stream);
}

// Computes the gradient for the layer below, dx[rows, in], from dy[rows, out].
inline void linear_backward_input(const Blas& blas, const Linear& l, const Real* dy, Real* dx, int rows) {
  // WRITE 01.C: Compute dx, the gradient of the layer's input, from dy.
  //   dx is [rows, in], dy is [rows, out]. Which values of the forward pass does it need? What dx held before does not
  //   count. One gemm() is enough.
  // TODO 01.5: The gradient for the layer below: dx = dy W.
  //   Use one gemm(). dx is [rows, in], dy is [rows, out], the weight is [out, in].
  gemm(blas, Op::as_is, Op::as_is, rows, l.in, l.out, dy, l.weight, 0, dx);
  // END TODO 01.5
  // END WRITE 01.C
  probe("01.5", {l.name, ": dy W"}, dx, {rows, l.in}, blas.stream());
}

// Computes both. Skips dx if null; dx comes first, because another rank may be waiting for it.
inline void linear_backward(const Blas& blas, const Linear& l, const Real* x, const Real* dy, Real* dx,
                            const Real* ones, int rows, float accumulate) {
  if (dx != nullptr) linear_backward_input(blas, l, dy, dx, rows);
  linear_backward_parameters(blas, l, x, dy, ones, rows, accumulate);
}

// The same within the backward pass of a layer, which may leave the gradients of the parameters for later (chapter 04).
// x must then stay where it is until they are computed. dy is kept: at `place`, if the forward pass has left values
// there that nothing needs anymore, or else in g.later, where the layer's deferred() makes room.
inline void linear_backward(const Gradients& g, const Linear& l, const Real* x, const Real* dy, Real* dx, int rows,
                            Real* place = nullptr) {
  if (g.later == nullptr) return linear_backward(g.blas, l, x, dy, dx, g.ones, rows, g.accumulate);
  if (dx != nullptr) linear_backward_input(g.blas, l, dy, dx, rows);
  const std::size_t count = static_cast<std::size_t>(rows) * l.out;
  Real* kept = place != nullptr ? place : g.later->room_for(count);
  CUDA_CHECK(cudaMemcpyAsync(kept, dy, count * sizeof(Real), cudaMemcpyDeviceToDevice, g.blas.stream()));
  g.later->leave([&blas = g.blas, ones = g.ones, l, x, kept, rows](float accumulate) {
    linear_backward_parameters(blas, l, x, kept, ones, rows, accumulate);
  });
}

}  // namespace workshop
