// SPDX-License-Identifier: Apache-2.0
// Kernels that treat each element of an array by itself. Not every program uses all of them.
#pragma once

#include "common/device/launch.h"
#include "model/precision.h"

namespace workshop {

[[maybe_unused]] static __global__ void fill(Reals y, float value, int n) {
  for (int i : grid_stride(n)) y[i] = value;
}

// y += factor·x
[[maybe_unused]] static __global__ void add_scaled(Reals y, ConstReals x, float factor, int n) {
  for (int i : grid_stride(n)) y[i] += factor * x[i];
}

// The same for floats, which are exact with mixed precision too.
[[maybe_unused]] static __global__ void add_floats(float* y, const float* x, float factor, int n) {
  for (int i : grid_stride(n)) y[i] += factor * x[i];
}

}  // namespace workshop
