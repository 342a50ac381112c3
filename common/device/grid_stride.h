// SPDX-License-Identifier: Apache-2.0
// The loop of a kernel over its elements; see common/device/launch.h.
#pragma once

#include <cuda_runtime.h>

#if defined(__CUDACC__) || defined(WORKSHOP_BACKEND_CPU)
namespace workshop {

// The indices in [0, n) that this thread works on: on a GPU every stride-th, on a CPU a contiguous range.
class GridStride {
 public:
  struct Sentinel {
    int n;
  };
#ifdef __CUDACC__
  class Iterator {
   public:
    __device__ Iterator(int i, int stride) : i_(i), stride_(stride) {}
    __device__ int operator*() const { return i_; }
    __device__ void operator++() { i_ += stride_; }
    __device__ bool operator!=(Sentinel end) const { return i_ < end.n; }

   private:
    int i_, stride_;
  };
  __device__ explicit GridStride(int n) : n_(n) {}
  __device__ Iterator begin() const {
    return {static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), static_cast<int>(gridDim.x * blockDim.x)};
  }
  __device__ Sentinel end() const { return {n_}; }
#else
  class Iterator {
   public:
    explicit Iterator(int i) : i_(i) {}
    int operator*() const { return i_; }
    void operator++() { ++i_; }
    bool operator!=(Sentinel end) const { return i_ < end.n; }

   private:
    int i_;
  };
  explicit GridStride(int n) : begin_(bound(n, cpu::share.index)), n_(bound(n, cpu::share.index + 1)) {}
  Iterator begin() const { return Iterator(begin_); }
  Sentinel end() const { return {n_}; }
#endif

 private:
#ifndef __CUDACC__
  static int bound(int n, int part) { return static_cast<int>(static_cast<long>(n) * part / cpu::share.count); }
  int begin_;
#endif
  int n_;
};

#ifdef __CUDACC__
__device__ inline GridStride grid_stride(int n) { return GridStride(n); }
#else
inline GridStride grid_stride(int n) { return GridStride(n); }
#endif

// Calls f(i, column) for each element i of a row-major matrix. On a GPU, each thread computes the column with a
// division. On a CPU, a division by a number unknown to the compiler would cost more than most kernels do, so the loop
// goes row by row.
template <typename F>
__device__ inline void for_each_element(int rows, int columns, F f) {
#ifdef __CUDACC__
  for (int i : grid_stride(rows * columns)) f(i, i % columns);
#else
  for (int row : grid_stride(rows)) {
    for (int column = 0; column < columns; ++column) f(row * columns + column, column);
  }
#endif
}

// Number of columns of a row-major matrix per iteration, for a kernel whose iterations run down all rows. One on a GPU,
// where neighboring threads then read neighboring elements; on a CPU, as many as fit in a few vector registers.
#ifdef __CUDACC__
constexpr int kColumnsPerIteration = 1;
#else
constexpr int kColumnsPerIteration = 64;
#endif

}  // namespace workshop
#endif
