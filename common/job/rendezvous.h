// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job meet that MPI did not start: rank 0 listens at the meeting point, counts who comes, and hands
// out what the others need to know, NCCL's id. NCCL's own bootstrap would do without, but it waits forever for a rank
// that never comes, and does not say which.
#pragma once

#include <stdexcept>
#include <string>

#include "common/base/environment.h"

namespace workshop {

// The ranks did not meet; what() is one line that says why.
struct MeetingFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Rank 0's `message` on every rank, once all of them have come. Who does not know `key` is turned out, and disturbs
// nothing; it must be the same on all ranks. Throws MeetingFailed: on rank 0 and on all who have come to it if some do
// not come in time, if two have the same rank, or if one ends again; on the others if they cannot find rank 0.
std::string meet(const MeetingPoint& point, const std::string& key, int rank, int world, const std::string& message);

// The same for this process's job, from its environment; ends the job if the ranks do not meet.
std::string meet_without_mpi(const Ranks& ranks, const std::string& message);

}  // namespace workshop
