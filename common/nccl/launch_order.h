// SPDX-License-Identifier: Apache-2.0
// Finds NCCL calls of several communicators that the ranks launch in different orders.
//
// All ranks must launch their calls in one order, over all communicators (NCCL user guide, "Using multiple NCCL
// communicators concurrently"): a device may have room for only one call at a time, and then two ranks with different
// orders wait for each other forever. With WORKSHOP_ORDER=1, each rank logs what it launches. When the job ends, the
// ranks exchange their logs and simulate devices that run one launch at a time. Only the order of the calls in the
// program matters. So if there is a violation, every run finds it, even a run that does not hang.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

namespace workshop {

// A rank's part in a collective or a message. The ends of a message and the parts of a collective agree in all fields
// up to `number`.
struct LaunchedOperation {
  std::uint64_t communicator = 0;   // Communicator::id
  int sender = -1, receiver = -1;   // of a message: ranks of the communicator; -1 for a collective
  std::int64_t number = 0;          // NcclCall::number
  int launch = 0;                   // counts this rank's launches: a launch is a call outside of groups, or a group
  int call = 0;                     // for the rank's own use: which call in the source
  bool runs_beside_others = false;  // Communicator::runs_beside_others
};

// A rank launches `first` before `second`.
struct LaunchOrder {
  int rank = 0;
  LaunchedOperation first, second;
};

// `logs`: the operations of each rank, in the order in which it launched them. Returns an empty vector if devices that
// run one launch at a time would finish all operations. Otherwise returns a cycle of waiting ranks. Each rank is
// blocked in its `first` until the next rank in the cycle launches the same operation, which is the `second` of that
// next rank.
std::vector<LaunchOrder> find_circle(const std::vector<std::vector<LaunchedOperation>>& logs);

// With WORKSHOP_ORDER=1, starts the log of this rank. Call it before the first communicator is created.
void start_launch_log();

// With WORKSHOP_ORDER=1, ends the job with status 1 if the ranks have launched calls in different orders. Rank 0 prints
// these calls. Collective over `world`, the communicator of all ranks.
void check_launch_order(ncclComm_t world);

}  // namespace workshop
