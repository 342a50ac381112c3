// SPDX-License-Identifier: Apache-2.0
// Lets all ranks stop at the same step after a signal on any of them.
#pragma once

#include <nccl.h>

#include "common/device/device.h"
#include "common/nccl/group.h"

namespace workshop {

// A rank that stopped by itself would leave the others waiting in their next collective. So the ranks combine their
// signals once per step, by an all-reduce on a stream of its own. Each rank looks at the result of a step kLag steps
// later. By then it has arrived, so no rank waits for it, and all ranks see it at the same step.
class StopTogether {
 public:
  static constexpr int kLag = 4;

  // Collective over `world`. From now on, the first SIGTERM or SIGUSR1 is only noted; see catch_stop_signals().
  explicit StopTogether(const Group& world);

  // Call it before each step, on every rank. Returns 0, or, on all ranks alike, a signal that one of them received.
  int next_step();

 private:
  Group world_;
  Stream stream_{"stop"};
  Event known_[kLag];
  DeviceBuffer<int> flag_;
  HostBuffer<int> mine_, any_;  // [kLag]: the signals of this rank and of any rank
  int step_ = 0;
};

}  // namespace workshop
