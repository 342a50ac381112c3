// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API: streams and events.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

#include "backend_cpu/order.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/simulation.h"
#include "backend_cpu/stream.h"

using namespace workshop::cpu;

// Like a stream, an event is never freed, only reused: an operation that records it may still be in a queue.
struct CUevent_st {
  std::mutex mutex;
  bool live = true;
  bool timing = false;
  std::atomic<int> device = 0;   // that was current when the program created it
  Position position;             // the most recent record; its stream is null if there was none
  std::uint64_t generation = 0;  // number of records
  std::chrono::steady_clock::time_point reached;
};

namespace {

using Clock = std::chrono::steady_clock;

bool finished(cudaStream_t stream) {
  if (stream != nullptr) return stream->idle();
  const auto all = streams_of(current_device);  // the legacy default stream waits for the blocking ones
  return std::all_of(all.begin(), all.end(), [](auto* s) { return !(s->legacy || s->blocking) || s->idle(); });
}

struct Events {
  std::mutex mutex;
  std::vector<CUevent_st*> all;  // keeps the memory reachable
  std::vector<CUevent_st*> free;
};

Events& events() {
  static Events& instance = *new Events;
  return instance;
}

CUevent_st* acquire_event() {
  Events& all = events();
  const std::lock_guard lock(all.mutex);
  if (all.free.empty()) return all.all.emplace_back(new CUevent_st);
  CUevent_st* event = all.free.back();
  all.free.pop_back();
  return event;
}

cudaError_t check(cudaEvent_t event) {
  if (in_host_function) return cudaErrorNotPermitted;
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(event->mutex);
  return event->live ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

Position position_of(cudaEvent_t event) {
  const std::lock_guard lock(event->mutex);
  return event->position;
}

bool complete(cudaEvent_t event) {
  const Position position = position_of(event);
  return position.stream == nullptr || passed(position);
}

// Whether and when the stream has reached an event.
struct Reached {
  bool live, recorded, complete;
  int device;
  Clock::time_point at;
};
Reached look_at(cudaEvent_t event) {
  const std::lock_guard lock(event->mutex);
  const Position& position = event->position;
  // In this order: once the position is passed, the time is set.
  const bool complete = position.stream == nullptr || passed(position);
  return {event->live, event->timing && position.stream != nullptr, complete, event->device, event->reached};
}

// Enqueues the operation that stands for the event. The event's mutex is not held meanwhile: if the queue is full, this
// waits for operations that may need it.
Position enqueue_record(cudaEvent_t event, cudaStream_t stream) {
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(event->mutex);
    generation = ++event->generation;
    if (!event->timing) generation = 0;
  }
  if (generation == 0) return mark(stream);
  // If the stream is idle and waits for no other stream, it reaches the event now: an operation would only wake its
  // thread.
  const bool waits_for_none = stream != nullptr && !stream->legacy && !stream->blocking;
  if (waits_for_none && !simulates() && stream->pushed() > 0 && stream->idle()) {
    const std::lock_guard lock(event->mutex);
    if (event->generation == generation) event->reached = Clock::now();
    return mark(stream);
  }
  const auto stamp = [event, generation] {
    const std::lock_guard lock(event->mutex);
    if (event->generation == generation) event->reached = simulates() ? moment() : Clock::now();
  };
  return enqueue(stream, stamp);
}

}  // namespace

namespace workshop::cpu {

int device_of(cudaStream_t stream) { return stream == nullptr ? current_device : stream->device.load(); }

cudaError_t check(cudaStream_t stream) {
  if (in_host_function) return cudaErrorNotPermitted;
  return usable(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

void synchronize(cudaStream_t stream) {
  count_synchronization();
  if (!finished(stream) || simulates()) wait_for(mark(stream));
  order_host_waits(stream);
}

void wait_for_device(int device) {
  std::vector<Position> positions;
  for (CUstream_st* stream : streams_of(device)) {
    if (!stream->idle() || (simulates() && stream->pushed() > 0)) positions.push_back({stream, stream->pushed() - 1});
  }
  for (const Position& position : positions) wait_for(position);
}

void synchronize_device(int device, int in_order) {
  wait_for_device(device);
  order_host_waits_for_device(in_order);
}

bool may_launch(cudaStream_t stream) {
  cudaError_t error = check(stream);
  if (error == cudaSuccess && device_of(stream) != current_device) error = cudaErrorInvalidResourceHandle;
  return result(error) == cudaSuccess;
}

}  // namespace workshop::cpu

cudaError_t cudaDeviceSynchronize() {
  if (in_host_function) return result(cudaErrorNotPermitted);
  count_synchronization();
  synchronize_device(current_device, current_device);
  check_guards();
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (stream == nullptr || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  if (in_host_function) return result(cudaErrorNotPermitted);
  const bool blocking = flags == cudaStreamDefault;
  *stream = acquire_stream(blocking, use_current_device());
  order_stream_created(*stream, blocking);
  return cudaSuccess;
}

// Each stream has a thread of its own, and none goes first.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return result(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (in_host_function) return result(cudaErrorNotPermitted);
  if (stream == nullptr || !stream->live.exchange(false)) return result(cudaErrorInvalidResourceHandle);
  order_stream_destroyed(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  synchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  wait_for_blocked_hosts();
  if (!finished(stream)) return result(cudaErrorNotReady);
  if (simulates()) wait_for(mark(stream));
  if (on_main_thread()) order_host_waits(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  if (flags != 0) return result(cudaErrorInvalidValue);
  const Position position = position_of(event);
  if (position.stream != nullptr) enqueue_wait(stream, position);
  order_stream_waits(stream, event);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (function == nullptr) return result(cudaErrorInvalidValue);
  enqueue(stream, [=] {
    in_host_function = true;
    function(user_data);
    in_host_function = false;
    if (simulates()) simulate_host_copy(0);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (event == nullptr || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) {
    return result(cudaErrorInvalidValue);
  }
  if (in_host_function) return result(cudaErrorNotPermitted);
  *event = acquire_event();
  const std::lock_guard lock((*event)->mutex);
  (*event)->live = true;
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  (*event)->device = use_current_device();
  (*event)->position = {};
  order_event_created(*event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  if (event->device != device_of(stream)) return result(cudaErrorInvalidResourceHandle);
  count_event();
  order_event_recorded(event, stream);
  const Position position = enqueue_record(event, stream);
  const std::lock_guard lock(event->mutex);
  event->position = position;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  count_synchronization();
  const Position position = position_of(event);
  if (position.stream != nullptr) wait_for(position);
  order_host_waits(event);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  wait_for_blocked_hosts();
  if (!complete(event)) return result(cudaErrorNotReady);
  if (const Position position = position_of(event); position.stream != nullptr) follow(position);
  if (on_main_thread()) order_host_waits(event);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (milliseconds == nullptr) return result(cudaErrorInvalidValue);
  if (in_host_function) return result(cudaErrorNotPermitted);
  if (start == nullptr || end == nullptr) return result(cudaErrorInvalidResourceHandle);
  const Reached from = look_at(start), to = look_at(end);
  const bool usable = from.live && to.live && from.recorded && to.recorded && from.device == to.device;
  if (!usable) return result(cudaErrorInvalidResourceHandle);
  if (!from.complete || !to.complete) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to.at - from.at).count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  {
    const std::lock_guard lock(event->mutex);
    event->live = false;
    ++event->generation;  // a record that is still queued must not change the reused event
  }
  Events& all = events();
  const std::lock_guard lock(all.mutex);
  all.free.push_back(event);
  return cudaSuccess;
}
