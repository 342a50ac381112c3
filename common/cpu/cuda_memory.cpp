// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API: memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "common/cpu/runtime.h"
#include "common/cpu/stream.h"

using namespace workshop::cpu;

namespace {

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
    count_allocation();
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
    count_allocation();
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

}  // namespace

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
