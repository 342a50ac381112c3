// SPDX-License-Identifier: Apache-2.0
// Activation checkpoints every few layers (Chen et al., 2016), like activation_checkpoint_interval of DeepSpeed's
// PipelineModule.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "model/recompute.h"

namespace workshop {

// Returns the network with groups of up to `interval` layers as its layers. No group crosses the bounds of a part.
// Changes `bounds` to count groups instead of layers.
inline Network grouped(Network network, std::vector<int>& bounds, int interval) {
  const auto room = std::make_shared<SharedRoom::element_type>();
  std::vector<std::shared_ptr<Layer>> groups;
  std::vector<int> bounds_of_groups = {0};
  for (std::size_t part = 0; part + 1 < bounds.size(); ++part) {
    for (int first = bounds[part]; first < bounds[part + 1]; first += interval) {
      const auto begin = network.layers.begin() + first;
      const int count = std::min(interval, bounds[part + 1] - first);
      groups.push_back(make_recomputed(std::vector(begin, begin + count), room));
    }
    bounds_of_groups.push_back(static_cast<int>(groups.size()));
  }
  network.layers = std::move(groups);
  bounds = std::move(bounds_of_groups);
  return network;
}

}  // namespace workshop
