// SPDX-License-Identifier: Apache-2.0
// The loops of a kernel over its elements or rows; see common/device/launch.h and model/rows.h.
#pragma once

#include <cuda_runtime.h>

// Defined if many threads run a kernel together: those of a GPU or, in tests, emulated ones. Without it, on the cpu
// backend, a kernel is an ordinary function, and its loop runs over all of its range or over one core's part of it.
#if defined(__CUDACC__) || defined(WORKSHOP_EMULATES_GPU_THREADS)
#define WORKSHOP_GPU_THREADS
#endif

#if defined(WORKSHOP_GPU_THREADS) || defined(WORKSHOP_BACKEND_CPU)
namespace workshop {

constexpr int kWarp = 32;              // threads of a GPU that run together; each of them is a lane
constexpr int kThreadsPerBlock = 256;  // of each kernel: whole warps

#ifdef WORKSHOP_GPU_THREADS

// The numbers first, first + stride, … below n, for a range-based for loop.
class Strided {
 public:
  class Iterator {
   public:
    __device__ Iterator(unsigned i, unsigned stride) : i_(i), stride_(stride) {}
    __device__ int operator*() const { return static_cast<int>(i_); }
    __device__ void operator++() { i_ += stride_; }  // may pass 2³¹ at the end
    __device__ bool operator!=(Iterator end) const { return i_ < end.i_; }

   private:
    unsigned i_, stride_;
  };
  __device__ Strided(unsigned first, unsigned stride, int n) : begin_(first, stride), end_(n > 0 ? n : 0, 0) {}
  __device__ Iterator begin() const { return begin_; }
  __device__ Iterator end() const { return end_; }

 private:
  Iterator begin_, end_;
};

__device__ inline int lane() { return static_cast<int>(threadIdx.x % kWarp); }

// The indices in [0, n) that this thread works on: those equal to its own number, modulo the number of threads.
__device__ inline Strided grid_stride(int n) {
  return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x, n};
}

// The rows in [0, rows) that this thread's warp works on.
__device__ inline Strided warp_stride(int rows) {
  return {(blockIdx.x * blockDim.x + threadIdx.x) / kWarp, gridDim.x * blockDim.x / kWarp, rows};
}

// The places in [0, n) of its warp's row that this lane works on: every 32nd.
__device__ inline Strided lanes(int n) { return {threadIdx.x % kWarp, kWarp, n}; }

#else

// The numbers from begin to end - 1, for a range-based for loop.
class Consecutive {
 public:
  class Iterator {
   public:
    explicit Iterator(int i) : i_(i) {}
    int operator*() const { return i_; }
    void operator++() { ++i_; }
    bool operator!=(Iterator end) const { return i_ < end.i_; }

   private:
    int i_;
  };
  Consecutive(int begin, int end) : begin_(begin), end_(end) {}
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  Iterator begin_, end_;
};

// The indices in [0, n) that this thread works on: a contiguous range.
inline Consecutive grid_stride(int n) {
  const auto bound = [n](int part) { return static_cast<int>(static_cast<long>(n) * part / cpu::share.count); };
  return {bound(cpu::share.index), bound(cpu::share.index + 1)};
}

// warp_stride(): the rows in [0, rows) that this thread works on. lanes(): all places in a row.
inline Consecutive warp_stride(int rows) { return grid_stride(rows); }
inline Consecutive lanes(int n) { return {0, n}; }

#endif

// Calls f(i, column) for each element i of a row-major matrix. On a GPU, each thread computes the column with a
// division. On a CPU, a division by a number unknown to the compiler would cost more than most kernels do, so the loop
// goes row by row.
template <typename F>
__device__ inline void for_each_element(int rows, int columns, F f) {
#ifdef WORKSHOP_GPU_THREADS
  for (int i : grid_stride(rows * columns)) f(i, i % columns);
#else
  for (int row : grid_stride(rows)) {
    for (int column = 0; column < columns; ++column) f(row * columns + column, column);
  }
#endif
}

}  // namespace workshop
#endif
