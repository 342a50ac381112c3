// SPDX-License-Identifier: Apache-2.0
// Activation recomputation (Chen et al., 2016): of a layer, or of a group of consecutive layers, only the output is
// kept until the backward pass, which begins with the group's forward pass once more.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/model.h"

namespace workshop {

// What one group at a time leaves for its backward pass: room that all groups share, on each device that has some. Its
// buffer number j is as large as the j-th largest of any group.
using SharedRoom = std::shared_ptr<std::map<int, std::vector<DeviceBuffer<Real>>>>;

// Layers one after the other, as one layer that keeps only its output.
std::shared_ptr<Layer> make_recomputed(std::vector<std::shared_ptr<Layer>> layers, SharedRoom room);

}  // namespace workshop
