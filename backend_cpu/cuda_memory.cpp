// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API: memory.
#include <sys/mman.h>
#include <workshop_cpu.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend_cpu/blocking.h"
#include "backend_cpu/order.h"
#include "backend_cpu/ranges.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/simulation.h"
#include "backend_cpu/stream.h"

using namespace workshop::cpu;

namespace {

constexpr int kPoison = 0xFF;  // turns every float, double and bfloat16 into a NaN

// Returns the byte at an address around a block. Read as floats or as bfloat16s, these bytes are signaling NaNs. A
// kernel that adds to one changes it; adding to a NaN of kPoison would not.
std::byte guard(const std::byte* at) {
  return std::byte{reinterpret_cast<std::uintptr_t>(at) % 2 == 0 ? std::uint8_t{0xBF} : std::uint8_t{0xFF}};
}

// Returns where the program allocates. A place in the standard library, which allocates on its behalf, is left out.
SourceCall allocation_site() {
  SourceCall site = source_call("cudaMalloc");
  if (std::string_view(site.file).starts_with("/usr/")) site.line = 0;
  return site;
}

// The blocks of one kind of memory.
class Heap {
 public:
  // `capacity` bytes of each device, or of the host.
  Heap(std::size_t capacity, bool on_host) : capacity_(capacity), on_host_(on_host) {}

  cudaError_t allocate(void** pointer, std::size_t bytes) {
    if (in_host_function) return cudaErrorNotPermitted;
    if (pointer == nullptr) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const int device = use_current_device();
    count_allocation();
    may_wait_for_device();
    const std::lock_guard lock(mutex_);
    if (bytes > capacity_ - used_[device]) return cudaErrorMemoryAllocation;
    const std::size_t with_guards = kGuardBytes + rounded(bytes) + kGuardBytes;
    void* raw = allocate_pages(with_guards);
    if (raw == nullptr) return cudaErrorMemoryAllocation;
    std::memset(raw, kPoison, with_guards);
    auto* block = static_cast<std::byte*>(raw) + kGuardBytes;
    for (auto* at = block - kGuardBytes; at != block; ++at) *at = guard(at);
    for (auto* at = block + bytes; at != block + rounded(bytes) + kGuardBytes; ++at) *at = guard(at);
    blocks_[block] = {block, bytes, allocation_site(), device, on_host_};
    used_[device] += bytes;
    *pointer = block;
    return cudaSuccess;
  }

  // Returns whether allocate() returned this pointer.
  bool holds(void* pointer) {
    const std::lock_guard lock(mutex_);
    return blocks_.contains(static_cast<std::byte*>(pointer));
  }

