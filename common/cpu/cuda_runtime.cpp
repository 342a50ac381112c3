// The functions of the CUDA runtime API: errors, device, memory, streams, events.
#include <cuda_runtime.h>
#include <workshop_cpu.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/cpu/cores.h"
#include "common/cpu/stream.h"

using namespace workshop::cpu;

// Like a stream an event is never freed, only used again: an operation that records it may still be in a queue.
struct CUevent_st {
  std::mutex mutex;
  bool live = true;
  bool timing = false;
  std::atomic<int> device = 0;   // that was current when the program created it
  Position position;             // the most recent record; no stream where there was none
  std::uint64_t generation = 0;  // number of records
  std::chrono::steady_clock::time_point reached;
};

namespace {

using Clock = std::chrono::steady_clock;

// ---- errors --------------------------------------------------------------------------------------------------------

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
};

const ErrorText* find_error(cudaError_t error) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors), [=](auto& e) { return e.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

// ---- device --------------------------------------------------------------------------------------------------------

thread_local int current_device = 0;
thread_local bool in_host_function = false;  // of cudaLaunchHostFunc, which must not call CUDA

constexpr int kMaxDevices = 1024;
std::atomic<bool> used[kMaxDevices];  // devices on which the process has created something

// Creating something opens a context on the current device.
int use_current_device() {
  used[current_device].store(true, std::memory_order_relaxed);
  return current_device;
}

// Any rank of a job on one node finds a device of its own, as it would on a machine that has enough of them.
int device_count() {
  hardware_queues();
  static const int count = [] {
    const char* value = std::getenv("WORKSHOP_DEVICE_COUNT");
    if (value == nullptr) return 64;
    char* end = nullptr;
    const long parsed = std::strtol(value, &end, 10);
    if (end == value || *end != '\0' || parsed < 1 || parsed > kMaxDevices) {
      bad_environment("WORKSHOP_DEVICE_COUNT", value, "1 to 1024");
    }
    return static_cast<int>(parsed);
  }();
  return count;
}

std::size_t parse_bytes(const char* name, const char* value) {
  char* end = nullptr;
  const double number = std::strtod(value, &end);
  double unit = 1;
  if (*end == 'K') unit = 1 << 10;
  if (*end == 'M') unit = 1 << 20;
  if (*end == 'G') unit = 1 << 30;
  if (unit != 1) ++end;
  if (end == value || *end != '\0' || !(number > 0) || !(number * unit < 1e18)) {
    bad_environment(name, value, "a number of bytes such as 4096, 512M or 16G");
  }
  return static_cast<std::size_t>(number * unit);
}

// Device memory that a rank may have where nothing else is said: half of its share of what the machine has left, and
// 16 GB at most. The system would end a process that takes more than there is without a word.
std::size_t default_memory() {
  std::size_t bytes = std::size_t{16} << 30;
  std::ifstream info("/proc/meminfo");
  for (std::string name, unit; info >> name; std::getline(info, unit)) {
    std::size_t kilobytes = 0;
    if (name == "MemAvailable:" && info >> kilobytes) bytes = std::min(bytes, kilobytes * 1024 / 2 / ranks_of_node());
  }
  return bytes;
}

// Device memory is the process's own: WORKSHOP_DEVICE_MEMORY bytes for whichever device it uses.
std::size_t device_memory() {
  static const std::size_t bytes = [] {
    const char* value = std::getenv("WORKSHOP_DEVICE_MEMORY");
    return value == nullptr ? default_memory() : parse_bytes("WORKSHOP_DEVICE_MEMORY", value);
  }();
  return bytes;
}

// ---- memory --------------------------------------------------------------------------------------------------------

std::atomic<std::uint64_t> allocations = 0;
std::atomic<std::uint64_t> synchronizations = 0;

constexpr int kPoison = 0xFF;  // makes a NaN of every float, double and bfloat16

// The blocks of one kind of memory.
class Heap {
 public:
  explicit Heap(std::size_t capacity) : capacity_(capacity) {}

  cudaError_t allocate(void** pointer, std::size_t bytes) {
    if (in_host_function) return cudaErrorNotPermitted;
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    use_current_device();
    ++allocations;
    const std::lock_guard lock(mutex_);
    if (bytes > capacity_ - used_) return cudaErrorMemoryAllocation;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* block = std::aligned_alloc(kAlignment, rounded);
    if (block == nullptr) return cudaErrorMemoryAllocation;
    std::memset(block, kPoison, rounded);
    blocks_[static_cast<std::byte*>(block)] = bytes;
    used_ += bytes;
    *pointer = block;
    return cudaSuccess;
  }

  // True for what allocate() has returned.
  bool holds(void* pointer) {
    const std::lock_guard lock(mutex_);
    return blocks_.contains(static_cast<std::byte*>(pointer));
  }

  // True for any address in a block.
  bool contains(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* byte = static_cast<const std::byte*>(address);
    auto after = blocks_.upper_bound(byte);
    return after != blocks_.begin() && byte < (--after)->first + after->second;
  }

  void release(void* pointer) {
    ++allocations;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<std::byte*>(pointer));
    std::memset(pointer, kPoison, block->second);
    used_ -= block->second;
    blocks_.erase(block);
    std::free(pointer);
  }

  std::size_t free_bytes() {
    const std::lock_guard lock(mutex_);
    return capacity_ - used_;
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::mutex mutex_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::map<const std::byte*, std::size_t> blocks_;
};

// Never destroyed, so that destructors of static objects may still free their buffers.
Heap& device_heap() {
  static Heap& heap = *new Heap(device_memory());
  return heap;
}

Heap& pinned_heap() {
  static Heap& heap = *new Heap(std::numeric_limits<std::size_t>::max());
  return heap;
}

void synchronize_device() {
  std::vector<Position> positions;
  for (CUstream_st* stream : every_stream()) {
    if (!stream->idle()) positions.push_back({stream, stream->pushed() - 1});
  }
  for (const Position& position : positions) wait_for(position);
}

cudaError_t check(cudaStream_t stream) {
  if (in_host_function) return cudaErrorNotPermitted;
  return usable(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

// Each device has a legacy default stream.
int device_of(cudaStream_t stream) { return stream == nullptr ? current_device : stream->device.load(); }

cudaError_t release(Heap& heap, void* pointer) {
  if (in_host_function) return cudaErrorNotPermitted;
  if (pointer == nullptr) return cudaSuccess;
  if (!heap.holds(pointer)) return cudaErrorInvalidValue;
  synchronize_device();
  heap.release(pointer);
  return cudaSuccess;
}

cudaError_t copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  enqueue(stream, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}

// From pageable memory cudaMemcpy returns once it has read it; the data may still be on its way to the device.
bool is_staged(const void* to, const void* from) {
  return device_heap().contains(to) && !device_heap().contains(from) && !pinned_heap().contains(from);
}

void copy_staged(void* to, const void* from, std::size_t bytes) {
  auto* staging = new std::byte[bytes];
  std::memcpy(staging, from, bytes);
  if (slow().kernels) enqueue_delay(nullptr, 1);
  enqueue(nullptr, [=] {
    std::memcpy(to, staging, bytes);
    delete[] staging;
  });
}

// ---- streams and events --------------------------------------------------------------------------------------------

bool finished(cudaStream_t stream) {
  if (stream != nullptr) return stream->idle();
  const auto all = every_stream();  // the last one is the legacy default stream, which waits for the blocking ones
  return std::all_of(all.begin(), all.end(), [&](auto* s) { return (s != all.back() && !s->blocking) || s->idle(); });
}

void synchronize(cudaStream_t stream) {
  count_synchronization();
  if (!finished(stream)) wait_for(mark(stream));
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

Clock::time_point time_of(cudaEvent_t event) {
  const std::lock_guard lock(event->mutex);
  return event->reached;
}

bool complete(cudaEvent_t event) {
  const Position position = position_of(event);
  return position.stream == nullptr || passed(position);
}

// Enqueues the operation that stands for the event. The event's mutex is not held meanwhile: where the queue is full,
// this waits for operations that may need it.
Position enqueue_record(cudaEvent_t event, cudaStream_t stream) {
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(event->mutex);
    generation = ++event->generation;
    if (!event->timing) generation = 0;
  }
  if (generation == 0) return mark(stream);
  const auto stamp = [event, generation] {
    const std::lock_guard lock(event->mutex);
    if (event->generation == generation) event->reached = Clock::now();
  };
  return enqueue(stream, stamp);
}

}  // namespace

namespace workshop::cpu {

void count_synchronization() { ++synchronizations; }

Counters counters() {
  return {allocations.load(), synchronizations.load(), std::count(std::begin(used), std::end(used), true)};
}

int hardware_queues() {
  static const int queues = [] {
    const char* value = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return value == nullptr ? 8 : std::atoi(value);
  }();
  return queues;
}

bool may_launch(cudaStream_t stream) {
  cudaError_t error = check(stream);
  if (error == cudaSuccess && device_of(stream) != current_device) error = cudaErrorInvalidResourceHandle;
  return result(error) == cudaSuccess;
}

}  // namespace workshop::cpu

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find_error(error);
  return found == nullptr ? "unrecognized error code" : found->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = find_error(error);
  return found == nullptr ? "unrecognized error code" : found->text;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return result(cudaErrorInvalidValue);
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return result(cudaErrorInvalidValue);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return result(cudaErrorInvalidValue);
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  std::snprintf(properties->name, sizeof properties->name, "CPU (no GPU)");
  properties->totalGlobalMem = device_memory();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (in_host_function) return result(cudaErrorNotPermitted);
  count_synchronization();
  synchronize_device();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return result(device_heap().allocate(pointer, bytes)); }

cudaError_t cudaFree(void* pointer) { return result(release(device_heap(), pointer)); }

cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return result(pinned_heap().allocate(pointer, bytes)); }

