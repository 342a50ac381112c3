// SPDX-License-Identifier: Apache-2.0
// The norm of a gradient, over all parameters together, and clipping by it (Pascanu et al., 2013).
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/device/device.h"
#include "common/nccl/group.h"
#include "common/options/options.h"
#include "model/rows.h"

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

// What a rank has of a gradient that several ranks hold together.
struct GradientParts {
  using Range = std::span<Real>;
  std::vector<Range> held;            // all of it
  std::vector<Range> counted = held;  // whose squares this rank adds up: each element of the whole gradient must count
                                      // on exactly one rank

  // Values in the largest range.
  int largest() const {
    std::size_t largest = 0;
    for (const Range& range : held) largest = std::max(largest, range.size());
    return static_cast<int>(largest);
  }
};

// Forms the gradient's norm and clips by it. The norm is a float on the device, so that no step waits for it: it starts
// as zero, as LossLog::gradient_norm() does. Call nothing else unless enabled().
class Clipping {
 public:
  // For ranges of at most `largest` values.
  Clipping(const Options& options, int largest, cudaStream_t stream)
      : enabled_(options.needs_norm()),
        most_(static_cast<float>(options.step_size.clip_norm)),
        stream_(stream),
        sums_(enabled_ ? chunks(largest) : 0, Memory::data) {}

  // Whether this run needs the norm: to clip by it or, with a language model, to record it.
  bool enabled() const { return enabled_; }

  // On a rank that has the whole gradient: makes *norm the norm of grads[count] and clips them by it.
  void clip(Real* grads, int count, float* norm) const {
    add_squares(grads, count, norm);
    take_root(norm);
    scale(grads, count, norm);
  }

  // On ranks that hold it together: makes *norm the norm of the whole gradient, the same on every rank of the group,
  // and clips this rank's parts by it. Collective.
  void clip(const GradientParts& mine, const Group& group, float* norm) const {
    add_squares(mine, norm);
    sum_over(group, norm);
    take_root(norm);
    scale(mine, norm);
  }

  // The steps of that, for programs that do something in between.
  void add_squares(const GradientParts& mine, float* norm) const {
    for (const GradientParts::Range& range : mine.counted)
      add_squares(range.data(), static_cast<int>(range.size()), norm);
  }
  void add_squares(const Real* grads, int count, float* norm) const {
    if (count == 0) return;
    launch(chunk_squares, count, stream_, sums_.data(), grads, count, kLength);
    launch(add_sum, 1, stream_, norm, sums_.data(), 1.0f, chunks(count));
  }
  void sum_over(const Group& group, float* norm) const {
    if (group.size() > 1) NCCL_CHECK(ncclAllReduce(norm, norm, 1, ncclFloat, ncclSum, group.comm(), stream_));
  }
  void take_root(float* norm) const { launch(workshop::take_root, 1, stream_, norm); }
  void scale(const GradientParts& mine, const float* norm) const {
    for (const GradientParts::Range& range : mine.held) scale(range.data(), static_cast<int>(range.size()), norm);
  }
  void scale(Real* grads, int count, const float* norm) const {
    if (most_ > 0) launch(clip_to, count, stream_, grads, norm, most_, count);
  }

 private:
  static constexpr int kLength = 1024;
  static int chunks(int count) { return (count + kLength - 1) / kLength; }

  bool enabled_;
  float most_;  // the largest norm; 0: any
  cudaStream_t stream_;
  DeviceBuffer<float> sums_;
};

}  // namespace workshop
