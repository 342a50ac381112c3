// SPDX-License-Identifier: Apache-2.0
// The activations between linear layers, ReLU and GELU, forward and backward.
#pragma once

#include <cmath>

#include "common/device/launch.h"
#include "common/options/options.h"
#include "model/precision.h"

namespace workshop {

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

// Replaces the gradient of a, in place, by the gradient of z.
inline void activation_backward(Activation activation, Real* da, const Real* z, int n, cudaStream_t stream) {
  launch(activation == Activation::relu ? relu_backward : gelu_backward, n, stream, da, da, z, n);
}

}  // namespace workshop
