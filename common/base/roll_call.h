// SPDX-License-Identifier: Apache-2.0
// What the ranks of one node know of each other before anything connects them: each takes a name in the abstract socket
// space, which vanishes with its process.
#pragma once

#include <string>
#include <thread>

#include "common/base/ranks.h"

namespace workshop {

// True for one process of the job on this node: the first that asks.
bool first_of_job();

// Call as the first, before ending: without MPI it stays until the others who get here have asked too, or the launcher,
// which ends them when one has ended, ends it.
void let_others_pass();

// From here on this rank has started, as far as the others of its node can see.
void answer_roll_call(const Ranks& ranks);

// Which ranks have not started, or are stopped, as far as this node knows: "rank 3 has not started".
std::string call_roll(const Ranks& ranks);

// Ends the job with status 1 and a line that says which ranks are missing, unless it is destroyed before `seconds` are
// over. MPI_Init waits for all ranks, with no deadline of its own, and the watchdog needs what MPI_Init brings.
class JoinDeadline {
 public:
  JoinDeadline(const Ranks& ranks, int seconds);

 private:
  std::jthread thread_;
};

}  // namespace workshop
