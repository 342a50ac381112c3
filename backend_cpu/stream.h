// SPDX-License-Identifier: Apache-2.0
// Streams: ordered queues of operations, each with its own thread that runs them.
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

// A thread that runs a stream's operations. Never freed: an abandoned one may return from its call at any time.
struct StreamWorker {
  enum State { interruptible, uninterruptible, abandoned };
  std::atomic<State> state = interruptible;
  CUstream_st* stream = nullptr;
};

// Gives the stream of a worker that is in an Uninterruptible section to a new thread, which continues after the current
// operation. If the worker is not in such a section, does nothing and returns false.
bool abandon(StreamWorker& worker);

// Encloses a call that may never return. A worker that is abandoned meanwhile never passes the section's end: it sleeps
// there for the rest of the process, so it does not touch memory that has been freed by then.
class Uninterruptible {
 public:
  Uninterruptible();
  ~Uninterruptible();
  Uninterruptible(const Uninterruptible&) = delete;
  Uninterruptible& operator=(const Uninterruptible&) = delete;
};

// Returns the calling worker; null on a thread of the program.
StreamWorker* this_worker();

// An operation of a stream, counted in the order of enqueueing.
struct Position {
  CUstream_st* stream = nullptr;
  std::uint64_t number = 0;
};

// Enqueues `run(copy of task)`. It runs after all earlier work of this stream, and after the work of other streams for
// which it must wait by the rules of the legacy default stream. Waits only if the queue is full.
Position enqueue(cudaStream_t stream, Run run, const void* task, std::size_t bytes);

template <typename Task>
Position enqueue(cudaStream_t stream, const Task& task) {
  static_assert(sizeof(Task) <= kTaskBytes && std::is_trivially_copyable_v<Task>);
  return enqueue(
      stream, [](void* copy) { (*static_cast<Task*>(copy))(); }, &task, sizeof(Task));
}

// Returns the position after all work enqueued on `stream` so far.
Position mark(cudaStream_t stream);

bool passed(const Position& position);

// Tells the calling thread's simulated clock that the position has been passed.
void follow(const Position& position);

// Makes the calling thread wait for a position.
void wait_for(const Position& position);

// Makes all further work of `stream` wait for a position.
void enqueue_wait(cudaStream_t stream, const Position& position);

// Returns a stream of `device` for the program, new or reused.
CUstream_st* acquire_stream(bool blocking, int device);

// Returns all streams ever made on a device, with its legacy default stream; or those of all devices (kAllDevices).
std::vector<CUstream_st*> streams_of(int device);

// Returns false for a stream that was destroyed. The legacy default stream is always usable.
bool usable(cudaStream_t stream);

// The setting of WORKSHOP_SLOW: each operation of that kind is delayed, so that a stream that should have waited for it
// runs ahead in every run, not only sometimes.
struct Slow {
  bool kernels = false;
  bool collectives = false;
};
const Slow& slow();
void enqueue_delay(cudaStream_t stream, int milliseconds);
// Makes the calling stream wait until a thread of the host waits for some work, at most 10 ms.
void wait_until_host_waits();

// Ends the program with status 2 because an environment variable makes no sense.
[[noreturn]] void bad_environment(const char* name, const char* value, const char* expected);

// Whether the user has set CUDA_LAUNCH_BLOCKING: the host waits for each kernel and each NCCL operation.
bool launch_blocking();

// With WORKSHOP_DRIVER_LOCK=1, waits as long as a different thread of the host is blocked on a full queue. During that
// time, CUDA's driver may hold a lock that cudaEventQuery and cudaStreamQuery need.
void wait_for_blocked_hosts();

// Adds one to counters().synchronizations, and notes the program's call.
void count_synchronization();
// Adds one to counters().events if the program itself makes this call, on its main thread.
void count_event();

}  // namespace workshop::cpu

// A stream is never freed, only reused, so that a Position can always be queried.
struct CUstream_st {
 public:
  using Moment = std::chrono::steady_clock::time_point;

  CUstream_st(bool blocking, int device, bool legacy = false);

  std::uint64_t push(workshop::cpu::Run run, const void* task, std::size_t bytes);
  std::uint64_t pushed() const { return tail_.load(); }
  bool passed(std::uint64_t number) const { return head_.load() > number; }
  bool idle() const { return head_.load() == tail_.load(); }
  void wait_for(std::uint64_t number);
  // Returns when the simulated machine has finished the operation (backend_cpu/simulation.h).
  Moment finished_at(std::uint64_t number) const;

  // Starts a thread that runs the operations from the given one on.
  void start_worker(std::uint64_t first);
  // Ends the operation that an abandoned worker is stuck in, and continues with a new worker.
  void take_over();

  std::atomic<bool> live = true;
  std::atomic<bool> blocking;               // ordered with the legacy default stream
  std::atomic<int> device;                  // the current one when the program created the stream
  std::atomic<const char*> name = nullptr;  // from name_stream(); null for none
  const bool legacy;                        // the legacy default stream of its device
  // Guarded by the mutex of all streams: the number of operations of this stream that the legacy default stream of its
  // device already waits for, and the reverse.
  std::uint64_t joined = 0;
  std::uint64_t joined_legacy = 0;

 private:
  static constexpr std::uint64_t kSlots = 1024;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Slot {
    workshop::cpu::Run run;
    Moment pushed;  // only if a machine is simulated
    alignas(16) std::byte task[workshop::cpu::kTaskBytes];
  };

  void work(workshop::cpu::StreamWorker* worker, std::uint64_t first);
  void want(std::uint64_t number);
  void wait_for_room(std::uint64_t number);
  std::uint64_t wait_for_work(std::uint64_t number);
  void finish(std::uint64_t number);

  std::vector<Slot> slots_{kSlots};
  std::vector<std::atomic<Moment>> finished_at_{kSlots};
  // Host and worker read each other's end of the queue only when they have used up what they know of it: reading a
  // number that the other core is changing takes longer than an operation.
  std::atomic_flag producing_;   // held by the thread that enqueues; a mutex would take longer than enqueueing
  std::uint64_t room_ = kSlots;  // the queue is known to be free up to here; for the thread that enqueues
  alignas(64) std::atomic<std::uint64_t> tail_ = 0;  // operations enqueued
  std::atomic<int> asleep_ = 0;                      // the worker is about to sleep
  alignas(64) std::atomic<std::uint64_t> head_ = 0;  // operations finished
  std::atomic<int> finished_ = 0;                    // changes with every wanted operation that finishes
  std::atomic<std::uint64_t> wanted_ = kNone;        // the first operation that a thread waits for
};
