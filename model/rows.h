// SPDX-License-Identifier: Apache-2.0
// Sums and maxima along the rows of a matrix, and sums down its columns, for kernels.
//
//   __global__ void softmax(float* scores, int rows, int width) {
//     for (int row : warp_stride(rows)) {
//       float* p = scores + row * width;
//       const float largest = max_of(width, p);
//       for (int j : lanes(width)) p[j] = expf(p[j] - largest);
//       const float sum = sum_of(width, [=](int j) { return p[j]; });
//       for (int j : lanes(width)) p[j] /= sum;
//     }
//   }
//   launch(softmax, rows * width, stream, scores, rows, width);
//
// On a GPU, the 32 threads of a warp, its lanes, share a row: lane 0 has the values 0, 32, 64, …, lane 1 the values 1,
// 33, 65, …. So the warp reads 32 neighbors at a time, as memory delivers them, and a few thousand rows fill the device
// (01_single_gpu/math.md). On a CPU, one thread has the row. Three rules make both give the same result:
//
// - Write a row's values in loops over lanes(). Each value always belongs to the same lane, which may read in one loop
//   what it wrote in an earlier one. It must not read what other lanes wrote.
// - All lanes call sum_of() and max_of() together: not in a loop over lanes(), and not behind a condition that differs
//   between lanes.
// - What all lanes write to one place, such as a sum, must be the same value. If they read the old one first, they call
//   sync_lanes() before they write.
//
// The sums have a fixed order, so a program's results do not change from run to run.
#pragma once

#include <cmath>
#include <type_traits>

#include "common/device/launch.h"
#include "model/precision.h"

