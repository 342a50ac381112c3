// SPDX-License-Identifier: Apache-2.0
// Shared by the functions of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>
#include <workshop_cpu.h>

#include <cstddef>

namespace workshop::cpu {

inline constexpr int kAllDevices = -1;
inline thread_local int current_device = 0;
inline thread_local bool in_host_function = false;  // of cudaLaunchHostFunc, which must not call CUDA
inline thread_local cudaError_t last_error = cudaSuccess;

inline cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Returns the current device and notes that the process uses it. Call when something is created on it.
int use_current_device();

inline constexpr int kMaxDevices = 1024;
bool is_device(int device);

// Memory of each device that the process uses: WORKSHOP_DEVICE_MEMORY bytes.
std::size_t device_memory();

// Returns the device of a stream; for the legacy default stream (null), the current device.
int device_of(cudaStream_t stream);

// Returns counters().handles.
int most_handles();

// Adds one to counters().allocations.
void count_allocation();

// Ends the program if something was written around a block of memory. No kernel may be running.
void check_guards();
// The same for the block with this address, after this kernel has run.
void check_guards(const void* pointer, const SourceCall& kernel);

cudaError_t check(cudaStream_t stream);
void synchronize(cudaStream_t stream);
// Waits for all streams of a device, or of all devices. The order checker then takes only the work of `in_order` as
// done, because a program may rely on no more.
void synchronize_device(int device, int in_order);
// The same, without telling the order checker.
void wait_for_device(int device);

}  // namespace workshop::cpu
