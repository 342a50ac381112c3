// SPDX-License-Identifier: Apache-2.0
// One way to write and launch a kernel, for nvcc and for a C++ compiler alone.
//
//   __global__ void add_bias(float* y, const float* bias, int rows, int cols) {
//     for (int i : grid_stride(rows * cols)) y[i] += bias[i % cols];
//   }
//   launch(add_bias, rows * cols, stream, y, bias, rows, cols);
//
// With CUDA the loop is a grid-stride loop over all threads. On a CPU one call runs the whole range, or of a large one
// a share on each core of the rank, and the compiler vectorizes it. Write kernels whose iterations are independent of
// each other: then all this means the same.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "common/check.h"

#if defined(__CUDACC__) || defined(WORKSHOP_BACKEND_CPU)  // for GPUs, only nvcc has kernels
namespace workshop {

// The indices of [0, n) that this thread works on: from `begin`, every `stride`-th.
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

// The stream of a launch, and the place in the source that asks for it.
struct LaunchStream {
  template <typename S>
  requires std::is_convertible_v<const S&, cudaStream_t>
  constexpr LaunchStream(const S& stream, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : stream(stream), file(file), line(line) {}
  cudaStream_t stream;
  const char* file;
  int line;
};

// Enqueues `kernel(args...)` on `stream` with one thread an element, up to a full GPU. `elements` is the number of
// independent iterations; nothing is launched for none.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), int elements, LaunchStream on, Args... args) {
  if (elements <= 0) return;
  static constexpr CallSite site = {"the launch of a kernel", "", 0};
  const InCall in_call(site);
#ifdef __CUDACC__
  constexpr int kBlock = 256;
  constexpr int kMaxBlocks = 4096;
  const int needed = (elements + kBlock - 1) / kBlock;
  const int blocks = needed < kMaxBlocks ? needed : kMaxBlocks;
  kernel<<<blocks, kBlock, 0, on.stream>>>(args...);
#else
  const auto run = [=] { kernel(args...); };
  if (cpu::may_launch(on.stream)) {
    if (elements < cpu::kSharedElements) {
      cpu::enqueue_kernel(on.stream, run);
    } else {
      cpu::enqueue_kernel(on.stream, [run] { cpu::run_shared(run); });
    }
  }
#endif
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) cuda_failed(status, "the launch of a kernel", on.file, on.line);
}

}  // namespace workshop
#endif
