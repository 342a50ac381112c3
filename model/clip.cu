// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/device/launch.h"
#include "common/options/options.h"
#include "model/clip.h"
#include "model/rows.h"

namespace workshop {
namespace {

constexpr int kLength = 1024;  // values per chunk; one thread adds up the squares of a chunk

int chunks(int count) { return (count + kLength - 1) / kLength; }

// sums[i] = Σ values² over chunk i of `length` values.
__global__ void chunk_squares(float* sums, ConstReals values, int n, int length) {
  for (int chunk : grid_stride((n + length - 1) / length)) {
    const int first = chunk * length, count = n - first < length ? n - first : length;
    sums[chunk] = sum_of(count, [=](int i) { return values[first + i] * values[first + i]; });
  }
}

__global__ void square_root(float* value) {
  for ([[maybe_unused]] int once : grid_stride(1)) *value = sqrtf(*value);
}

// Scales values[n] so that the norm, which is *norm, becomes at most `most`, like torch.nn.utils.clip_grad_norm_.
__global__ void clip_to(Reals values, const float* norm, float most, int n) {
  const float factor = most / (*norm + 1e-6f);
  for (int i : grid_stride(n)) values[i] *= factor < 1 ? factor : 1.0f;
}

}  // namespace

int GradientParts::largest() const {
  std::size_t largest = 0;
  for (const Range& range : held) largest = std::max(largest, range.size());
  return static_cast<int>(largest);
}

Clipping::Clipping(const Options& options, int largest, cudaStream_t stream)
    : enabled_(options.needs_norm()),
      most_(static_cast<float>(options.step_size.clip_norm)),
      stream_(stream),
      sums_(enabled_ ? chunks(largest) : 0, Memory::data) {}

void Clipping::clip(Real* grads, int count, float* norm) const {
  add_squares(grads, count, norm);
  take_root(norm);
  scale(grads, count, norm);
}

void Clipping::clip(const GradientParts& mine, const Group& group, float* norm) const {
  add_squares(mine, norm);
  sum_over(group, norm);
  take_root(norm);
  scale(mine, norm);
}

void Clipping::add_squares(const GradientParts& mine, float* norm) const {
  for (const GradientParts::Range& range : mine.counted) {
    add_squares(range.data(), static_cast<int>(range.size()), norm);
  }
}

void Clipping::add_squares(const Real* grads, int count, float* norm) const {
  if (count == 0) return;
  launch(chunk_squares, count, stream_, sums_.data(), grads, count, kLength);
  launch(add_sum, 1, stream_, norm, sums_.data(), 1.0f, chunks(count));
}

void Clipping::sum_over(const Group& group, float* norm) const {
  if (group.size() > 1) NCCL_CHECK(ncclAllReduce(norm, norm, 1, ncclFloat, ncclSum, group.comm(), stream_));
}

void Clipping::take_root(float* norm) const { launch(square_root, 1, stream_, norm); }

void Clipping::scale(const GradientParts& mine, const float* norm) const {
  for (const GradientParts::Range& range : mine.held) scale(range.data(), static_cast<int>(range.size()), norm);
}

void Clipping::scale(Real* grads, int count, const float* norm) const {
  if (most_ > 0) launch(clip_to, count, stream_, grads, norm, most_, count);
}

}  // namespace workshop
