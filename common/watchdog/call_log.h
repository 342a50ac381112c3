// SPDX-License-Identifier: Apache-2.0
// The NCCL calls of this rank that have not completed, and the last that have.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/nccl/nccl_calls.h"
#include "common/watchdog/verdict.h"

namespace workshop {

// A ring: the calls [head, tail) have not completed; those before head are remembered until their place is taken. A
// call that finds no place is not watched: the ones before it tell enough.
class CallLog final : public CallObserver {
 public:
  void call_begins(NcclCall& call) override;
  void enqueued(std::span<const NcclCall> calls, ncclResult_t status) override;

  // Asks the device which calls have completed. Where the program is blocked in a launch, the driver may hold a lock
  // that the question needs, and no answer comes before the program gets on.
  void ask_device();

  // The first call that has not completed; none where all have.
  std::optional<std::uint64_t> first_pending();

  // The calls and the communicators of a note.
  void describe(Note& note);

 private:
  static constexpr std::uint64_t kCalls = 1024;  // as many are watched at a time
  // Calls from the first on that has not completed, and before it: small ones may pass for each other for a while.
  static constexpr std::uint64_t kTold = 8, kToldBefore = 64;

  struct Entry {
    enum State { issuing, enqueued, completed };
    State state;
    NcclCall call;
    const CallSite* site;         // where the program makes it
    std::uint64_t end;            // the call whose event tells that this one has completed
    cudaEvent_t event = nullptr;  // made for the first call in this place of the ring
  };
  // Has this call completed? The event tells.
  struct Question {
    std::uint64_t index;
    cudaEvent_t event;
  };

  Entry& at(std::uint64_t index) { return calls_[index % kCalls]; }
  std::optional<Question> next_question(std::uint64_t first);

  std::mutex mutex_;
  std::array<Entry, kCalls> calls_;
  std::uint64_t head_ = 0, tail_ = 0;
};

}  // namespace workshop