  void allocated_at(const void* pointer, const char* file, int line) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<const std::byte*>(pointer));
    if (block == blocks_.end()) return;
    // A line of the standard library, where emplace_back() makes the buffer, would not help.
    const bool known = std::strstr(file, "/c++/") == nullptr;
    block->second.site = {"", file, known ? line : 0};
  }

  // Returns the block that contains the address, or whose guard zone does.
  std::optional<MemoryBlock> find(const void* address) {
    const std::lock_guard lock(mutex_);
    const MemoryBlock* block = block_at(address);
    return block == nullptr ? std::nullopt : std::optional(*block);
  }

  void release(void* pointer) {
    count_allocation();
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<std::byte*>(pointer));
    const MemoryBlock& block = found->second;
    check_guards(block);
    std::memset(pointer, kPoison, block.bytes);
    used_[block.device] -= block.bytes;
    blocks_.erase(found);
    ++released_blocks;
    std::free(static_cast<std::byte*>(pointer) - kGuardBytes);
  }

  void check_guards() {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, block] : blocks_) check_guards(block);
  }

  // Checks only the block that contains the pointer or is next to it, if there is one. `kernel` has just run.
  void check_guards(const void* pointer, const SourceCall& kernel) {
    const std::lock_guard lock(mutex_);
    const MemoryBlock* block = block_at(pointer);
    if (block != nullptr) check_guards(*block, kernel.line == 0 ? "" : " at " + place(kernel));
  }

  std::size_t free_bytes(int device) {
    const std::lock_guard lock(mutex_);
    return capacity_ - used_[device];
  }

 private:
  static constexpr std::size_t kAlignment = 256;

  // The block that contains the address, or whose guard zone does; null if no block does.
  const MemoryBlock* block_at(const void* address) const {
    const auto* byte = static_cast<const std::byte*>(address);
    auto after = blocks_.upper_bound(byte + kGuardBytes);
    if (after == blocks_.begin()) return nullptr;
    const MemoryBlock& block = (--after)->second;
    return byte < block.begin + rounded(block.bytes) + kGuardBytes ? &block : nullptr;
  }

  // Large blocks use huge pages, if the system has them: a core caches the addresses of only a few small pages.
  static void* allocate_pages(std::size_t bytes) {
    constexpr std::size_t kHugePage = std::size_t{1} << 21;
    if (bytes < 2 * kHugePage) return std::aligned_alloc(kAlignment, bytes);
    const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* pages = std::aligned_alloc(kHugePage, whole);
    if (pages != nullptr) madvise(pages, whole, MADV_HUGEPAGE);
    return pages;
  }

  static std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Ends the program if something has written to the bytes around the block.
  static void check_guards(const MemoryBlock& block, const std::string& by = "") {
    const auto untouched = [](const std::byte* at) { return *at == guard(at); };
    const auto* end = block.begin + block.bytes;
    const auto* guards_end = block.begin + rounded(block.bytes) + kGuardBytes;
    const auto* before = block.begin - kGuardBytes;
    while (before != block.begin && untouched(before)) ++before;
    if (before != block.begin) report_overwritten(block, block.begin - before, "before the beginning", by);
    const auto* behind = guards_end;
    while (behind != end && untouched(behind - 1)) --behind;
    if (behind != end) report_overwritten(block, behind - end, "beyond the end", by);
  }

  // Adding to a number of the guard leaves some of its bytes unchanged, so the distance is rounded up to 2 bytes.
  [[noreturn]] static void report_overwritten(const MemoryBlock& block, std::ptrdiff_t distance, const char* where,
                                              const std::string& by) {
    distance += distance % 2;
    end_with_mistake("bounds: a kernel" + by + " has written " + std::to_string(distance) + " bytes " + where +
                     " of an allocation of " + std::to_string(block.bytes) + " bytes" +
                     (block.site.line == 0 ? "" : " at " + place(block.site)));
  }

  std::mutex mutex_;
  std::size_t capacity_;
  bool on_host_;
  std::map<int, std::size_t> used_;  // by device
  std::map<const std::byte*, MemoryBlock> blocks_;
};

// Never destroyed, so that destructors of static objects may still free their buffers.
Heap& device_heap() {
  static Heap& heap = *new Heap(device_memory(), /*on_host=*/false);
  return heap;
}

Heap& pinned_heap() {
  static Heap& heap = *new Heap(std::numeric_limits<std::size_t>::max(), /*on_host=*/true);
  return heap;
}

cudaError_t release(Heap& heap, void* pointer) {
  if (in_host_function) return cudaErrorNotPermitted;
  if (pointer == nullptr) return cudaSuccess;
  if (!heap.holds(pointer)) return cudaErrorInvalidValue;
  const MemoryBlock block = *heap.find(pointer);
  // Waits for all devices, because a different device may be copying from the block. But a program may rely only on the
  // wait for the block's own device.
  synchronize_device(kAllDevices, block.on_host ? kAllDevices : block.device);
  order_forget(block);
  heap.release(pointer);
  return cudaSuccess;
}

bool is_on_device(const void* pointer) { return device_heap().find(pointer).has_value(); }

// Ends the program if the kind of a copy does not fit its pointers. CUDA leaves undefined what happens then.
void check_kind(const char* call, const void* to, const void* from, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault || to == nullptr || from == nullptr) return;
  const bool says_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool says_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool is_from = is_on_device(from), is_to = is_on_device(to);
  if (says_from == is_from && says_to == is_to) return;
  const SourceCall site = source_call(call);
  const auto side = [](bool is_device) { return is_device ? "device memory" : "host memory"; };
  const char* const names[] = {"cudaMemcpyHostToHost", "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost",
                               "cudaMemcpyDeviceToDevice"};
  end_with_mistake(std::string("memory: ") + call + (site.line == 0 ? "" : " at " + place(site)) + " copies from " +
                   side(is_from) + " to " + side(is_to) + ", but its kind is " + names[kind]);
}

