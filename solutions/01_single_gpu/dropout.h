// SPDX-License-Identifier: Apache-2.0
// Dropout (Srivastava et al., 2014) without a stateful generator: whether a value is dropped depends only on its place
// in the model and in the step's samples. So the backward pass makes the same mask again instead of keeping it, and
// every strategy drops the same values, on any number of ranks.
#pragma once

#include <cstdint>

#include "common/base/random.h"
#include "common/data/batch.h"
#include "common/device/launch.h"
#include "common/record/record.h"
#include "model/model.h"

namespace workshop {

// Returns draw number 0, 1, 2, … of the SplitMix64 sequence: independent random bits for each number.
__host__ __device__ inline std::uint64_t random_bits(std::uint64_t number) {
  return splitmix64((number - 1) * kSplitMix64Step);
}

// The part of a split tensor that a rank holds: of every `whole` consecutive values, `count` from number `first` on. By
// default, all of them.
struct DropoutPart {
  int count = 1, whole = 1, first = 0;
};

// Copies x to y with some values set to zero and the others multiplied by `scale`. The n values are the `part` of all
// samples' values; a whole sample has `width`. The samples' numbers are number, number + stride, …. y may be x.
static __global__ void drop(Reals y, ConstReals x, int n, DropoutPart part, int width, int number, int stride,
                            std::uint64_t key, std::uint32_t threshold, float scale) {
  for (int i : grid_stride(n)) {
    const int place = i / part.count * part.whole + part.first + i % part.count;  // in the whole tensor
    const std::uint64_t sample =
        static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(place / width) * stride;
    const std::uint32_t random = static_cast<std::uint32_t>(random_bits(key + sample * width + place % width) >> 40);
    y[i] = random < threshold ? 0.0f : x[i] * scale;
  }
}

// Dropout at one place of the model, for one batch, on a rank that holds this part of the values.
class Dropout {
 public:
  Dropout(double probability, std::uint64_t seed, int layer, int place, const Batch& batch, DropoutPart part = {})
      : probability_(batch.step < 0 ? 0 : probability),
        key_(random_bits(random_bits(random_bits(random_bits(seed) + batch.step) + layer) + place)),
        number_(batch.number),
        stride_(batch.stride),
        part_(part) {}

  // Returns false where nothing is dropped: without --dropout, and outside training.
  bool active() const { return probability_ > 0; }

  // Computes y from x (samples·width values; y may be x), forward or backward: the mask is the same. Does nothing if
  // not active.
  void apply(Real* y, const Real* x, int samples, int width, cudaStream_t stream) const {
    if (!active() || samples == 0) return;
    const std::uint32_t threshold = static_cast<std::uint32_t>(probability_ * (1 << 24));
    float scale = 1;
    // TODO 01.16: Set `scale`, by which the values that are kept are multiplied.
    //   Each is kept with probability 1 - probability_. The mean of y over all masks must be x, so that nothing has to
    //   be scaled outside training.
    scale = static_cast<float>(1 / (1 - probability_));
    // END TODO 01.16
    launch(drop, samples * width, stream, y, x, samples * width, part_, width * (part_.whole / part_.count), number_,
           stride_, key_, threshold, scale);
    probe("01.16", "what dropout has left", y, {samples, width}, stream);
  }

 private:
  double probability_;
  std::uint64_t key_;
  int number_, stride_;
  DropoutPart part_;
};

}  // namespace workshop
