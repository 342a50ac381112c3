// SPDX-License-Identifier: Apache-2.0
// The kernels of model/clip.cu.
#pragma once

#include <cmath>

#include "model/rows.h"

namespace workshop {

// sums[i] = Σ values² over chunk i of `length` values. One warp adds up a chunk.
static __global__ void chunk_squares(float* sums, ConstReals values, int n, int length) {
  for (int chunk : warp_stride((n + length - 1) / length)) {
    const int first = chunk * length, count = n - first < length ? n - first : length;
    sums[chunk] = sum_of(count, [=](int i) { return values[first + i] * values[first + i]; });
  }
}

static __global__ void square_root(float* value) {
  for ([[maybe_unused]] int once : grid_stride(1)) *value = sqrtf(*value);
}

// Scales values[n] so that the norm, which is *norm, becomes at most `most`, like torch.nn.utils.clip_grad_norm_. In
// most steps the norm is small enough, and the values need not be read: with --cpu-offload, they are on the host.
static __global__ void clip_to(Reals values, const float* norm, float most, int n) {
  const float factor = most / (*norm + 1e-6f);
  if (!(factor < 1)) return;
  for (int i : grid_stride(n)) values[i] *= factor;
}

}  // namespace workshop
