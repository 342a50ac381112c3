// SPDX-License-Identifier: Apache-2.0
// What fully sharded data parallelism plans on the host before the first step: where the shards lie, and the passes of
// a batch through the units.
#pragma once

#include <deque>
#include <vector>

#include "common/record.h"
#include "units.h"

namespace workshop {

// A rank's shards of all units lie one after the other in one flat array: an update is one launch.
struct ShardLayout {
  std::vector<int> offsets;  // of each unit's shard
  int count = 0;             // of the values in the array
};

inline ShardLayout lay_out(const std::deque<Unit>& units) {
  ShardLayout layout;
  for (const Unit& unit : units) {
    // TODO 06.11: Give the unit's shard the next place in the array.
    //   Append its offset to layout.offsets, and let layout.count grow by what a rank keeps of the unit. The optimizer
    //   is made for layout.count values.
    layout.offsets.push_back(layout.count);
    layout.count += unit.sharding.shard;
    // END TODO 06.11
  }
  probe("06.11", "offset of the shard of each unit", layout.offsets);
  probe("06.11", "values in the array", std::vector<int>{layout.count});
  return layout;
}

// One pass through a unit. A batch makes two of them through each.
struct Pass {
  int unit;
  bool backward;
  bool gather;  // the unit's parameters have to be gathered for it
};

inline std::vector<Pass> make_passes(int units, bool reshard_after_forward) {
  std::vector<Pass> passes;
  // TODO 06.12: List the passes of one batch in their order: passes.push_back({unit, backward, gather}).
  //   Forward from the first unit to the last, then backward. Which have to be gathered again for their backward pass?
  for (int unit = 0; unit < units; ++unit) passes.push_back({unit, false, true});
  for (int unit = units - 1; unit >= 0; --unit) passes.push_back({unit, true, reshard_after_forward});
  // END TODO 06.12
  std::vector<int> numbers;
  for (const Pass& pass : passes) {
    numbers.insert(numbers.end(), {pass.unit, pass.backward, pass.gather});
  }
  probe("06.12", "unit, backward and gather of each pass", numbers);
  return passes;
}

}  // namespace workshop
