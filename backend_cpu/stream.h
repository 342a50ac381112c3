// SPDX-License-Identifier: Apache-2.0
// Streams: ordered queues of operations, each with a thread of its own that carries them out.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace workshop::cpu {

using Run = void (*)(void* task);

// A thread that carries out a stream's operations. Never freed: an abandoned one may come back at any time.
struct StreamWorker {
  enum State { interruptible, uninterruptible, abandoned };
  std::atomic<State> state = interruptible;
  CUstream_st* stream = nullptr;
};

// Gives the stream of a worker that is in an Uninterruptible section to a fresh thread, which goes on after the
// operation. Returns false, and does nothing, where the worker is not in such a section.
bool abandon(StreamWorker& worker);

// Encloses a call that may never return. A worker that was abandoned meanwhile does not get past the section's end: it
// sleeps there for the rest of the process, so it touches nothing that others have freed by then.
class Uninterruptible {
 public:
  Uninterruptible();
  ~Uninterruptible();
  Uninterruptible(const Uninterruptible&) = delete;
  Uninterruptible& operator=(const Uninterruptible&) = delete;
};

// The worker that calls this; null on a thread of the program.
StreamWorker* this_worker();

// An operation of a stream: the number-th that was enqueued there.
struct Position {
  CUstream_st* stream = nullptr;
  std::uint64_t number = 0;
};

// Enqueues `run(copy of task)` behind everything that the stream and, by the rules of the legacy default stream, other
// streams must finish first. Waits only where the queue is full.
Position enqueue(cudaStream_t stream, Run run, const void* task, std::size_t bytes);

template <typename Task>
Position enqueue(cudaStream_t stream, const Task& task) {
  static_assert(sizeof(Task) <= kTaskBytes && std::is_trivially_copyable_v<Task>);
  return enqueue(
      stream, [](void* copy) { (*static_cast<Task*>(copy))(); }, &task, sizeof(Task));
}

// The position behind all work enqueued on `stream` so far.
Position mark(cudaStream_t stream);

bool passed(const Position& position);

// On a simulated machine, the calling thread knows now that this has been passed.
void follow(const Position& position);

// Lets the calling thread wait for a position.
void wait_for(const Position& position);

// Lets all further work of `stream` wait for it.
void enqueue_wait(cudaStream_t stream, const Position& position);

// A stream of `device` for the program, new or used before.
CUstream_st* acquire_stream(bool blocking, int device);

// All streams of a device that ever were, with its legacy default stream, or those of all devices.
std::vector<CUstream_st*> streams_of(int device);

// False for a stream that was destroyed. The legacy default stream is always there.
bool usable(cudaStream_t stream);

// What WORKSHOP_SLOW asks for: each operation of that kind waits a little before it runs, so that a stream that should
// have waited for it runs ahead in every run, not now and then.
struct Slow {
  bool kernels = false;
  bool collectives = false;
};
const Slow& slow();
void enqueue_delay(cudaStream_t stream, int milliseconds);

// Ends the program with status 2 because an environment variable makes no sense.
[[noreturn]] void bad_environment(const char* name, const char* value, const char* expected);

// True where the user has set CUDA_LAUNCH_BLOCKING: the host waits for each kernel and each NCCL operation.
bool launch_blocking();

// With WORKSHOP_DRIVER_LOCK=1, waits as long as another thread of the host is blocked because a queue is full: CUDA's
// driver may hold a lock meanwhile that a question about an event or a stream needs.
void wait_for_blocked_hosts();

// Adds one to counters().synchronizations.
void count_synchronization();
// Adds one to counters().events where the program itself makes this call, on its main thread.
void count_event();

}  // namespace workshop::cpu

// A stream is never freed, only used again, so that whoever holds a Position can always ask for it.
struct CUstream_st {
 public:
  using Moment = std::chrono::steady_clock::time_point;

  CUstream_st(bool blocking, int device, bool legacy = false);

  std::uint64_t push(workshop::cpu::Run run, const void* task, std::size_t bytes);
  std::uint64_t pushed() const { return tail_.load(); }
  bool passed(std::uint64_t number) const { return head_.load() > number; }
  bool idle() const { return head_.load() == tail_.load(); }
  void wait_for(std::uint64_t number);
  // When the simulated machine has finished it (backend_cpu/simulation.h).
  Moment finished_at(std::uint64_t number) const;

  // Starts a thread that carries out the operations from the given one on.
  void start_worker(std::uint64_t first);
  // Ends the operation that an abandoned worker is stuck in, and goes on with a fresh one.
  void take_over();

  std::atomic<bool> live = true;
  std::atomic<bool> blocking;  // ordered with the legacy default stream
  std::atomic<int> device;     // that was current when the program created it
  const bool legacy;           // the legacy default stream of its device
  // Guarded by the mutex of all streams: how many operations of this stream the legacy default stream of its device
  // waits for already, and how many of that one this one waits for.
  std::uint64_t joined = 0;
  std::uint64_t joined_legacy = 0;

 private:
  static constexpr std::uint64_t kSlots = 1024;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Slot {
    workshop::cpu::Run run;
    Moment pushed;  // while a machine is simulated
    alignas(16) std::byte task[workshop::cpu::kTaskBytes];
  };

  void work(workshop::cpu::StreamWorker* worker, std::uint64_t first);
  void want(std::uint64_t number);
  void wait_for_room(std::uint64_t number);
  std::uint64_t wait_for_work(std::uint64_t number);
  void finish(std::uint64_t number);

  std::vector<Slot> slots_{kSlots};
  std::vector<std::atomic<Moment>> finished_at_{kSlots};
  // Host and worker look at each other's end of the queue only where they have come up to what they know of it: a look
  // at a number that the other core is changing takes longer than an operation.
  std::atomic_flag producing_;   // held by the thread that enqueues: a mutex takes longer than to enqueue
  std::uint64_t room_ = kSlots;  // up to here the queue is known to be free, for the thread that enqueues
  alignas(64) std::atomic<std::uint64_t> tail_ = 0;  // operations enqueued
  std::atomic<int> asleep_ = 0;                      // the worker is about to sleep
  alignas(64) std::atomic<std::uint64_t> head_ = 0;  // operations finished
  std::atomic<int> finished_ = 0;                    // changes with every wanted operation that finishes
  std::atomic<std::uint64_t> wanted_ = kNone;        // the first operation that a thread waits for
};
