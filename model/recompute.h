// SPDX-License-Identifier: Apache-2.0
// Activation recomputation (Chen et al., 2016): a layer, or a group of consecutive layers, keeps only its output until
// the backward pass, which first repeats the group's forward pass.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/model.h"

namespace workshop {

// The buffers in which one group at a time keeps data for its backward pass. All groups on a device share them. Indexed
// by device, then by j: buffer j is large enough for the j-th largest buffer of each group.
using SharedRoom = std::shared_ptr<std::map<int, std::vector<DeviceBuffer<Real>>>>;

// Returns these consecutive layers as one layer that keeps only its output.
std::shared_ptr<Layer> make_recomputed(std::vector<std::shared_ptr<Layer>> layers, SharedRoom room);

}  // namespace workshop
