// SPDX-License-Identifier: Apache-2.0
// cuBLAS on OpenBLAS: each call checks its arguments and enqueues the operation on the handle's stream. The matrix
// products are in cublas_products.cpp.
#include <algorithm>
#include <map>
#include <mutex>

#include "backend_cpu/cublas_call.h"

using namespace workshop::cpu;

namespace {

// Number of handles on each stream, and the largest number so far at one time.
struct Handles {
  std::mutex mutex;
  std::map<cudaStream_t, int> alive;
  int most = 0;

  void add(cudaStream_t stream, int count) {
    const std::lock_guard lock(mutex);
    most = std::max(most, alive[stream] += count);
  }
};

Handles& handles() {
  static Handles& instance = *new Handles;
  return instance;
}

// Enqueues `compute`, which writes *result, and waits for it if the result is on the host.
template <typename Compute>
cublasStatus_t enqueue_result(cublasHandle_t handle, int n, Compute compute) {
  enqueue_kernel(handle->stream, 2.0 * n, compute);
  if (handle->mode == CUBLAS_POINTER_MODE_HOST) cudaStreamSynchronize(handle->stream);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

int workshop::cpu::most_handles() {
  const std::lock_guard lock(handles().mutex);
  return handles().most;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown status";
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
  }
  return "unknown status";
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  openblas();  // loads it
  *handle = new cublasContext;
  handles().add(nullptr, 1);
  workshop::cpu::may_wait_for_device();  // it allocates memory there
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  workshop::cpu::may_wait_for_device();
  handles().add(handle->stream, -1);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handles().add(handle->stream, -1);
  handles().add(stream, 1);
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (stream == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const int known = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  return (mode & ~known) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (mode != CUBLAS_POINTER_MODE_HOST && mode != CUBLAS_POINTER_MODE_DEVICE) return CUBLAS_STATUS_INVALID_VALUE;
  handle->mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (mode == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *mode = handle->mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgeam(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           const float* alpha, const float* A, int lda, const float* beta, const float* B, int ldb,
                           float* C, int ldc) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!valid(transa) || !valid(transb) || m < 0 || n < 0 || alpha == nullptr || beta == nullptr ||
      lda < stored_rows(transa, m, n) || ldb < stored_rows(transb, m, n) || ldc < std::max(1, m)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const Scalar scale_a(handle, alpha), scale_b(handle, beta);
  if (!check_arguments("cublasSgeam", handle->stream,
                       {operand("A", transa, scale_a.is_zero() ? 0 : m, n, A, lda),
                        operand("B", transb, scale_b.is_zero() ? 0 : m, n, B, ldb),
                        {"C", C, m, n, ldc, true}}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  enqueue_kernel(handle->stream, 3.0 * m * n, [=] {
    // Element (i, j) of op(X), scaled, or 0 if the factor is 0: then X must not be read.
    const auto term = [](float scale, cublasOperation_t op, const float* x, int ld, int i, int j) {
      const std::ptrdiff_t row = op == CUBLAS_OP_N ? i : j, column = op == CUBLAS_OP_N ? j : i;
      return scale == 0 ? 0 : scale * x[row + column * ld];
    };
    const float a = scale_a.value(), b = scale_b.value();
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < m; ++i) {
        C[i + static_cast<std::ptrdiff_t>(j) * ldc] = term(a, transa, A, lda, i, j) + term(b, transb, B, ldb, i, j);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemv(cublasHandle_t handle, cublasOperation_t trans, int m, int n, const float* alpha,
                           const float* A, int lda, const float* x, int incx, const float* beta, float* y, int incy) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!valid(trans) || m < 0 || n < 0 || alpha == nullptr || beta == nullptr || lda < std::max(1, m) || incx == 0 ||
      incy == 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Scalar scale(handle, alpha), old_scale(handle, beta);
  const bool as_is = trans == CUBLAS_OP_N;
  if (!check_arguments("cublasSgemv", handle->stream,
                       {operand("A", CUBLAS_OP_N, m, n, A, lda), vector_argument("x", x, as_is ? n : m, incx, false),
                        vector_argument("y", y, as_is ? m : n, incy, true)}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  enqueue_kernel(handle->stream, 2.0 * m * n,
                 [=] { gemv(cblas_op(trans), m, n, scale.value(), A, lda, x, incx, old_scale.value(), y, incy); });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSdot(cublasHandle_t handle, int n, const float* x, int incx, const float* y, int incy,
                          float* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!check_arguments("cublasSdot", handle->stream,
                       {vector_argument("x", x, n, incx, false),
                        vector_argument("y", y, n, incy, false),
                        {"result", result, 1, 1, 1, true}}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  return enqueue_result(handle, n, [=] { *result = n <= 0 ? 0 : openblas().sdot(n, x, incx, y, incy); });
}

cublasStatus_t cublasSnrm2(cublasHandle_t handle, int n, const float* x, int incx, float* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!check_arguments("cublasSnrm2", handle->stream,
                       {vector_argument("x", x, n, std::max(0, incx), false), {"result", result, 1, 1, 1, true}}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  return enqueue_result(handle, n, [=] { *result = n <= 0 || incx <= 0 ? 0 : openblas().snrm2(n, x, incx); });
}

cublasStatus_t cublasSaxpy(cublasHandle_t handle, int n, const float* alpha, const float* x, int incx, float* y,
                           int incy) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  const Scalar scale(handle, alpha);
  if (!check_arguments("cublasSaxpy", handle->stream,
                       {vector_argument("x", x, n, incx, false), vector_argument("y", y, n, incy, true)}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  enqueue_kernel(handle->stream, 2.0 * n, [=] { openblas().saxpy(n, scale.value(), x, incx, y, incy); });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSscal(cublasHandle_t handle, int n, const float* alpha, float* x, int incx) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (n <= 0 || incx <= 0) return CUBLAS_STATUS_SUCCESS;
  const Scalar scale(handle, alpha);
  if (!check_arguments("cublasSscal", handle->stream, {vector_argument("x", x, n, incx, true)}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  // Not cblas_sscal: with a factor of 0 it turns NaN into 0, whereas cuBLAS multiplies.
  enqueue_kernel(handle->stream, n, [=] {
    const float factor = scale.value();
    for (std::ptrdiff_t i = 0; i < n; ++i) x[i * incx] *= factor;
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasScopy(cublasHandle_t handle, int n, const float* x, int incx, float* y, int incy) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  if (!check_arguments("cublasScopy", handle->stream,
                       {vector_argument("x", x, n, incx, false), vector_argument("y", y, n, incy, true)}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  enqueue_kernel(handle->stream, n, [=] { openblas().scopy(n, x, incx, y, incy); });
  return CUBLAS_STATUS_SUCCESS;
}
