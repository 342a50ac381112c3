// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/base/check.h"
#include "common/device/launch.h"
#include "common/options/options.h"
#include "model/clip.h"
#include "model/clip_kernels.h"

namespace workshop {
namespace {

constexpr int kLength = 1024;  // values per chunk

int chunks(int count) { return (count + kLength - 1) / kLength; }

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
