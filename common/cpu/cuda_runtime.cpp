// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API: errors and the device.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "common/cpu/cores.h"
#include "common/cpu/runtime.h"
#include "common/cpu/stream.h"

namespace workshop::cpu {
namespace {

std::atomic<std::uint64_t> allocations = 0;
std::atomic<std::uint64_t> synchronizations = 0;

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

constexpr int kMaxDevices = 1024;
std::atomic<bool> used[kMaxDevices];  // devices on which the process has created something

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

}  // namespace

int use_current_device() {
  used[current_device].store(true, std::memory_order_relaxed);
  return current_device;
}

std::size_t device_memory() {
  static const std::size_t bytes = [] {
    const char* value = std::getenv("WORKSHOP_DEVICE_MEMORY");
    return value == nullptr ? default_memory() : parse_bytes("WORKSHOP_DEVICE_MEMORY", value);
  }();
  return bytes;
}

void count_allocation() { ++allocations; }
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

}  // namespace workshop::cpu

using namespace workshop::cpu;

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
