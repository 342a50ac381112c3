// SPDX-License-Identifier: Apache-2.0
// Every NCCL call of a program passes through here once, by NCCL's own profiling interface: the library's ncclX symbols
// are weak and each has a strong twin pncclX, as MPI has PMPI. What nccl_calls.cpp defines wins over the library, tells
// the observers of the call, and goes on to the twin. Chapters contain nothing for it.
#pragma once

#include <nccl.h>

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
  std::uint64_t id = 0;  // the same on all of its ranks, and no other's; 0 where nothing tells
  int rank = 0, ranks = 0;
  std::string name = "unnamed";
  std::int64_t collectives = 0;                                // called so far
  std::map<std::pair<bool, int>, std::int64_t> messages = {};  // sent to (true) and received from each peer
};

// What the ledger and the watchdog call a communicator.
void name_communicator(ncclComm_t comm, const std::string& name);

// The communicators of this process. Whoever looks into it holds the mutex.
struct Communicators {
  std::mutex mutex;
  std::deque<Communicator> all;  // that ever were: calls refer to them
  std::map<ncclComm_t, Communicator*> open;
};
Communicators& communicators();

struct NcclCall {
  const char* operation;  // "ncclAllReduce"
  std::size_t count;
  int type;  // ncclDataType_t; -1 for calls without data, which are over when they return
  int peer;  // the other rank of a message, or the root; -1 for neither
  cudaStream_t stream;
  const CallSite* site = nullptr;        // where the program makes it; null outside of NCCL_CHECK()
  Communicator* communicator = nullptr;  // null where the handle is none
  std::int64_t number = 0;               // collectives of a communicator are numbered, and messages of a pair of ranks
  bool on_record = false;                // with data, and the program's own
  std::int64_t watched = -1;             // its place in the watchdog's log

  std::size_t bytes() const;  // of `count` elements; of calls with data
};

// Who is told of the calls.
class CallObserver {
 public:
  // The call is about to be made.
  virtual void call_begins(NcclCall&) {}
  // Calls take effect together, one or those of a group: right before and right after they are enqueued.
  virtual void enqueue_begins(std::span<const NcclCall>) {}
  virtual void enqueued(std::span<const NcclCall>, ncclResult_t) {}

 protected:
  ~CallObserver() = default;
};

// From here on this observer is told, behind those before it. Call before the first communicator is made.
void observe_calls(CallObserver& observer);

// Runs this at the end of the group that this thread has open, behind its calls; at once where there is none.
void after_group(std::function<void()> action);
// Where the program has opened a group that it did not close, file:line; empty where all are closed.
std::string open_group();

}  // namespace workshop
