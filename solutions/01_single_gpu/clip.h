// SPDX-License-Identifier: Apache-2.0
// The norm of a gradient, over all parameters together, and clipping by it (Pascanu et al., 2013).
#pragma once

#include <algorithm>
#include <cmath>

#include "common/device.h"
#include "common/group.h"
#include "common/options.h"
#include "rows.h"

namespace workshop {

// sums[i] = Σ values² over chunk number i of `length` values.
static __global__ void chunk_squares(float* sums, ConstReals values, int n, int length) {
  for (int chunk : grid_stride((n + length - 1) / length)) {
    const int first = chunk * length, count = n - first < length ? n - first : length;
    sums[chunk] = sum_of(count, [=](int i) { return values[first + i] * values[first + i]; });
  }
}

static __global__ void take_root(float* value) {
  for ([[maybe_unused]] int once : grid_stride(1)) *value = sqrtf(*value);
}

// Scales values[n], whose norm is *norm, to a norm of at most `most`, as torch.nn.utils.clip_grad_norm_ does.
static __global__ void clip_to(Reals values, const float* norm, float most, int n) {
  const float factor = most / (*norm + 1e-6f);
  for (int i : grid_stride(n)) values[i] *= factor < 1 ? factor : 1.0f;
}

// The gradient's norm stays on the device: no step waits for it. Nothing happens where no norm is needed and `norm`,
// LossLog::gradient_norm(), is null.
class Clipping {
 public:
  // For gradients of at most `count` values in a piece.
  Clipping(const Options& options, int count, cudaStream_t stream)
      : most_(static_cast<float>(options.step_size.clip_norm)),
        stream_(stream),
        sums_(options.needs_norm() ? chunks(count) : 0, Memory::data) {}

  // *norm is made the norm of grad[count], which is clipped by it. All of the gradient is there, as in chapter 02.
  void clip_whole(Real* grad, int count, float* norm) const {
    add_squares(grad, count, norm);
    finish(norm, {});
    clip(grad, count, norm);
  }

  // Where it is not, or in several pieces: adds each piece's squares to *norm, which is zero at first …
  void add_squares(const Real* grad, int count, float* norm) const {
    if (norm == nullptr || count == 0) return;
    launch(chunk_squares, count, stream_, sums_.data(), grad, count, kLength);
    launch(add_sum, 1, stream_, norm, sums_.data(), 1.0f, chunks(count));
  }
  // … makes their sum over the ranks, each of which has added its own pieces, the norm …
  void finish(float* norm, const Group& ranks) const {
    if (norm == nullptr) return;
    if (ranks.size() > 1) NCCL_CHECK(ncclAllReduce(norm, norm, 1, ncclFloat, ncclSum, ranks.comm(), stream_));
    launch(take_root, 1, stream_, norm);
  }
  // … and clips each piece by it.
  void clip(Real* grad, int count, const float* norm) const {
    if (norm != nullptr && most_ > 0) launch(clip_to, count, stream_, grad, norm, most_, count);
  }

 private:
  static constexpr int kLength = 1024;
  static int chunks(int count) { return (count + kLength - 1) / kLength; }

  float most_;
  cudaStream_t stream_;
  DeviceBuffer<float> sums_;
};

}  // namespace workshop
