// SPDX-License-Identifier: Apache-2.0
#include "common/watchdog/call_log.h"

#include <algorithm>
#include <iterator>

#include "common/base/place.h"

namespace workshop {
namespace {

std::string type_name(int type) {
  static constexpr const char* kNames[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                           "uint64", "float16", "float32", "float64", "bfloat16"};
  return type >= 0 && type < static_cast<int>(std::size(kNames)) ? kNames[type] : "";
}

}  // namespace

void CallLog::call_begins(NcclCall& call) {
  if (call.communicator->id == 0) return;
  std::unique_lock lock(mutex_);
  if (tail_ - head_ == kCalls) {
    lock.unlock();
    ask_device();
    lock.lock();
  }
  if (tail_ - head_ == kCalls) return;
  const std::uint64_t index = tail_++;
  call.watched = static_cast<std::int64_t>(index);
  at(index) = {Entry::issuing, call, InCall::current(), index, at(index).event};
}

// The calls of a group on the same stream share one event, recorded after the last of them.
void CallLog::enqueued(std::span<const NcclCall> calls, ncclResult_t status) {
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (call->watched < 0) continue;
    Entry& entry = at(call->watched);
    const bool works = status == ncclSuccess && call->type >= 0;
    const auto last = std::find_if(calls.rbegin(), call,
                                   [&](auto& other) { return other.watched >= 0 && other.stream == call->stream; });
    if (works && last == call) {
      // Without the mutex, because recording may wait for room in the stream. Until `state` changes, nothing else uses
      // this event.
      if (entry.event == nullptr) CUDA_CHECK(cudaEventCreateWithFlags(&entry.event, cudaEventDisableTiming));
      CUDA_CHECK(cudaEventRecord(entry.event, call->stream));
    }
    const std::lock_guard lock(mutex_);
    entry.end = last->watched;
    entry.state = works ? Entry::enqueued : Entry::completed;
  }
}

// Advances `head_` past completed calls. Returns the question about the first enqueued call at or after `first`, or
// none if there is no such call among the kTold calls from `head_` on.
std::optional<CallLog::Question> CallLog::next_question(std::uint64_t first) {
  const std::lock_guard lock(mutex_);
  while (head_ < tail_ && at(head_).state == Entry::completed) ++head_;
  for (auto index = std::max(first, head_); index < std::min(tail_, head_ + kTold); ++index) {
    if (at(index).state == Entry::enqueued) return Question{index, at(at(index).end).event};
  }
  return std::nullopt;
}

void CallLog::ask_device() {
  std::uint64_t first = 0;
  while (const auto question = next_question(first)) {
    first = question->index + 1;
    if (cudaEventQuery(question->event) != cudaSuccess) continue;  // without the mutex
    const std::lock_guard lock(mutex_);
    if (question->index >= head_) at(question->index).state = Entry::completed;
  }
  cudaGetLastError();  // clears the status: "not ready" is not an error here
}

std::optional<std::uint64_t> CallLog::first_pending() {
  const std::lock_guard lock(mutex_);
  return head_ < tail_ ? std::optional(head_) : std::nullopt;
}

void CallLog::describe(Note& note) {
  const std::scoped_lock lock(mutex_, communicators().mutex);
  const std::uint64_t kept = tail_ < kCalls ? 0 : tail_ - kCalls;
  const std::uint64_t first = head_ < kept + kToldBefore ? kept : head_ - kToldBefore;
  for (std::uint64_t index = first; index < std::min(tail_, head_ + kTold); ++index) {
    const auto& [state, call, site, end, event] = at(index);
    note.calls.push_back({call.operation, call.communicator->name, call.communicator->id, call.number, call.count,
                          type_name(call.type), call.peer, place(site), state == Entry::completed});
  }
  for (const Communicator& c : communicators().all) {
    if (c.id != 0) note.communicators.push_back({c.id, c.rank, c.collectives});
  }
}

}  // namespace workshop
