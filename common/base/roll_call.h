// SPDX-License-Identifier: Apache-2.0
// Shows which ranks of this node have started, before anything connects them: each takes a name in the abstract socket
// namespace, which vanishes with its process.
#pragma once

#include <string>
#include <thread>

#include "common/base/ranks.h"

namespace workshop {

// True for the first process of the job on this node that asks, false for all others.
bool first_of_job();

// The first process calls this before it ends. Without MPI, it waits until the others that fail in the same way have
// asked, too; the launcher may end it sooner. (If it ended at once, the launcher would end the others.)
void let_others_pass();

// Makes this rank visible to the others of its node.
void answer_roll_call(const Ranks& ranks);

// Names the ranks that have not started or are stopped, as far as this node knows: "rank 3 has not started".
std::string call_roll(const Ranks& ranks);

// Ends the job with status 1 and a line that names the missing ranks, unless it is destroyed within `seconds`. MPI_Init
// waits for all ranks without a deadline, and the watchdog starts only after MPI_Init.
class JoinDeadline {
 public:
  JoinDeadline(const Ranks& ranks, int seconds);

 private:
  std::jthread thread_;
};

}  // namespace workshop