cudaError_t cudaFreeHost(void* pointer) { return result(release(pinned_heap(), pointer)); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) return result(cudaErrorInvalidValue);
  *free = device_heap().free_bytes();
  *total = device_memory();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (is_staged(to, from)) {
    if (in_host_function) return result(cudaErrorNotPermitted);
    synchronize(nullptr);
    copy_staged(to, from, bytes);
    return cudaSuccess;
  }
  const cudaError_t error = copy_async(to, from, bytes, kind, nullptr);
  if (error == cudaSuccess) synchronize(nullptr);
  return result(error);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return result(copy_async(to, from, bytes, kind, stream));
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (bytes == 0) return cudaSuccess;
  if (pointer == nullptr) return result(cudaErrorInvalidValue);
  enqueue_kernel(stream, [=] { std::memset(pointer, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (stream == nullptr || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  if (in_host_function) return result(cudaErrorNotPermitted);
  *stream = acquire_stream(/*blocking=*/flags == cudaStreamDefault, use_current_device());
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (in_host_function) return result(cudaErrorNotPermitted);
  if (stream == nullptr || !stream->live.exchange(false)) return result(cudaErrorInvalidResourceHandle);
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
  return result(finished(stream) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  if (flags != 0) return result(cudaErrorInvalidValue);
  const Position position = position_of(event);
  if (position.stream != nullptr) enqueue_wait(stream, position);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (function == nullptr) return result(cudaErrorInvalidValue);
  enqueue(stream, [=] {
    in_host_function = true;
    function(user_data);
    in_host_function = false;
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
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  if (event->device != device_of(stream)) return result(cudaErrorInvalidResourceHandle);
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
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  wait_for_blocked_hosts();
  return result(complete(event) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (milliseconds == nullptr) return result(cudaErrorInvalidValue);
  for (cudaEvent_t event : {start, end}) {
    if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
    if (!event->timing || position_of(event).stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  }
  if (start->device != end->device) return result(cudaErrorInvalidResourceHandle);
  if (!complete(start) || !complete(end)) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(time_of(end) - time_of(start)).count();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t error = check(event); error != cudaSuccess) return result(error);
  {
    const std::lock_guard lock(event->mutex);
    event->live = false;
    ++event->generation;  // a record still in a queue must not touch the event's next life
  }
  Events& all = events();
  const std::lock_guard lock(all.mutex);
  all.free.push_back(event);
  return cudaSuccess;
}
