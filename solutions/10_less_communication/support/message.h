// SPDX-License-Identifier: Apache-2.0
// Layout of a message between a parameter server and a worker: `count` Reals, parameters or a gradient, then one float,
// the word. After parameters, it says whether to continue; after a gradient, it is the loss of the batch. In mixed
// precision it is a float too, at the next place that is aligned for one.
#pragma once

#include "01_single_gpu/linear.h"

namespace workshop {

inline int place_of_word(int count) { return (count + reals_spanning(1) - 1) / reals_spanning(1) * reals_spanning(1); }
inline float* word_of(Real* message, int count) {
  return static_cast<float*>(static_cast<void*>(message + place_of_word(count)));
}
// Length of a whole message in Reals, and how many of them a probe shows (in bf16, not the trailing float).
inline int message_length(int count) { return place_of_word(count) + reals_spanning(1); }
inline int shown_of_message(int count) { return kMixedPrecision ? count : count + 1; }

// Writes the word that tells a worker to continue.
static __global__ void allow(float* word) {
  for ([[maybe_unused]] int once : grid_stride(1)) *word = 1;
}

}  // namespace workshop