cudaError_t copy_async(const char* call, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t stream) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  check_kind(call, to, from, kind);
  check_call(call, stream, {{"the source", from, bytes, false}, {"the destination", to, bytes, true}});
  const bool over_link = simulates() && is_on_device(to) != is_on_device(from);
  const bool is_late = checks_order() && is_on_device(from) && pinned_heap().find(to);
  const Position copied = enqueue(stream, [=] {
    if (is_late) wait_until_host_waits();
    std::memmove(to, from, bytes);
    if (over_link) simulate_host_copy(bytes);
  });
  if (blocks_host() && !(find_block(to) && find_block(from))) wait_for(copied);
  return cudaSuccess;
}

cudaError_t memset_async(const char* call, void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = check(stream); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  if (pointer == nullptr) return cudaErrorInvalidValue;
  check_call(call, stream, {{"the destination", pointer, bytes, true}}, device_of(stream));
  enqueue_kernel(stream, /*operations=*/0, [=] { std::memset(pointer, value, bytes); });
  return cudaSuccess;
}

// cudaMemcpy from pageable memory returns once it has read the memory; the data may still be on its way to the device.
bool is_staged(const void* to, const void* from) { return device_heap().find(to) && !find_block(from); }

void copy_staged(void* to, const void* from, std::size_t bytes) {
  check_call("cudaMemcpy", nullptr, {{"the destination", to, bytes, true}});
  auto* staging = new std::byte[bytes];
  std::memcpy(staging, from, bytes);
  if (slow().kernels) enqueue_delay(nullptr, 1);
  enqueue(nullptr, [=] {
    std::memcpy(to, staging, bytes);
    delete[] staging;
  });
}

}  // namespace

namespace workshop::cpu {

std::optional<MemoryBlock> find_block(const void* address) {
  const std::optional<MemoryBlock> block = device_heap().find(address);
  return block ? block : pinned_heap().find(address);
}

void allocated_at(const void* pointer, const char* file, int line) {
  device_heap().allocated_at(pointer, file, line);
  pinned_heap().allocated_at(pointer, file, line);
}

void check_guards() {
  device_heap().check_guards();
  pinned_heap().check_guards();
}

void check_guards(const void* pointer, const SourceCall& kernel) {
  device_heap().check_guards(pointer, kernel);
  pinned_heap().check_guards(pointer, kernel);
}

}  // namespace workshop::cpu

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return result(device_heap().allocate(pointer, bytes)); }

cudaError_t cudaFree(void* pointer) { return result(release(device_heap(), pointer)); }

cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return result(pinned_heap().allocate(pointer, bytes)); }

cudaError_t cudaFreeHost(void* pointer) { return result(release(pinned_heap(), pointer)); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) return result(cudaErrorInvalidValue);
  *free = device_heap().free_bytes(current_device);
  *total = device_memory();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (is_staged(to, from)) {
    if (in_host_function) return result(cudaErrorNotPermitted);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return result(cudaErrorInvalidMemcpyDirection);
    check_kind("cudaMemcpy", to, from, kind);
    synchronize(nullptr);
    copy_staged(to, from, bytes);
    return cudaSuccess;
  }
  const cudaError_t error = copy_async("cudaMemcpy", to, from, bytes, kind, nullptr);
  if (error == cudaSuccess) synchronize(nullptr);
  return result(error);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return result(copy_async("cudaMemcpyAsync", to, from, bytes, kind, stream));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  if (!is_device(to_device) || !is_device(from_device)) return result(cudaErrorInvalidDevice);
  if (const cudaError_t error = check(stream); error != cudaSuccess) return result(error);
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return result(cudaErrorInvalidValue);
  const char* call = "cudaMemcpyPeerAsync";
  const ByteRange source = {"the source", from, bytes, false}, destination = {"the destination", to, bytes, true};
  check_bounds(call, {&source, 1}, from_device);
  check_bounds(call, {&destination, 1}, to_device);
  check_call(call, stream, {source, destination});
  const bool over_link = simulates() && to_device != from_device;
  enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    if (over_link) simulate_copy(bytes);
  });
  return cudaSuccess;
}

// Memory that CUDA does not know is not an error.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (attributes == nullptr) return result(cudaErrorInvalidValue);
  const std::optional<MemoryBlock> block = find_block(pointer);
  if (!block) {
    *attributes = {cudaMemoryTypeUnregistered, cudaInvalidDeviceId, nullptr, nullptr};
    return cudaSuccess;
  }
  void* address = const_cast<void*>(pointer);
  *attributes = {block->on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice, block->device, address,
                 block->on_host ? address : nullptr};
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return result(memset_async("cudaMemset", pointer, value, bytes, nullptr));
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return result(memset_async("cudaMemsetAsync", pointer, value, bytes, stream));
}