namespace workshop {

#ifdef WORKSHOP_GPU_THREADS

// Returns combine(… combine(a, b) …, z) of the values of all lanes of a warp, on every lane. All of them must call it.
template <typename Combine>
__device__ inline float over_warp(float value, Combine combine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

#endif

// Returns when all lanes of the warp have called it.
__device__ inline void sync_lanes() {
#ifdef WORKSHOP_GPU_THREADS
  __syncwarp();
#endif
}

// Returns Σ term(j) for 0 ≤ j < n. On a GPU, all lanes of a warp must call it together; each gets the whole sum.
template <typename Term>
__device__ inline float sum_of(int n, Term term) {
  float sum = 0;
#ifdef WORKSHOP_GPU_THREADS
#pragma unroll 8  // eight reads on their way at a time
  for (int j = lane(); j < n; j += kWarp) sum += static_cast<float>(term(j));
  return over_warp(sum, [](float a, float b) { return a + b; });
#else
#pragma omp simd reduction(+ : sum)  // in any order, so that a CPU can add up a vector of terms at a time
  for (int j = 0; j < n; ++j) sum += static_cast<float>(term(j));
  return sum;
#endif
}

// Returns the largest of values[n], which are Reals or floats, or of values(0) … values(n - 1). On a GPU, all lanes of
// a warp must call it together; each gets the result.
template <typename Values>
__device__ inline float max_of(int n, Values values) {
  const auto value_at = [=](int j) -> float {
    if constexpr (std::is_invocable_v<Values, int>) {
      return values(j);
    } else {
      return values[j];
    }
  };
  float largest = -INFINITY;
#ifdef WORKSHOP_GPU_THREADS
#pragma unroll 8
  for (int j = lane(); j < n; j += kWarp) {
    const float value = value_at(j);
    largest = value > largest ? value : largest;
  }
  return over_warp(largest, [](float a, float b) { return b > a ? b : a; });
#else
#pragma omp simd reduction(max : largest)
  for (int j = 0; j < n; ++j) {
    const float value = value_at(j);
    largest = value > largest ? value : largest;
  }
  return largest;
#endif
}

// Returns the first j in [0, n) for which condition(j) holds; n if there is none. On a GPU, all lanes of a warp must
// call it together; each gets the result.
template <typename Condition>
__device__ inline int first_of(int n, Condition condition) {
#ifdef WORKSHOP_GPU_THREADS
  for (int begin = 0; begin < n; begin += kWarp) {
    const int j = begin + lane();
    const unsigned holds = __ballot_sync(0xffffffffu, j < n && condition(j));  // a bit for each lane
    if (holds != 0) return begin + __ffs(static_cast<int>(holds)) - 1;
  }
#else
  for (int j = 0; j < n; ++j) {
    if (condition(j)) return j;
  }
#endif
  return n;
}

// Calls visit(i, k) for each i in [0, n) for which condition(i) holds, where k counts these i from 0. Returns how many
// there are. On a GPU, all lanes of a warp must call it together: each visits its own i, and gets the result.
template <typename Condition, typename Visit>
__device__ inline int number(int n, Condition condition, Visit visit) {
  int found = 0;
#ifdef WORKSHOP_GPU_THREADS
  for (int begin = 0; begin < n; begin += kWarp) {
    const int i = begin + lane();
    const bool holds = i < n && condition(i);
    const unsigned all = __ballot_sync(0xffffffffu, holds), before = all & ((1u << lane()) - 1);  // a bit for each lane
    if (holds) visit(i, found + __popc(before));
    found += __popc(all);
  }
#else
  for (int i = 0; i < n; ++i) {
    if (condition(i)) visit(i, found++);
  }
#endif
  return found;
}

// Two sums at a time: a kernel that reads a matrix once for both is twice as fast.
struct TwoSums {
  float first, second;
  __device__ TwoSums& operator+=(const TwoSums& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
};

// Calls finish(column, Σ term(row, column)) for each column of a matrix; the sum is over all rows. `term` returns
// TwoSums. Launch the kernel for rows·columns elements; all its threads must call this.
//
// On a GPU, a block adds up eight columns: 32 bytes of a row are the least that memory moves. Thread t has column t mod
// 8 and every 32nd row; then the block adds up the 32 parts of each column in shared memory.
template <typename Term, typename Finish>
__device__ inline void for_each_column_sum(int rows, int columns, Term term, Finish finish) {
#ifdef WORKSHOP_GPU_THREADS
  constexpr int kColumns = 8, kParts = kThreadsPerBlock / kColumns;
  __shared__ TwoSums parts[kParts][kColumns];
  const int column_of_block = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  for (int first = static_cast<int>(blockIdx.x) * kColumns; first < columns;
       first += static_cast<int>(gridDim.x) * kColumns) {
    const int column = first + column_of_block;
    TwoSums sum{0, 0};
    if (column < columns) {
#pragma unroll 16
      for (int row = part; row < rows; row += kParts) sum += term(row, column);
    }
    parts[part][column_of_block] = sum;
    for (int half = kParts / 2; half > 0; half /= 2) {
      __syncthreads();
      if (part < half) parts[part][column_of_block] += parts[part + half][column_of_block];
    }
    if (part == 0 && column < columns) finish(column, parts[0][column_of_block]);
    __syncthreads();  // before the next columns overwrite the parts
  }
#else
  constexpr int kColumns = 64;  // the sums of this many columns fit in a few vector registers
  for (int block : grid_stride((columns + kColumns - 1) / kColumns)) {
    const int first = block * kColumns, count = columns - first < kColumns ? columns - first : kColumns;
    float sums[kColumns] = {}, other_sums[kColumns] = {};
    for (int row = 0; row < rows; ++row) {
      for (int j = 0; j < count; ++j) {
        const TwoSums terms = term(row, first + j);
        sums[j] += terms.first;
        other_sums[j] += terms.second;
      }
    }
    for (int j = 0; j < count; ++j) finish(first + j, TwoSums{sums[j], other_sums[j]});
  }
#endif
}

// *total += factor·Σ values[n]. Needs one warp: launch it for 1 element.
[[maybe_unused]] static __global__ void add_sum(float* total, const float* values, float factor, int n) {
  for ([[maybe_unused]] int once : warp_stride(1)) {
    const float sum = sum_of(n, [=](int i) { return values[i]; });
    for ([[maybe_unused]] int first_lane : lanes(1)) *total += factor * sum;
  }
}

}  // namespace workshop
