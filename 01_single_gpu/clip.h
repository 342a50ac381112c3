// SPDX-License-Identifier: Apache-2.0
// The norm of a gradient, over all parameters together, and clipping by it (Pascanu et al., 2013).
#pragma once

#include <algorithm>
#include <cmath>

#include "common/device.h"
#include "rows.h"

namespace workshop {

// sums[i] = Σ values² over chunk number i of `length` values.
__global__ void chunk_squares(float* sums, const float* values, int n, int length) {
  for (int chunk : grid_stride((n + length - 1) / length)) {
    const int first = chunk * length, count = n - first < length ? n - first : length;
    sums[chunk] = sum_of(count, [=](int i) { return values[first + i] * values[first + i]; });
  }
}

__global__ void add_chunks(float* total, const float* sums, int chunks) {
  for ([[maybe_unused]] int once : grid_stride(1)) *total = sum_of(chunks, [=](int i) { return sums[i]; });
}

__global__ void take_root(float* value) {
  for ([[maybe_unused]] int once : grid_stride(1)) *value = sqrtf(*value);
}

// Scales values[n], whose norm is *norm, to a norm of at most `most`, as torch.nn.utils.clip_grad_norm_ does.
__global__ void clip_to(float* values, const float* norm, float most, int n) {
  const float factor = most / (*norm + 1e-6f);
  for (int i : grid_stride(n)) values[i] *= factor < 1 ? factor : 1.0f;
}

// The gradient's norm stays on the device: no step waits for it.
class Clipping {
 public:
  // For gradients of `count` values. `most` is the largest norm that they may have, 0 for any.
  Clipping(int count, double most, cudaStream_t stream)
      : count_(count), most_(static_cast<float>(most)), stream_(stream), sums_(chunks(), Memory::data) {}

  // *square = Σ grad². For a gradient that lies on several ranks, the sum over them is the whole one's.
  void square(const float* grad, float* square) const {
    launch(chunk_squares, count_, stream_, sums_.data(), grad, count_, kLength);
    launch(add_chunks, 1, stream_, square, sums_.data(), chunks());
  }

  // Turns the square of the norm into the norm, and clips this rank's part of the gradient by it.
  void clip(float* grad, float* norm) const {
    launch(take_root, 1, stream_, norm);
    if (most_ > 0) launch(clip_to, count_, stream_, grad, norm, most_, count_);
  }

 private:
  static constexpr int kLength = 1024;
  int chunks() const { return (count_ + kLength - 1) / kLength; }

  int count_;
  float most_;
  cudaStream_t stream_;
  DeviceBuffer<float> sums_;
};

}  // namespace workshop
