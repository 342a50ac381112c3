// SPDX-License-Identifier: Apache-2.0
// A batch of samples, the input of a training step.
#pragma once

#include <cstddef>

namespace workshop {

// Samples on the device. Only a model's first layer and its loss know the type of x and y: floats [samples, in] and
// [samples, out], or token ids.
struct Batch {
  const void *x = nullptr, *y = nullptr;
  int samples = 0;
  std::size_t x_bytes = 0, y_bytes = 0;  // per sample
  int step = -1;                         // of the training run; -1: none, as in validation
  int number = 0, stride = 1;            // of all replicas' samples of the step, sample i has index number + i * stride
  int samples_of_step = 0;               // on this replica; 0: none
  float* auxiliary = nullptr;            // on the device: add the auxiliary loss here (chapter 09), unless null
  float* correct = nullptr;              // on the device: add the share of correct answers here, unless null

  // Returns the same samples with x replaced by the output of a layer.
  Batch with_x(const void* other) const {
    Batch batch = *this;
    batch.x = other;
    return batch;
  }

  // Returns the samples [first, first + count) of this batch.
  Batch slice(int first, int count) const {
    const auto at = [](const void* from, std::size_t bytes) { return static_cast<const std::byte*>(from) + bytes; };
    Batch batch = *this;
    batch.x = at(x, first * x_bytes);
    batch.y = at(y, first * y_bytes);
    batch.samples = count;
    batch.number += first * stride;
    return batch;
  }
};

}  // namespace workshop
