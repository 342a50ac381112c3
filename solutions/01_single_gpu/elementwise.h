// SPDX-License-Identifier: Apache-2.0
// Kernels that treat each element of an array by itself. Not every program uses all of them.
#pragma once

#include "common/device.h"
#include "common/launch.h"
#include "precision.h"

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

// The floats x[n] as Reals: with mixed precision rounded into `room`, else x itself.
inline const Real* as_reals(const void* x, const DeviceBuffer<Real>& room, int n, cudaStream_t stream) {
  if (!kMixedPrecision) return static_cast<const Real*>(x);
  launch(to_reals, n, stream, room.data(), static_cast<const float*>(x), n);
  return room.data();
}

}  // namespace workshop
