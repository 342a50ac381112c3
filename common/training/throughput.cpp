// SPDX-License-Identifier: Apache-2.0
#include "common/training/throughput.h"

#include <cublas_v2.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/print.h"
#include "common/device/device.h"

namespace workshop {

double measured_peak() {
  constexpr int n = 512, kTimes = 4;
  const Stream stream;  // used only by this handle
  DeviceBuffer<float> a(n * n, Memory::data), b(n * n, Memory::data), c(n * n, Memory::data);
  for (DeviceBuffer<float>* matrix : {&a, &b}) CUDA_CHECK(cudaMemsetAsync(matrix->data(), 0, matrix->bytes(), stream));
  cublasHandle_t blas = nullptr;
  CUBLAS_CHECK(cublasCreate(&blas));
  CUBLAS_CHECK(cublasSetStream(blas, stream));
  const Event begin{cudaEventDefault}, end{cudaEventDefault};
  const float one = 1, zero = 0;
  float best = 0;
  for (int i = 0; i < kTimes; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    CUBLAS_CHECK(
        cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), n, b.data(), n, &zero, c.data(), n));
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
  print0("%.0f tokens/s, %.3g TFLOP/s: %.0f %% of what %d rank%s could do at %.3g each\n", tokens_a_second,
         reached / 1e12, 100 * reached / (ranks * peak), ranks, ranks > 1 ? "s" : "", peak / 1e12);
}

}  // namespace workshop
