// SPDX-License-Identifier: Apache-2.0
// Layer normalization (Ba et al., 2016) by hand: y = x̂·γ + β with x̂ = (x - mean) / √(variance + ε), row by row.
#pragma once

#include <cmath>

#include "common/launch.h"

namespace workshop {

// y[rows, width] from x[rows, width], and what the backward pass needs: mean[rows] and rstd[rows] = 1/√(variance + ε),
// with PyTorch's ε. One row an iteration: rows do not depend on each other, which is why they can be cut over ranks.
__global__ void layer_norm_forward(float* y, float* mean, float* rstd, const float* x, const float* gamma,
                                   const float* beta, int rows, int width) {
  for (int row : grid_stride(rows)) {
    const float* in = x + row * width;
    float sum = 0, squares = 0;
    for (int j = 0; j < width; ++j) sum += in[j];
    const float m = sum / width;
    for (int j = 0; j < width; ++j) squares += (in[j] - m) * (in[j] - m);
    const float r = 1.0f / sqrtf(squares / width + 1e-5f);
    for (int j = 0; j < width; ++j) y[row * width + j] = (in[j] - m) * r * gamma[j] + beta[j];
    mean[row] = m;
    rstd[row] = r;
  }
}

// dx = rstd · (g - mean(g) - x̂ · mean(g·x̂)) with g = dy·γ. The two means are what a shift and a scaling of the whole
// row would change, and the normalization takes both out again.
__global__ void layer_norm_backward(float* dx, const float* dy, const float* x, const float* mean, const float* rstd,
                                    const float* gamma, int rows, int width) {
  for (int row : grid_stride(rows)) {
    const float *in = x + row * width, *gradient = dy + row * width;
    float sum = 0, product = 0;
    for (int j = 0; j < width; ++j) {
      const float g = gradient[j] * gamma[j];
      sum += g;
      product += g * (in[j] - mean[row]) * rstd[row];
    }
    for (int j = 0; j < width; ++j) {
      const float normed = (in[j] - mean[row]) * rstd[row];
      dx[row * width + j] = rstd[row] * (gradient[j] * gamma[j] - (sum + normed * product) / width);
    }
  }
}

// dγ = Σ dy·x̂ and dβ = Σ dy over the rows that are given. One column an iteration.
__global__ void layer_norm_parameter_gradients(float* dgamma, float* dbeta, const float* dy, const float* x,
                                               const float* mean, const float* rstd, int rows, int width) {
  for (int j : grid_stride(width)) {
    float gamma = 0, beta = 0;
    for (int row = 0; row < rows; ++row) {
      gamma += dy[row * width + j] * (x[row * width + j] - mean[row]) * rstd[row];
      beta += dy[row * width + j];
    }
    dgamma[j] = gamma;
    dbeta[j] = beta;
  }
}

}  // namespace workshop
