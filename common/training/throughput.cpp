// SPDX-License-Identifier: Apache-2.0
#include "common/training/throughput.h"

#include <cublas_v2.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "common/base/print.h"
#include "common/base/random.h"
#include "common/device/device.h"

namespace workshop {

namespace {

#ifdef WORKSHOP_BACKEND_CPU
constexpr int kSize = 512;
constexpr std::size_t kForBlas = 0;
#else
constexpr int kSize = 8192;                  // enough work for a whole GPU
constexpr std::size_t kForBlas = 128 << 20;  // bytes: a handle's workspace
#endif

// Fills `matrix` with random numbers from -1 to 1; with zeros, a GPU is faster than with any other numbers. A bfloat16
// is the upper half of a float.
void fill_randomly(const DeviceBuffer<float>& matrix, bool bfloat16s, cudaStream_t stream) {
  std::vector<float> numbers(1 << 16);
  Generator(1).uniform(numbers.data(), numbers.size(), -1, 1);
  if (bfloat16s) {
    for (float& number : numbers) {
      const std::uint32_t upper = std::bit_cast<std::uint32_t>(number) >> 16;
      number = std::bit_cast<float>(upper << 16 | upper);
    }
  }
  for (std::size_t i = 0; i < matrix.size(); i += numbers.size()) {
    const std::size_t count = std::min(numbers.size(), matrix.size() - i);
    CUDA_CHECK(cudaMemcpyAsync(matrix.data() + i, numbers.data(), count * sizeof(float), cudaMemcpyDefault, stream));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace

double measured_peak(bool bfloat16s) {
  constexpr int n = kSize, kTimes = 4;
  const cudaDataType type = bfloat16s ? CUDA_R_16BF : CUDA_R_32F;
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (free < 3 * sizeof(float) * n * n + kForBlas) return 0;
  const Stream stream;  // used only by this handle
  DeviceBuffer<float> a(n * n, Memory::data), b(n * n, Memory::data), c(n * n, Memory::data);
  for (const DeviceBuffer<float>* matrix : {&a, &b}) fill_randomly(*matrix, bfloat16s, stream);
  cublasHandle_t blas = nullptr;
  CUBLAS_CHECK(cublasCreate(&blas));
  CUBLAS_CHECK(cublasSetStream(blas, stream));
  const Event begin{cudaEventDefault}, end{cudaEventDefault};
  const float one = 1, zero = 0;
  float best = 0;
  for (int i = 0; i < kTimes; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    CUBLAS_CHECK(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), type, n, b.data(), type, n,
                              &zero, c.data(), type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    best = i == 0 ? milliseconds : std::min(best, milliseconds);
  }
  CUBLAS_CHECK(cublasDestroy(blas));
  return 2.0 * n * n * n / (best / 1e3);
}

void print_throughput(double tokens_a_second, double operations, int ranks, double peak) {
  const double reached = tokens_a_second * operations;
  if (peak == 0) {
    print0("%.0f tokens/s, %.3g TFLOP/s\n", tokens_a_second, reached / 1e12);
    return;
  }
  print0("%.0f tokens/s, %.3g TFLOP/s: %.0f %% of what %d rank%s could do at %.3g each\n", tokens_a_second,
         reached / 1e12, 100 * reached / (ranks * peak), ranks, ranks > 1 ? "s" : "", peak / 1e12);
}

}  // namespace workshop
