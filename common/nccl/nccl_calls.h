// SPDX-License-Identifier: Apache-2.0
// Intercepts the NCCL calls that communicate, that open or close groups, and that make or destroy communicators. Uses
// NCCL's own profiling interface, which is like MPI's PMPI: the library's ncclX symbols are weak, and each has a strong
// twin, pncclX. The definitions in nccl_calls.cpp, all in one place, override the weak symbols, notify the observers,
// and call the twin. Chapters need no code for this.
#pragma once

#include <nccl.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/nccl/off_the_record.h"

namespace workshop {

struct Communicator {
  std::uint64_t id = 0;  // the same on all of its ranks; every other communicator has a different one; 0: unknown
  int rank = 0, ranks = 0;
  std::string name = "unnamed";
  bool runs_beside_others = false;                             // see Group::runs_beside_others()
  std::int64_t collectives = 0;                                // number called so far
  std::map<std::pair<bool, int>, std::int64_t> messages = {};  // how many, by direction (true: sent) and peer
};

// Sets the name of a communicator in the ledger and in the watchdog's messages.
void name_communicator(ncclComm_t comm, const std::string& name);

// See Group::runs_beside_others().
void runs_beside_others(ncclComm_t comm);

// The communicators of this process. Hold the mutex to read or change them.
struct Communicators {
  std::mutex mutex;
  std::deque<Communicator> all;  // including closed ones, because NcclCall points into it
  std::map<ncclComm_t, Communicator*> open;
};
Communicators& communicators();

struct NcclCall {
  const char* operation;  // "ncclAllReduce"
  std::size_t count;
  int type;  // ncclDataType_t; -1 for calls without data, which are complete when they return
  int peer;  // the other rank of a message, or the root; -1 if there is neither
  cudaStream_t stream;
  const CallSite* site = nullptr;        // in the program's source; null outside of NCCL_CHECK()
  Communicator* communicator = nullptr;  // null if the handle is not a communicator
  std::int64_t number = 0;               // counts from 1: collectives per communicator, messages by peer and direction
  bool on_record = false;                // has data and is not within OffTheRecord
  std::int64_t watched = -1;             // its index in the watchdog's log
  int reduction = -1;                    // ncclRedOp_t; -1 for calls that combine nothing
  std::array<const void*, 2> buffers{};  // [0] is read by the call, [1] is written; null if the call has none

  std::size_t bytes() const;  // of `count` elements; only for calls with data
};

// Derive from this class to observe the calls.
class CallObserver {
 public:
  // Called before a call is made. May change its fields, such as `watched`. `buffers` and `reduction` are not set yet.
  virtual void call_begins(NcclCall&) {}
  // Called right before and right after calls are enqueued: a single call, or all calls of a group at its end.
  virtual void enqueue_begins(std::span<const NcclCall>) {}
  virtual void enqueued(std::span<const NcclCall>, ncclResult_t) {}

 protected:
  ~CallObserver() = default;
};

// Registers an observer, which must never be destroyed. Observers are notified in the order of registration. Call this
// before the first communicator is created.
void observe_calls(CallObserver& observer);

// Runs `action` after the calls of this thread's open group have been enqueued; immediately if no group is open.
void after_group(std::function<void()> action);
// Returns file:line of the ncclGroupStart() of this thread's open group ("somewhere" if unknown); empty if no group is
// open.
std::string open_group();

}  // namespace workshop
