// SPDX-License-Identifier: Apache-2.0
// The gradients of weights that a backward pass leaves for later, as a zero-bubble pipeline needs (chapter 04).
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/device/device.h"
#include "model/precision.h"

namespace workshop {

// What is left of the backward pass of one micro-batch: computations, layer by layer, and room for copies of the
// gradients that they need, because the backward pass overwrites these. All other data that the computations read must
// stay where it is until they have run.
class DeferredWeights {
 public:
  // `accumulate`: 1 to add to the gradients of the weights, 0 to overwrite them.
  using Computation = std::function<void(float accumulate)>;

  // For a model of this many layers, with room for this many Reals of gradients.
  DeferredWeights(int layers, std::size_t room) : left_(layers), room_(room, Memory::activations) {}

  // Says which layer's backward pass comes next.
  void begin_layer(int layer) { layer_ = layer; }
  // Returns where `count` Reals of a gradient can be kept until clear().
  Real* room_for(std::size_t count) {
    if (used_ + count > room_.size()) {
      fail(kFailed,
           "no room for a gradient: the layer keeps more than its deferred() says, or nobody has computed what "
           "an earlier micro-batch left");
    }
    used_ += count;
    return room_.data() + used_ - count;
  }
  void leave(Computation computation) { left_[layer_].push_back(std::move(computation)); }

  // Does what the layer has left, in the same order.
  void compute(int layer, float accumulate) const {
    for (const Computation& computation : left_[layer]) computation(accumulate);
  }
  bool empty() const {
    return std::ranges::all_of(left_, [](const auto& computations) { return computations.empty(); });
  }
  // Forgets everything, for the next micro-batch.
  void clear() {
    for (auto& computations : left_) computations.clear();
    used_ = 0;
  }

 private:
  int layer_ = 0;
  std::vector<std::vector<Computation>> left_;  // indexed by layer
  DeviceBuffer<Real> room_;
  std::size_t used_ = 0;
};

}  // namespace workshop
