// SPDX-License-Identifier: Apache-2.0
// What a training step works on.
#pragma once

#include <cstddef>

namespace workshop {

// Some samples on the device. What x and y are, only a model's first layer and its loss know: floats [samples, in] and
// [samples, out], or token ids.
struct Batch {
  const void *x = nullptr, *y = nullptr;
  int samples = 0;
  std::size_t x_bytes = 0, y_bytes = 0;  // of a sample
  int step = -1;                         // of the training; -1: none, as in validation
  int number = 0, stride = 1;            // sample i is number + i * stride of the step's, on all replicas together
  float* correct = nullptr;              // where, on the device, to add the share of right answers, if it is asked for

  // The same samples, as what a layer further down has made of them.
  Batch with_x(const void* other) const {
    Batch batch = *this;
    batch.x = other;
    return batch;
  }

  // The `count` samples from number `first` on.
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
