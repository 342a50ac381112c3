// SPDX-License-Identifier: Apache-2.0
// Kernels of their own could read memory that the order checker does not know about, and would take no time for what
// they do in loops. These tell the checker everything that they use.
#include <workshop_cpu.h>

#include <cmath>
#include <cstddef>
#include <initializer_list>

#include "common/base/check.h"
#include "common/device/device.h"
#include "golf/judge/operations.h"
#include "model/blas.h"

namespace golf {
namespace {

using namespace workshop;

cpu::KernelArgument all_of(const void* array, int count, bool writes) {
  return {array, static_cast<std::size_t>(count) * sizeof(float), writes};
}

// The judge gives the function only memory of the device.
void require_device_memory(const char* function, std::initializer_list<const void*> arrays) {
  for (const void* array : arrays) {
    cudaPointerAttributes attributes{};
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, array));
    if (attributes.type != cudaMemoryTypeDevice)
      fail(kFailed, "REFUSED, golf::%s gets an array that is not in the memory of the device", function);
  }
}

template <typename Kernel>
void enqueue(cudaStream_t stream, const cpu::SourceCall& site, double operations,
             std::initializer_list<cpu::KernelArgument> arguments, const Kernel& kernel) {
  if (!cpu::may_launch(stream)) cuda_failed(cudaGetLastError(), site.text, site.file, site.line);
  if (cpu::checks_order()) cpu::order_kernel(stream, site, {arguments.begin(), arguments.size()});
  cpu::enqueue_kernel(stream, operations, kernel);
}

}  // namespace

void add(float* sum, const float* x, int count, cudaStream_t stream, const char* file, int line) {
  if (count <= 0) return;
  require_device_memory("add", {sum, x});
  enqueue(stream, {"golf::add", file, line}, 0, {all_of(sum, count, true), all_of(x, count, false)}, [=] {
    for (int i = 0; i < count; ++i) sum[i] += x[i];
  });
}

void copy(float* to, const float* from, int count, cudaStream_t stream) {
  if (count <= 0) return;
  CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
}

void wait(cudaStream_t stream, cudaStream_t other) {
  const Event done;
  CUDA_CHECK(cudaEventRecord(done, other));
  CUDA_CHECK(cudaStreamWaitEvent(stream, done));
}

void multiply(const float* A, const float* B, float* C, int m, int k, int n, cudaStream_t stream) {
  if (m <= 0) return;
  require_device_memory("multiply", {A, B, C});
  gemm(Blas(stream), Op::as_is, Op::as_is, m, n, k, A, B, 0, C);
}

void gelu(float* x, int count, cudaStream_t stream, const char* file, int line) {
  if (count <= 0) return;
  require_device_memory("gelu", {x});
  enqueue(stream, {"golf::gelu", file, line}, count, {all_of(x, count, true)}, [=] {
    for (int i = 0; i < count; ++i) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
  });
}

}  // namespace golf
