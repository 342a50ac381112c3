// SPDX-License-Identifier: Apache-2.0
// Kernels that treat each element of an array separately. Not every program uses all of them.
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

// y *= factor
[[maybe_unused]] static __global__ void scale_by(Reals y, float factor, int n) {
  for (int i : grid_stride(n)) y[i] *= factor;
}

// y += factor·x for arrays that stay float32 with mixed precision.
[[maybe_unused]] static __global__ void add_floats(float* y, const float* x, float factor, int n) {
  for (int i : grid_stride(n)) y[i] += factor * x[i];
}

}  // namespace workshop
