// SPDX-License-Identifier: Apache-2.0
// Layer normalization (Ba et al., 2016) by hand, row by row: y = x̂·gamma + beta, x̂ = (x - mean) / √(variance + ε).
#pragma once

#include <cmath>
#include <string>

#include "common/device/device.h"
#include "common/record/record.h"
#include "model/rows.h"

namespace workshop {

// Computes y[rows, width] from x[rows, width], and for the backward pass mean[rows] and rstd[rows] = 1/√(variance + ε).
// Rows do not depend on each other, so they can be split across ranks. The threads of a warp, its lanes, share a row
// (model/rows.h).
static __global__ void layer_norm_forward(Reals y, float* mean, float* rstd, ConstReals x, ConstReals gamma,
                                          ConstReals beta, int rows, int width) {
  // WRITE 01.H: Normalize each row and keep its mean and rstd.
  //   Row i begins at x + i·width and y + i·width; gamma and beta have `width` values. The mean and the variance are
  //   over the row's `width` values; ε is 1e-5. The variance must stay accurate where the mean is large: mean² must not
  //   swallow it. `for (int row : warp_stride(rows))` goes over the rows of this warp, and `for (int j : lanes(width))`
  //   over the places in a row that belong to this lane. Outside this loop, all lanes call sum_of(width, f), which adds
  //   up f(j) for all j. sqrtf() is the root.
  for (int row : warp_stride(rows)) {
    const ConstReals in = x + row * width;
    const Reals out = y + row * width;
    // TODO 01.10: Normalize the row: out[j] = (in[j] - mean)·rstd·gamma[j] + beta[j], and keep mean[row] and rstd[row].
    //   sum_of(width, f) adds up f(j) for all j. Compute the variance as the mean of (in[j] - mean)²: where the mean is
    //   large, the mean of in[j]² minus mean² keeps few correct digits in float32. Divide by width, not by width - 1.
    //   PyTorch's ε is 1e-5, under the root. A warp shares the row: write out[j] in a loop `for (int j :
    //   lanes(width))`, and call sum_of() outside of it.
    const float m = sum_of(width, [=](int j) { return in[j]; }) / width;
    const float variance = sum_of(width, [=](int j) { return (in[j] - m) * (in[j] - m); }) / width;
    const float r = 1.0f / sqrtf(variance + 1e-5f);
    for (int j : lanes(width)) out[j] = (in[j] - m) * r * gamma[j] + beta[j];
    mean[row] = m;
    rstd[row] = r;
    // END TODO 01.10
  }
  // END WRITE 01.H
}

// Computes dx = beside + rstd·(g - mean(g) - x̂·mean(g·x̂)) with g = dy·gamma. `beside` is the gradient that reaches x
// past the norm, or null; it may be dx. A warp shares a row.
static __global__ void layer_norm_backward(Reals dx, ConstReals beside, ConstReals dy, ConstReals x, const float* mean,
                                           const float* rstd, ConstReals gamma, int rows, int width) {
  // WRITE 01.I: Compute dx of each row, as the formula above says; the means are over the row.
  //   Matrices and rows are as in layer_norm_forward(), which kept mean[rows] and rstd[rows]. `beside` is null if no
  //   gradient reaches x on a path around the norm. If it is dx, each of its values must be read before dx is written
  //   there, by the same lane: `for (int j : lanes(width))` goes over its places.
  for (int row : warp_stride(rows)) {
    const ConstReals in = x + row * width, gradient = dy + row * width;
    const float m = mean[row], r = rstd[row];
    float shift = 0, scale = 0;
    // TODO 01.11: Compute two means over the row, shift = mean(g) and scale = mean(g·x̂).
    //   Shifting or scaling the whole row does not change y, so the gradient must have no component in these two
    //   directions: the means are these components, and the loop below subtracts them.
    //   g = gradient[j]·gamma[j], x̂ = (in[j] - m)·r.
    shift = sum_of(width, [=](int j) { return gradient[j] * gamma[j]; }) / width;
    scale = sum_of(width, [=](int j) { return gradient[j] * gamma[j] * (in[j] - m) * r; }) / width;
    // END TODO 01.11
    for (int j : lanes(width)) {
      const float past = beside == nullptr ? 0.0f : beside[row * width + j];
      dx[row * width + j] = past + r * (gradient[j] * gamma[j] - shift - (in[j] - m) * r * scale);
    }
  }
  // END WRITE 01.I
}

// Computes dgamma = Σ dy·x̂ and dbeta = Σ dy over the rows. `accumulate` is 0 to overwrite them, 1 to add to them.
// One block per eight columns.
static __global__ void layer_norm_parameter_gradients(Reals dgamma, Reals dbeta, ConstReals dy, ConstReals x,
                                                      const float* mean, const float* rstd, int rows, int width,
                                                      float accumulate) {
  for_each_column_sum(
      rows, width,
      [=](int row, int column) {
        const int i = row * width + column;
        return TwoSums{dy[i] * (x[i] - mean[row]) * rstd[row], dy[i]};
      },
      [=](int column, const TwoSums& sums) {
        dgamma[column] = sums.first + (accumulate > 0 ? static_cast<float>(dgamma[column]) : 0.0f);
        dbeta[column] = sums.second + (accumulate > 0 ? static_cast<float>(dbeta[column]) : 0.0f);
      });
}

// Does not own the memory it points into.
struct LayerNorm {
  std::string name;
  int width;
  Real *gamma, *beta;            // [width]
  Real *gamma_grad, *beta_grad;  // [width]
};

// The forward pass keeps these for the backward pass, [rows] each.
struct RowStatistics {
  float *mean, *rstd;
};

// Returns the statistics of the rows from `first` on, in a buffer of reals_spanning(2) per row.
inline RowStatistics statistics_in(const DeviceBuffer<Real>& buffer, int first = 0) {
  auto* floats = static_cast<float*>(static_cast<void*>(buffer.data()));
  return {floats + first, floats + buffer.size() / reals_spanning(2) + first};
}

// Computes y[rows, width] from x[rows, width].
inline void norm_forward(const LayerNorm& l, const Real* x, Real* y, RowStatistics kept, int rows,
                         cudaStream_t stream) {
  launch(layer_norm_forward, rows * l.width, stream, y, kept.mean, kept.rstd, x, l.gamma, l.beta, rows, l.width);
  probe("01.10", l.name, y, {rows, l.width}, stream);
  if (rows > 1) probe("01.10", {l.name, ": mean"}, kept.mean, {rows}, stream);  // a single mean near 0 is all rounding
  probe("01.10", {l.name, ": rstd"}, kept.rstd, {rows}, stream);
}

// Computes the gradients of gamma and beta, and dx[rows, width] = beside + the gradient of x. `beside` may be null or
// dx.
inline void norm_backward(const LayerNorm& l, const Real* x, RowStatistics kept, const Real* dy, const Real* beside,
                          Real* dx, int rows, float accumulate, cudaStream_t stream) {
  launch(layer_norm_parameter_gradients, rows * l.width, stream, l.gamma_grad, l.beta_grad, dy, x, kept.mean, kept.rstd,
         rows, l.width, accumulate);
  launch(layer_norm_backward, rows * l.width, stream, dx, beside, dy, x, kept.mean, kept.rstd, l.gamma, rows, l.width);
  probe("01.11", {"gradient below ", l.name}, dx, {rows, l.width}, stream);
}

}  // namespace workshop
