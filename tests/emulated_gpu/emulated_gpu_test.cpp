// SPDX-License-Identifier: Apache-2.0
// What the emulation finds, and what it takes for right.
#include "checker/emulated_gpu/emulated_gpu.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/device/grid_stride.h"

#define __global__
#define __device__

namespace {

using emulated_gpu::Grid;
using emulated_gpu::Order;

constexpr int kThreads = 256, kWarp = 32;

int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
int thread() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

float sum_over_warp(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// Runs a kernel with an array of `count` ones in each order, and returns what each run finds; "" if nothing.
template <typename Kernel>
std::vector<std::string> faults(Kernel kernel, int count, int blocks = 2) {
  std::vector<std::string> found;
  for (const Order order : {Order::forward, Order::backward, Order::random}) {
    std::vector<float> memory(count + 32, 1.0f);
    float* values = memory.data() + 16;
    emulated_gpu::watch("values", values, count, sizeof(float));
    try {
      void (*plain)(float*, int) = kernel;
      emulated_gpu::run("kernel", Grid{blocks, kThreads, order, 1}, plain, values, count);
      found.push_back("");
    } catch (const emulated_gpu::Fault& fault) {
      found.push_back(fault.what());
    }
    emulated_gpu::watch_nothing();
  }
  return found;
}

#define EXPECT_FOUND(kernel, count, what)                                      \
  for (const std::string& found : faults(kernel, count)) {                     \
    EXPECT_NE(found.find(what), std::string::npos) << "found only: " << found; \
  }
#define EXPECT_RIGHT(kernel, count) \
  for (const std::string& found : faults(kernel, count)) EXPECT_EQ(found, "")

// ---- right ----

__global__ void exchange_in_shared_memory(float* values, int n) {
  __shared__ float kept[kThreads];
  for (int round = 0; round < 3; ++round) {
    kept[threadIdx.x] = values[thread()];
    __syncthreads();
    if (thread() < n) values[thread()] = 1 + kept[kThreads - 1 - threadIdx.x];
    __syncthreads();
  }
}
TEST(EmulatedGpu, BarriersOrderSharedMemory) { EXPECT_RIGHT(exchange_in_shared_memory, 2 * kThreads); }

__global__ void exchange_in_warp(float* values, int) {
  values[thread()] = static_cast<float>(thread());
  __syncwarp();
  const float other = values[thread() ^ 1];
  __syncwarp();
  values[thread()] = other;
}
TEST(EmulatedGpu, WarpBarriersOrderMemoryOfTheWarp) { EXPECT_RIGHT(exchange_in_warp, 2 * kThreads); }

__global__ void write_the_same_and_read_it(float* values, int) {
  const float sum = sum_over_warp(static_cast<float>(lane()));
  values[thread() / kWarp] = sum;
  values[thread() / kWarp + 16] = values[thread() / kWarp] + 1;
}
TEST(EmulatedGpu, LanesMayWriteTheSameAndReadTheirOwn) { EXPECT_RIGHT(write_the_same_and_read_it, 32); }

__global__ void sum_lanes(float* values, int) { values[thread()] = sum_over_warp(static_cast<float>(thread())); }
TEST(EmulatedGpu, ShufflesExchangeValues) {
  std::vector<float> values(2 * kThreads);
  emulated_gpu::run("sum_lanes", Grid{2, kThreads, Order::random, 3}, sum_lanes, values.data(), 0);
  for (int i = 0; i < 2 * kThreads; ++i) EXPECT_EQ(values[i], 32 * (i / 32 * 32) + 31 * 16);
}

__global__ void return_early(float* values, int n) {
  if (threadIdx.x / kWarp == 3) return;  // a whole warp
  const float sum = sum_over_warp(1);
  if (thread() < n) values[thread()] = sum;
}
TEST(EmulatedGpu, WholeWarpsMayReturn) { EXPECT_RIGHT(return_early, 2 * kThreads); }

// ---- races ----

__global__ void forget_the_barrier(float* values, int) {
  __shared__ float kept[kThreads];
  kept[threadIdx.x] = values[thread()];
  values[thread()] = kept[kThreads - 1 - threadIdx.x];
}
TEST(EmulatedGpu, MissingBarrierIsFound) { EXPECT_FOUND(forget_the_barrier, 2 * kThreads, "shared memory"); }

__global__ void forget_the_second_barrier(float* values, int) {
  __shared__ float kept[kThreads];
  for (int round = 0; round < 2; ++round) {
    kept[threadIdx.x] = values[thread()] + static_cast<float>(round);
    __syncthreads();
    values[thread()] = kept[kThreads - 1 - threadIdx.x];
  }
}
TEST(EmulatedGpu, MissingSecondBarrierIsFound) {
  EXPECT_FOUND(forget_the_second_barrier, 2 * kThreads, "use shared memory, and no barrier is between");
}

// A shuffle orders no memory.
__global__ void use_a_shuffle_as_barrier(float* values, int) {
  values[thread()] = static_cast<float>(thread());
  sum_over_warp(1);
  const float other = values[thread() ^ 1];
  sum_over_warp(1);
  values[thread()] = other;
}
TEST(EmulatedGpu, ShufflesOrderNoMemory) { EXPECT_FOUND(use_a_shuffle_as_barrier, 2 * kThreads, "a race"); }

// A barrier of the warp orders nothing for other warps.
__global__ void use_the_wrong_barrier(float* values, int) {
  __shared__ float kept[kThreads];
  kept[threadIdx.x] = values[thread()];
  __syncwarp();
  values[thread()] = kept[(threadIdx.x + kWarp) % kThreads];
}
TEST(EmulatedGpu, WarpBarrierForTheBlockIsFound) { EXPECT_FOUND(use_the_wrong_barrier, 2 * kThreads, "shared memory"); }

__global__ void add_from_all_blocks(float* values, int) {
  if (threadIdx.x == 0) values[0] += 1;
}
TEST(EmulatedGpu, RaceOfBlocksIsFound) { EXPECT_FOUND(add_from_all_blocks, 1, "a race"); }

// Right on a CPU, where one thread has the row.
__global__ void divide_whole_row(float* values, int n) {
  for (int row = thread() / kWarp; row < n / 40; row += static_cast<int>(gridDim.x) * kThreads / kWarp) {
    for (int j = 0; j < 40; ++j) values[row * 40 + j] /= 3;
  }
}
TEST(EmulatedGpu, RowInPlaceByEachLaneIsFound) { EXPECT_FOUND(divide_whole_row, 400, "a race"); }

__global__ void write_beyond(float* values, int n) {
  if (thread() <= n) values[thread()] = 2;
}
TEST(EmulatedGpu, WriteBesideAnArrayIsFound) { EXPECT_FOUND(write_beyond, 100, "beside values: element 100 of 100"); }

// ---- divergence ----

__global__ void skip_a_barrier(float* values, int) {
  if (threadIdx.x < 128) __syncthreads();
  values[thread()] = 2;
}
TEST(EmulatedGpu, BarrierOfHalfABlockIsFound) {
  EXPECT_FOUND(skip_a_barrier, 2 * kThreads, "threads of a block diverge");
  EXPECT_FOUND(skip_a_barrier, 2 * kThreads, "waits in __syncthreads() at emulated_gpu/emulated_gpu_test.cpp:");
  EXPECT_FOUND(skip_a_barrier, 2 * kThreads, "has returned from the kernel");
}

__global__ void different_barriers(float*, int) {
  if (threadIdx.x < 128) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
TEST(EmulatedGpu, DifferentBarriersAreFound) {
  for (const std::string& found : faults(different_barriers, 1)) {
    EXPECT_NE(found.find("diverge"), std::string::npos) << found;
    const std::size_t first = found.find("emulated_gpu_test.cpp:"), second = found.rfind("emulated_gpu_test.cpp:");
    EXPECT_NE(found.substr(first, 30), found.substr(second, 30)) << found;  // both places
  }
}

__global__ void skip_a_shuffle(float* values, int) {
  if (lane() != 5) values[thread()] = sum_over_warp(1);
}
TEST(EmulatedGpu, LaneThatSkipsAShuffleIsFound) {
  EXPECT_FOUND(skip_a_shuffle, 2 * kThreads, "but lane 5 has returned from the kernel");
}

__global__ void shuffle_in_a_loop_of_lanes(float* values, int n) {
  for (int j = lane(); j < 40; j += kWarp) values[(thread() / kWarp * 40 + j) % n] = sum_over_warp(1);
}
TEST(EmulatedGpu, SumInALoopOfLanesIsFound) {
  EXPECT_FOUND(shuffle_in_a_loop_of_lanes, 640, "lanes of a warp diverge");
}

__global__ void different_shuffles(float* values, int) {
  float sum = values[thread()];
  if (lane() < 16) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  } else {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  }
  values[thread()] = sum;
}
TEST(EmulatedGpu, DifferentShufflesAreFound) { EXPECT_FOUND(different_shuffles, 2 * kThreads, "diverge"); }

__global__ void shuffle_or_barrier(float*, int) {
  if (lane() == 0) {
    __syncthreads();
  } else {
    sum_over_warp(1);
  }
}
TEST(EmulatedGpu, ShuffleAndBarrierAreFound) { EXPECT_FOUND(shuffle_or_barrier, 1, "diverge"); }

// ---- loops ----

// A GPU's threads step by up to 2²⁰, so the last step may pass 2³¹.
TEST(EmulatedGpu, LoopsEndAtTheLargestCount) {
  int visited = 0, last = 0;
  for (int i : workshop::Strided(/*first=*/7, /*stride=*/1u << 20, /*n=*/std::numeric_limits<int>::max())) {
    ++visited;
    last = i;
  }
  EXPECT_EQ(visited, 2048);
  EXPECT_EQ(last, 2047 * (1 << 20) + 7);
  for (int i : workshop::Strided(0, 1, -1)) FAIL() << "visits " << i;
}

// After a fault, the next kernel runs as if nothing had been.
TEST(EmulatedGpu, GoesOnAfterAFault) {
  EXPECT_FOUND(skip_a_shuffle, 2 * kThreads, "diverge");
  EXPECT_RIGHT(exchange_in_shared_memory, 2 * kThreads);
}

}  // namespace
