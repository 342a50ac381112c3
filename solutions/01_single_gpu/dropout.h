// SPDX-License-Identifier: Apache-2.0
// Dropout (Srivastava et al., 2014) without a generator that has a state: whether a value is dropped follows only from
// its place in the model and in the step's samples. So the backward pass makes the same mask again instead of keeping
// it, and every strategy drops the same values, on any number of ranks.
#pragma once

#include <cstdint>

#include "common/base/random.h"
#include "common/data/batch.h"
#include "common/device/launch.h"
#include "common/record/record.h"
#include "model/model.h"

namespace workshop {

// The draw with this number, 0, 1, 2, …, of SplitMix64's sequence: independent random bits for each.
__host__ __device__ inline std::uint64_t random_bits(std::uint64_t number) {
  return splitmix64((number - 1) * kSplitMix64Step);
}

// The values that a rank has where a tensor is cut: of every `whole` in a row, `count` from number `first` on. By
// default it has all.
struct DropoutPart {
  int count = 1, whole = 1, first = 0;
};

// y = x with some values set to zero and the others multiplied by `scale`: n values, which are `part` of those of all
// samples, `width` of each. The samples' numbers are number, number + stride, …. y may be x.
static __global__ void drop(Reals y, ConstReals x, int n, DropoutPart part, int width, int number, int stride,
                            std::uint64_t key, std::uint32_t threshold, float scale) {
  for (int i : grid_stride(n)) {
    const int place = i / part.count * part.whole + part.first + i % part.count;  // among those of all ranks
    const std::uint64_t sample =
        static_cast<std::uint64_t>(number) + static_cast<std::uint64_t>(place / width) * stride;
    const std::uint32_t random = static_cast<std::uint32_t>(random_bits(key + sample * width + place % width) >> 40);
    y[i] = random < threshold ? 0.0f : x[i] * scale;
  }
}

// Dropout at one place of the model, for one batch, on a rank that has this part of the values there.
class Dropout {
 public:
  Dropout(double probability, std::uint64_t seed, int layer, int place, const Batch& batch, DropoutPart part = {})
      : probability_(batch.step < 0 ? 0 : probability),
        key_(random_bits(random_bits(random_bits(random_bits(seed) + batch.step) + layer) + place)),
        number_(batch.number),
        stride_(batch.stride),
        part_(part) {}

  // False where nothing is dropped: without --dropout, and where the model is not trained.
  bool active() const { return probability_ > 0; }

  // y from x, which may be y: samples·width values. The backward pass too: it is the same mask. Does nothing if it is
  // not active.
  void apply(Real* y, const Real* x, int samples, int width, cudaStream_t stream) const {
    if (!active() || samples == 0) return;
    const std::uint32_t threshold = static_cast<std::uint32_t>(probability_ * (1 << 24));
    float scale = 1;
    // TODO 01.16: Set `scale`, by which the values that stay are multiplied.
    //   Each stays with the probability 1 - probability_. The mean of y over all masks is to be x: then nothing has to
    //   be scaled where the model is not trained.
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
