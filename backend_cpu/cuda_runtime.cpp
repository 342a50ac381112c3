// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime API: errors and the device.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "backend_cpu/cores.h"
#include "backend_cpu/order.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/simulation.h"
#include "backend_cpu/stream.h"

namespace workshop::cpu {
namespace {

std::atomic<std::uint64_t> allocations = 0;
std::atomic<std::uint64_t> synchronizations = 0;
std::atomic<std::uint64_t> recorded_events = 0;

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
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
};

const ErrorText* find_error(cudaError_t error) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors), [=](auto& e) { return e.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

std::atomic<bool> used[kMaxDevices];  // whether the process has created something on the device
std::atomic<int> used_devices = 0;

// Enough devices for every rank of a job on one node.
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

// A hash of the host's name, and the device's number: the same in all processes of a node and different for every
// device.
cudaUUID_t uuid_of(int device) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::uint64_t halves[] = {std::hash<std::string_view>{}(host), static_cast<std::uint64_t>(device)};
  cudaUUID_t uuid;
  for (int i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<char>(halves[i / 8] >> (56 - 8 * (i % 8)));
  return uuid;
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

// Default device memory of a rank: half of its share of the machine's available memory, and at most 16 GB. The system
// would kill a process that takes more than there is, without a message.
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

bool is_device(int device) { return device >= 0 && device < device_count(); }

int use_current_device() {
  if (!used[current_device].exchange(true)) ++used_devices;
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
void count_synchronization() {
  ++synchronizations;
  note_wait_of_host();
}
void count_event() {
  if (on_main_thread() && of_the_program(source_call("cudaEventRecord"))) ++recorded_events;
}

Counters counters() {
  return {allocations.load(), synchronizations.load(), used_devices.load(), most_handles(), recorded_events.load()};
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
  if (!is_device(device)) return result(cudaErrorInvalidDevice);
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
  if (!is_device(device)) return result(cudaErrorInvalidDevice);
  std::snprintf(properties->name, sizeof properties->name, "CPU (no GPU)");
  properties->uuid = uuid_of(device);
  properties->totalGlobalMem = device_memory();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (id == nullptr || length < 1) return result(cudaErrorInvalidValue);
  if (!is_device(device)) return result(cudaErrorInvalidDevice);
  const int written = std::snprintf(id, length, "%04x:%02x:00.0", device >> 8, device & 0xff);
  return written < length ? cudaSuccess : result(cudaErrorInvalidValue);
}

// All devices of a process share its memory, and have the processor's atomic operations.
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (can == nullptr) return result(cudaErrorInvalidValue);
  if (!is_device(device) || !is_device(peer)) return result(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

// Kernels and memsets may still use only the memory of their own device; see semantics.md.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (flags != 0) return result(cudaErrorInvalidValue);
  if (!is_device(peer) || peer == device) return result(cudaErrorInvalidDevice);
  const std::lock_guard lock(mutex);
  return enabled.emplace(device, peer).second ? cudaSuccess : result(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  if (value == nullptr || attribute < cudaDevP2PAttrPerformanceRank ||
      attribute > cudaDevP2PAttrCudaArrayAccessSupported) {
    return result(cudaErrorInvalidValue);
  }
  if (!is_device(from) || !is_device(to) || from == to) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported;
  return cudaSuccess;
}

// The version if no driver is installed.
cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return result(cudaErrorInvalidValue);
  *version = 0;
  return cudaSuccess;
}
