// SPDX-License-Identifier: Apache-2.0
// This rank's NCCL calls that have not completed, and the last ones that have.
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

// A ring buffer. The call at `head_` has not completed; calls before it have, and stay until their places are reused. A
// call that finds the ring full is not watched: the earlier ones tell enough.
class CallLog final : public CallObserver {
 public:
  void call_begins(NcclCall& call) override;
  void enqueued(std::span<const NcclCall> calls, ncclResult_t status) override;

  // Asks the device which calls have completed. If the program is blocked in a launch, the driver may hold a lock that
  // this query needs; then it does not return before the launch does.
  void ask_device();

  // Returns the index of the first call that has not completed, or none if all have.
  std::optional<std::uint64_t> first_pending();

  // Adds the calls and the communicators to a note.
  void describe(Note& note);

 private:
  static constexpr std::uint64_t kCalls = 1024;  // watched at a time
  // A note has up to kTold calls, starting with the first that has not completed, and up to kToldBefore before it. The
  // earlier calls are needed because mismatched calls, if they are small, may still complete for a while.
  static constexpr std::uint64_t kTold = 8, kToldBefore = 64;

  struct Entry {
    enum State { issuing, enqueued, completed };
    State state;
    NcclCall call;
    const CallSite* site;         // where the program makes the call
    std::uint64_t end;            // index of the call whose event tells that this one has completed
    cudaEvent_t event = nullptr;  // created for the first call in this place of the ring, then reused
  };
  // Asks whether a call has completed; its event has the answer.
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
