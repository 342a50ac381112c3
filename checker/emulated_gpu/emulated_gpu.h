// SPDX-License-Identifier: Apache-2.0
// The threads of a GPU on a CPU, for tests of kernels: blocks, warps, shuffles, barriers and shared memory.
//
// Include this before any other header in a source that is compiled with WORKSHOP_EMULATES_GPU_THREADS. Its kernels
// then take the same branches as with nvcc. Compile it with -fsanitize=thread, too, but link it without: then the
// compiler reports each access to memory to the functions in emulated_gpu.cpp, which find the races. README.md says
// what is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <stdexcept>

namespace emulated_gpu {

// What is wrong with a kernel, in one line.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The order in which the threads of a grid run.
enum class Order { forward, backward, random };

struct Grid {
  int blocks = 1, threads_per_block = 256;
  Order order = Order::forward;
  std::uint64_t seed = 0;  // of the random order
};

// Calls `kernel(arguments)` on every thread of a grid. Throws a Fault if the threads do not all get to a shuffle or a
// barrier, if two use the same memory with nothing between that orders them, or if one uses memory near an array. Only
// one thread of the process may call this.
void run(const char* name, const Grid& grid, void (*kernel)(const void*), const void* arguments);

// Calls kernel(arguments...) in the same way.
template <typename... Parameters, typename... Arguments>
void run(const char* name, const Grid& grid, void (*kernel)(Parameters...), Arguments... arguments) {
  const auto call = [=] { kernel(arguments...); };
  run(
      name, grid, [](const void* task) { (*static_cast<decltype(call)*>(task))(); }, &call);
}

// From now on, finds races in this array, and uses of the kMargin bytes before and behind it, which must be allocated.
void watch(const char* name, const void* array, std::size_t count, std::size_t bytes_per_element);
void watch_nothing();
constexpr std::size_t kMargin = 64;

// For a function that a kernel calls: ends the run with a Fault.
[[noreturn]] void stop(const char* why);

// The number of accesses to watched memory by the last run; 0 if its source was not compiled with -fsanitize=thread.
std::uint64_t accesses();

// ---- for kernels ----------------------------------------------------------------------------------------------------

struct Index {
  unsigned x;
};
Index thread_index();
Index block_index();
Index threads_per_block();
Index blocks_of_grid();

// Returns the value of the lane whose number differs in the bits of `distance`.
std::uint64_t exchange(unsigned mask, std::uint64_t value, int distance, const std::source_location& where);
void warp_barrier(unsigned mask, const std::source_location& where);
void block_barrier(const std::source_location& where);

}  // namespace emulated_gpu

#ifdef WORKSHOP_EMULATES_GPU_THREADS
#define threadIdx (emulated_gpu::thread_index())
#define blockIdx (emulated_gpu::block_index())
#define blockDim (emulated_gpu::threads_per_block())
#define gridDim (emulated_gpu::blocks_of_grid())
#define __shared__ static  // one block runs at a time

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int distance,
                         const std::source_location& where = std::source_location::current()) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = emulated_gpu::exchange(mask, bits, distance, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// Returns a bit for each lane: whether its condition holds.
inline unsigned __ballot_sync(unsigned mask, bool condition,
                              const std::source_location& where = std::source_location::current()) {
  unsigned bits = condition ? 1u << threadIdx.x % 32 : 0;
  for (int distance = 16; distance > 0; distance /= 2) bits |= __shfl_xor_sync(mask, bits, distance, where);
  return bits;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       const std::source_location& where = std::source_location::current()) {
  emulated_gpu::warp_barrier(mask, where);
}
inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  emulated_gpu::block_barrier(where);
}
#endif
