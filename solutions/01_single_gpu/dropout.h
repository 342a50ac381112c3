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
#include "model/positions.h"

namespace workshop {

// Returns draw number 0, 1, 2, … of the SplitMix64 sequence: independent random bits for each number.
__host__ __device__ inline std::uint64_t random_bits(std::uint64_t number) {
  return splitmix64((number - 1) * kSplitMix64Step);
}

// The part of a split tensor that a rank holds: of every `whole` consecutive values, `count` from number `first` on. By
// default, all of them. If the sequence is cut, too (chapter 08), these are rows of `row_width` values, of the
// positions `rows` of each sample.
struct DropoutPart {
  int count = 1, whole = 1, first = 0;
  Positions rows = 1;
  int row_width = 1;

  // Returns the place in the whole tensor of the value that is at place i here.
  __device__ int place(int i) const {
    const int place = i / count * whole + first + i % count;
    return rows.row_of_whole(place / row_width) * row_width + place % row_width;
  }
  // Returns how many values of a sample there are in all if `width` are here.
  std::int64_t width(std::int64_t width) const { return width * (whole / count) * (rows.whole / rows.count); }
};

// Dropout of the values of a batch. A whole sample has `width` values. The samples have the numbers `number`,
// `number` + `stride`, ….
struct DropoutMask {
  std::int64_t width;
  int number, stride;
  std::uint64_t key;
  std::uint32_t threshold;
  float scale;

  // Returns by what the value at `place` of the batch's sample `sample` is multiplied: 0 if it is dropped, else
  // `scale`.
  __device__ float factor(int sample, std::int64_t place) const {
    const std::uint64_t id = static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(sample) * stride;
    const std::uint32_t random = static_cast<std::uint32_t>(random_bits(key + id * width + place) >> 40);
    return random < threshold ? 0.0f : scale;
  }
};

// Copies x to y with some values set to zero and the others scaled. The n values are the `part` of all samples' values;
// `width` is that of a whole sample. y may be x.
static __global__ void drop(Reals y, ConstReals x, int n, DropoutPart part, int width, DropoutMask mask) {
  for (int i : grid_stride(n)) {
    const int place = part.place(i);
    const float factor = mask.factor(place / width, place % width);
    y[i] = factor == 0 ? 0.0f : x[i] * factor;
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

  // Returns the mask of samples of `width` values each on this rank. Must be active.
  DropoutMask mask(std::int64_t width) const {
    const std::uint32_t threshold = static_cast<std::uint32_t>(probability_ * (1 << 24));
    float scale = 1;
    // TODO 01.16: Set `scale`, by which the values that are kept are multiplied.
    //   Each is kept with probability 1 - probability_. The mean of y over all masks must be x, so that nothing has to
    //   be scaled outside training.
    scale = static_cast<float>(1 / (1 - probability_));
    // END TODO 01.16
    return {part_.width(width), number_, stride_, key_, threshold, scale};
  }
  // Returns this dropout for one of several equal pieces of the values, each with `count` values of a sample.
  Dropout piece(int number, int pieces, int count) const {
    Dropout piece = *this;
    piece.part_.whole = count * pieces * (part_.whole / part_.count);
    piece.part_.count = count;
    piece.part_.first += number * count;
    return piece;
  }
  // Returns the place in a sample of the first value that this rank holds, if it holds a range of each sample's values.
  int first() const { return part_.first; }

  // Computes y from x (samples·width values; y may be x), forward or backward: the mask is the same. Does nothing if
  // not active.
  void apply(Real* y, const Real* x, int samples, int width, cudaStream_t stream) const {
    if (!active() || samples == 0) return;
    const DropoutMask what = mask(width);
    launch(drop, samples * width, stream, y, x, samples * width, part_, static_cast<int>(what.width), what);
    probe("01.16", "what dropout has left", y, {samples, width}, stream);
  }

 private:
  double probability_;
  std::uint64_t key_;
  int number_, stride_;
  DropoutPart part_;
};

}  // namespace workshop
