// The watchdog: a thread of each rank that looks whether its NCCL calls, and the calls that the program is in, come to
// an end. Where one does not, the ranks tell each other where they are, say what is wrong, and the job ends. The thread
// asks nothing of the device, so whatever the program is stuck in, the thread is not: a second thread asks which calls
// have completed, and where that gets no answer, none has.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <span>
#include <string>

#include "common/job.h"

namespace workshop {

// Starts the thread, if there are several ranks and WORKSHOP_TIMEOUT is not 0.
void start_watchdog(const Ranks& ranks);

// Lets the ranks know how to reach each other. Collective over `world`, the communicator of all.
void connect_watchdogs(ncclComm_t world);

// Ends the thread. Nobody may be waiting for this rank any more.
void stop_watchdog();

// Lets the thread be, because the process ends.
void dismiss_watchdog();

// While one lives, this rank waits ten times as long for the others: they are reading or writing files.
class SlowFiles {
 public:
  SlowFiles();
  ~SlowFiles();
  SlowFiles(const SlowFiles&) = delete;
  SlowFiles& operator=(const SlowFiles&) = delete;
};

// Ends the job as if a call had not come to its end, if a communicator has failed meanwhile: another rank made a call
// that does not fit, or has ended. Otherwise returns.
void report_failed_communicators(const std::string& error = "");

// ---- what the ledger tells the watchdog -----------------------------------------------------------------------------

// A communicator whose `id` is the same on all of its ranks, and no other's.
void watch_communicator(ncclComm_t comm, std::uint64_t id, const std::string& name);
void rename_watched(ncclComm_t comm, const std::string& name);
void forget_communicator(ncclComm_t comm);

// A call that is watched from begin_call() on. Where it only enqueues work, its end is that of the work.
struct WatchedCall {
  std::int64_t index = -1;  // -1: not watched
  cudaStream_t stream = nullptr;
};
// `peer` is the other rank of a message, or the root; -1 for neither. `type` is -1 for calls without data.
WatchedCall begin_call(const char* operation, std::size_t count, int type, int peer, ncclComm_t comm,
                       cudaStream_t stream);
// Calls that take effect together: one, or a group.
void calls_enqueued(std::span<const WatchedCall> calls);
void call_ended(const WatchedCall& call);

// The id of the communicator that a split with this colour, begun as `call`, makes.
std::uint64_t id_of_split(const WatchedCall& call, int color);

}  // namespace workshop
