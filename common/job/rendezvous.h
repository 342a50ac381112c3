// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job meet if MPI did not start them: rank 0 listens at the meeting point, counts the ranks that
// arrive, and sends them the NCCL id. NCCL's own bootstrap could do this, but it waits forever for a rank that never
// comes and does not say which one.
#pragma once

#include <stdexcept>
#include <string>

#include "common/base/environment.h"

namespace workshop {

// The ranks did not meet. what() gives the reason in one line.
struct MeetingFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns rank 0's `message` on every rank, once all ranks have arrived. `key` must be the same on all ranks: a peer
// that does not know it is disconnected, and the meeting goes on. If a rank does not arrive in time, if two processes
// have the same rank, or if a rank ends early, throws MeetingFailed on rank 0 and on all ranks that have reached it.
// Also throws MeetingFailed on a rank that cannot reach rank 0.
std::string meet(const MeetingPoint& point, const std::string& key, int rank, int world, const std::string& message);

// Calls meet() with this process's meeting point and key, from the environment. Ends the job if the ranks do not meet.
std::string meet_without_mpi(const Ranks& ranks, const std::string& message);

}  // namespace workshop
