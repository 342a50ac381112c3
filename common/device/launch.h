// SPDX-License-Identifier: Apache-2.0
// One way to write and launch a kernel, for nvcc and for a plain C++ compiler.
//
//   __global__ void add_bias(float* y, const float* bias, int rows, int cols) {
//     for (int i : grid_stride(rows * cols)) y[i] += bias[i % cols];
//   }
//   launch(add_bias, rows * cols, stream, y, bias, rows, cols);
//
// With CUDA, the loop is a grid-stride loop over all threads. On a CPU, one call of the kernel runs the whole range or,
// if the range is large, each of the rank's cores calls the kernel for a part of it. The compiler vectorizes the loop.
// Write kernels whose iterations are independent of each other; then all of this gives the same result.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "common/base/check.h"
#include "common/base/in_call.h"
#include "common/device/grid_stride.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {

// The stream of a launch, and the place of the launch in the source.
struct LaunchStream {
  template <typename S>
  requires std::is_convertible_v<const S&, cudaStream_t>
  constexpr LaunchStream(const S& stream, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : stream(stream), file(file), line(line) {}
  cudaStream_t stream;
  const char* file;
  int line;
};

// Returns the place of a launch as a CallSite that is never destroyed: the watchdog may read it at any time.
const CallSite& launch_site(const char* file, int line);

#if defined(__CUDACC__) || defined(WORKSHOP_BACKEND_CPU)  // for GPUs, only nvcc compiles kernels

// Enqueues kernel(args...) on the stream. `elements` is the number of independent iterations. On a GPU, each gets a
// thread of its own, up to about a million threads. Does nothing for 0 elements.
template <typename... Params, typename... Args>
void launch(void (*kernel)(Params...), int elements, LaunchStream on, Args... args) {
  if (elements <= 0) return;
  const InCall in_call(launch_site(on.file, on.line));
#ifdef __CUDACC__
  constexpr int kMaxBlocks = 4096;
  const int needed = (elements - 1) / kThreadsPerBlock + 1;
  const int blocks = needed < kMaxBlocks ? needed : kMaxBlocks;
  kernel<<<blocks, kThreadsPerBlock, 0, on.stream>>>(args...);
#else
  cpu::launch_kernel(on.stream, {"kernel", on.file, on.line}, reinterpret_cast<const void*>(kernel), elements,
                     {cpu::kernel_argument<Params>(args)...}, [=] { kernel(args...); });
#endif
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) cuda_failed(status, "the launch of a kernel", on.file, on.line);
}

#endif

}  // namespace workshop
