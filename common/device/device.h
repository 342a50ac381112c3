// SPDX-License-Identifier: Apache-2.0
// RAII classes for what a program holds on its device: buffers (whose memory is counted by kind), streams, events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/device/launch.h"
#include "common/device/memory.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {

inline int current_device() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

// Makes a device current for the lifetime of this object.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(current_device()) { CUDA_CHECK(cudaSetDevice(device)); }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

// An array of `count` elements in the memory of the current device, or in pinned host memory if the kind is
// Memory::host.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t count, Memory kind, [[maybe_unused]] const char* file = __builtin_FILE(),
         [[maybe_unused]] int line = __builtin_LINE())
      : count_(count), kind_(kind) {
    if (count_ == 0) return;
    device_ = current_device();
    if (kind_ == Memory::host) {
      CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes()));
    } else {
      CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
    }
#ifdef WORKSHOP_BACKEND_CPU
    cpu::allocated_at(data_, file, line);
#else
    fill_in_checks(data_, bytes(), kind_);
#endif
    account_memory(kind_, device_, static_cast<std::ptrdiff_t>(bytes()));
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (data_ == nullptr) return;
    const bool host = kind_ == Memory::host;
    static constexpr CallSite sites[] = {{"cudaFree", __FILE__, __LINE__}, {"cudaFreeHost", __FILE__, __LINE__}};
    const InCall in_call(sites[host]);
    host ? cudaFreeHost(data_) : cudaFree(data_);
    account_memory(kind_, device_, -static_cast<std::ptrdiff_t>(bytes()));
  }

  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(kind_, other.kind_);
    std::swap(device_, other.device_);
  }

  T* data_ = nullptr;
  std::size_t count_ = 0;
  Memory kind_ = Memory::data;
  int device_ = 0;
};

// An array on the device. Undefined until written: NaN on the cpu backend and in checks.
template <typename T>
class DeviceBuffer : public Buffer<T> {
 public:
  using Buffer<T>::Buffer;

  // Copies from or to the host and waits for the copy. The host array must have size() elements.
  void upload(const T* host, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(this->data(), host, this->bytes(), cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  void upload(const std::vector<T>& host, cudaStream_t stream) { upload(host.data(), stream); }
  std::vector<T> download(cudaStream_t stream) const { return download(this->size(), stream); }
  // The same for the first `count` elements.
  std::vector<T> download(std::size_t count, cudaStream_t stream) const {
    std::vector<T> host(count);
    if (host.empty()) return host;
    CUDA_CHECK(cudaMemcpyAsync(host.data(), this->data(), count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    return host;
  }
};

// An array in pinned host memory. Copies between it and the device are asynchronous, and kernels can read and write it.
// Undefined until written.
template <typename T>
class HostBuffer : public Buffer<T> {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::size_t count, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : Buffer<T>(count, Memory::host, file, line) {}
};

// A large kernel has far more blocks than a GPU can run at once. The blocks of a kernel on a stream of high priority
// start before the blocks of such a kernel that are still waiting. So communication beside a computation should have a
// high priority: it needs few multiprocessors, but it needs them soon, or it is not hidden.
enum class Priority { normal, high };

// A stream that does not synchronize with the legacy default stream, so that work on several streams overlaps.
class Stream {
 public:
  // `name`: the stream's name in messages.
  explicit Stream([[maybe_unused]] const char* name = "compute", Priority priority = Priority::normal) {
    int least = 0, greatest = 0;  // the greatest priority is the lowest number
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(
        cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority == Priority::high ? greatest : least));
#ifdef WORKSHOP_BACKEND_CPU
    cpu::name_stream(stream_, name);
#endif
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Returns whether events measure the time of a simulated machine (backend_cpu/semantics.md).
inline bool time_is_simulated() {
  const char* machine = std::getenv("WORKSHOP_SIMULATE");
  return machine != nullptr && *machine != '\0';
}

// A point in a stream's work that another stream can wait for. By default without timing, which makes it cheaper.
class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) { CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace workshop
