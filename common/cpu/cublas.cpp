// SPDX-License-Identifier: Apache-2.0
// cuBLAS on OpenBLAS: each call checks its arguments and enqueues the operation on the handle's stream.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/cpu/blocking.h"
#include "common/cpu/onednn.h"
#include "common/cpu/openblas.h"
#include "common/cpu/order.h"
#include "common/cpu/ranges.h"
#include "common/cpu/runtime.h"
#include "common/cpu/stream.h"

using workshop::cpu::enqueue_kernel;
using workshop::cpu::openblas;
using workshop::cpu::Range;
using workshop::cpu::share;

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;
};

namespace {

// alpha or beta: on the host taken when the function is called, on the device read when the operation runs.
class Scalar {
 public:
  Scalar(cublasHandle_t handle, const float* pointer) {
    if (handle->mode == CUBLAS_POINTER_MODE_DEVICE) {
      device_ = pointer;
    } else {
      host_ = *pointer;
    }
  }
  float value() const { return device_ == nullptr ? host_ : *device_; }
  bool is_zero() const { return device_ == nullptr && host_ == 0; }

 private:
  const float* device_ = nullptr;
  float host_ = 0;
};

// How many handles work on each stream, and the most that ever did at a time.
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

bool valid(cublasOperation_t op) { return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C; }

CBLAS_TRANSPOSE cblas_op(cublasOperation_t op) { return op == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; }

// A column-major matrix that op() turns into [rows, columns] is stored with at least so many rows.
int stored_rows(cublasOperation_t op, int rows, int columns) { return std::max(1, op == CUBLAS_OP_N ? rows : columns); }

struct Part {
  int begin, end;
};

// The calling core's share of n columns or rows, in whole blocks: a kernel of OpenBLAS computes a block at a time.
Part share_of(int n, int block) {
  const std::int64_t blocks = (n + block - 1) / block;
  const auto bound = [&](int index) {
    return static_cast<int>(std::min<std::int64_t>(n, blocks * index / share.count * block));
  };
  return {bound(share.index), bound(share.index + 1)};
}

// A matrix of each product of a batch.
template <typename T>
struct Matrices {
  T* first;
  int ld;
  std::int64_t stride;

  T* at(int product, std::ptrdiff_t offset) const { return first + product * stride + offset; }
};

// The products of a batch, C = alpha op(A) op(B) + beta C, one for a single product.
template <typename T>
struct Gemm {
  CBLAS_TRANSPOSE transa, transb;
  int m, n, k;
  Scalar alpha, beta;
  Matrices<const T> a, b;
  Matrices<T> c;
  int batch;

  // From here on, waking other cores costs less than they save.
  bool is_large() const { return multiplications() >= 1 << 21; }

  // The calling core's share: some products of the batch, or of a single one some columns or rows of C. What a core
  // computes does not depend on who else is at work, so that the result is always the same to the last bit.
  void operator()() const {
    constexpr int kBlock = 64;
    if (batch > 1) {
      const Part products = share_of(batch, 1);
      for (int i = products.begin; i < products.end; ++i) run(i, {0, m}, {0, n});
    } else if (n >= m) {
      run(0, {0, m}, share_of(n, kBlock));
    } else {
      run(0, share_of(m, kBlock), {0, n});
    }
  }

 private:
  void run(int product, Part rows, Part columns) const {
    if (rows.begin == rows.end || columns.begin == columns.end) return;
    const std::ptrdiff_t offset_a = transa == CblasNoTrans ? rows.begin : rows.begin * std::ptrdiff_t{a.ld};
    const std::ptrdiff_t offset_b = transb == CblasNoTrans ? columns.begin * std::ptrdiff_t{b.ld} : columns.begin;
    const std::ptrdiff_t offset_c = rows.begin + columns.begin * std::ptrdiff_t{c.ld};
    compute(rows.end - rows.begin, columns.end - columns.begin, a.at(product, offset_a), b.at(product, offset_b),
            c.at(product, offset_c));
  }

  void compute(int rows, int columns, const T* block_a, const T* block_b, T* block_c) const {
    if constexpr (std::is_same_v<T, float>) {
      sgemm()(CblasColMajor, transa, transb, rows, columns, k, alpha.value(), block_a, a.ld, block_b, b.ld,
              beta.value(), block_c, c.ld);
    } else {  // in floats, and rounded once in the end
      thread_local std::vector<float> floats_a, floats_b, floats_c;
      const bool as_is_a = transa == CblasNoTrans, as_is_b = transb == CblasNoTrans;
      const int ld_a = to_floats(floats_a, block_a, as_is_a ? rows : k, as_is_a ? k : rows, a.ld);
      const int ld_b = to_floats(floats_b, block_b, as_is_b ? k : columns, as_is_b ? columns : k, b.ld);
      const float old = beta.value();
      floats_c.resize(static_cast<std::size_t>(rows) * columns);
      if (old != 0) to_floats(floats_c, block_c, rows, columns, c.ld);
      sgemm()(CblasColMajor, transa, transb, rows, columns, k, alpha.value(), floats_a.data(), ld_a, floats_b.data(),
              ld_b, old, floats_c.data(), rows);
      for (int j = 0; j < columns; ++j) {
        std::copy_n(floats_c.data() + static_cast<std::size_t>(j) * rows, rows, block_c + std::ptrdiff_t{j} * c.ld);
      }
    }
  }

  std::int64_t multiplications() const { return std::int64_t{m} * n * k * batch; }

  // oneDNN's first product takes tens of milliseconds, in which it compiles its kernels. A batch is one of many, one for each
  // head of each block.
  decltype(&cblas_sgemm) sgemm() const {
    return multiplications() >= (batch > 1 ? 1 << 22 : 1 << 24) ? workshop::cpu::large_sgemm() : openblas().sgemm;
  }

  // A matrix as floats, without what lies between its columns; returns its leading dimension.
  static int to_floats(std::vector<float>& floats, const T* from, int rows, int columns, int ld) {
    floats.resize(static_cast<std::size_t>(rows) * columns);
    for (int j = 0; j < columns; ++j) {
      std::copy_n(from + std::ptrdiff_t{j} * ld, rows, floats.data() + static_cast<std::size_t>(j) * rows);
    }
    return std::max(1, rows);
  }
};

bool valid_gemm(cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha, int lda,
                int ldb, const void* beta, int ldc) {
  return valid(transa) && valid(transb) && m >= 0 && n >= 0 && k >= 0 && alpha != nullptr && beta != nullptr &&
         lda >= stored_rows(transa, m, k) && ldb >= stored_rows(transb, k, n) && ldc >= std::max(1, m);
}

// ---- what a call reads and writes ----------------------------------------------------------------------------------

// The matrices of one argument, one for each product of a batch, in column-major order.
template <typename T>
struct ArgumentOf {
  const char* name;
  const T* first;
  int rows, columns, ld;
  bool writes;
  std::int64_t stride = 0;
  int batch = 1;

  Range between() const {  // from the first element to the last
    const std::int64_t elements = (batch - 1) * stride + std::int64_t{columns - 1} * ld + rows;
    return range(first, static_cast<std::size_t>(elements));
  }
  Range one(int i) const {  // without what lies between its columns
    Range matrix = range(first + i * stride, static_cast<std::size_t>(rows));
    matrix.count = static_cast<std::size_t>(columns);
    matrix.pitch = static_cast<std::size_t>(ld) * sizeof(T);
    return matrix;
  }

 private:
  Range range(const T* begin, std::size_t elements) const {
    return {name, begin, elements * sizeof(T), writes, sizeof(T), std::is_same_v<T, float> ? "floats" : "bfloat16s"};
  }
};
using Argument = ArgumentOf<float>;

Argument vector_argument(const char* name, const float* x, int n, int increment, bool writes) {
  return {name, x, /*rows=*/1, /*columns=*/n, /*ld=*/std::abs(increment), writes};
}

template <typename T>
ArgumentOf<T> operand(const char* name, cublasOperation_t op, int rows, int columns, const T* first, int ld,
                      std::int64_t stride = 0, int batch = 1) {
  const bool as_is = op == CUBLAS_OP_N;
  return {name, first, as_is ? rows : columns, as_is ? columns : rows, ld, /*writes=*/false, stride, batch};
}

// False where the handle's stream is none of the current device, on which no kernel can be launched there.
template <typename T = float>
bool check_arguments(const char* call, cudaStream_t stream, std::initializer_list<ArgumentOf<T>> arguments) {
  if (!workshop::cpu::may_launch(stream)) {
    cudaGetLastError();  // the call's own status tells
    return false;
  }
  // There is a kernel for each shape, as far as anyone knows.
  std::size_t kernel = std::hash<std::string_view>()(call);
  for (const ArgumentOf<T>& a : arguments) kernel = (kernel * 31 + a.rows) * 31 + a.columns;
  workshop::cpu::load_kernel(kernel);
  const int device = workshop::cpu::device_of(stream);
  for (const ArgumentOf<T>& a : arguments) {
    if (a.rows > 0 && a.columns > 0) workshop::cpu::check_bounds(call, {{a.between()}}, device);
  }
  if (!workshop::cpu::checks_order()) return true;
  std::vector<Range> ranges;
  for (const ArgumentOf<T>& a : arguments) {
    for (int i = 0; i < (a.stride == 0 ? 1 : a.batch); ++i) ranges.push_back(a.one(i));
  }
  workshop::cpu::order_call({stream, workshop::cpu::call_site(call), ranges});
  return true;
}

// Element i of a BLAS vector of n elements: with a negative increment it starts from the end.
std::ptrdiff_t element(std::ptrdiff_t i, std::ptrdiff_t n, std::ptrdiff_t increment) {
  return increment >= 0 ? i * increment : (i - n + 1) * increment;
}

// Enqueues `compute`, which writes *result, and waits for it where the result is on the host.
template <typename Compute>
cublasStatus_t enqueue_result(cublasHandle_t handle, int n, Compute compute) {
  enqueue_kernel(handle->stream, 2.0 * n, compute);
  if (handle->mode == CUBLAS_POINTER_MODE_HOST) cudaStreamSynchronize(handle->stream);
  return CUBLAS_STATUS_SUCCESS;
}

// All products: what every call for some of them comes down to.
template <typename T>
cublasStatus_t multiply(const char* call, cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                        int m, int n, int k, const float* alpha, Matrices<const T> a, Matrices<const T> b,
                        const float* beta, Matrices<T> c, int batch) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (batch < 0 || !valid_gemm(transa, transb, m, n, k, alpha, a.ld, b.ld, beta, c.ld)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  if (!check_arguments<T>(call, handle->stream,
                          {operand("A", transa, m, k, a.first, a.ld, a.stride, batch),
                           operand("B", transb, k, n, b.first, b.ld, b.stride, batch),
                           {"C", c.first, m, n, c.ld, true, c.stride, batch}}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  const Gemm<T> gemm = {cblas_op(transa), cblas_op(transb), m, n, k, {handle, alpha}, {handle, beta}, a, b, c, batch};
  enqueue_kernel(handle->stream, 2.0 * m * n * k * batch,
                 [gemm] { gemm.is_large() ? workshop::cpu::run_shared(gemm) : gemm(); });
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

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float* alpha, const float* A, int lda, const float* B, int ldb,
                           const float* beta, float* C, int ldc) {
  return cublasSgemmStridedBatched(handle, transa, transb, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float* alpha, const float* A, int lda,
                                         long long int strideA, const float* B, int ldb, long long int strideB,
                                         const float* beta, float* C, int ldc, long long int strideC, int batchCount) {
  return multiply<float>(batchCount == 1 ? "cublasSgemm" : "cublasSgemmStridedBatched", handle, transa, transb, m, n, k,
                         alpha, {A, lda, strideA}, {B, ldb, strideB}, beta, {C, ldc, strideC}, batchCount);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C, cudaDataType Ctype, int ldc,
                            cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
  return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C,
                                    Ctype, ldc, 0, 1, computeType, algo);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void* alpha, const void* A, cudaDataType Atype,
                                          int lda, long long int strideA, const void* B, cudaDataType Btype, int ldb,
                                          long long int strideB, const void* beta, void* C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t) {
  if (Atype != Btype || Atype != Ctype || computeType != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  const char* call = batchCount == 1 ? "cublasGemmEx" : "cublasGemmStridedBatchedEx";
  const auto as = [&]<typename T>(T) {
    return multiply<T>(call, handle, transa, transb, m, n, k, static_cast<const float*>(alpha),
                       {static_cast<const T*>(A), lda, strideA}, {static_cast<const T*>(B), ldb, strideB},
                       static_cast<const float*>(beta), {static_cast<T*>(C), ldc, strideC}, batchCount);
  };
  if (Atype == CUDA_R_32F) return as(float());
  if (Atype == CUDA_R_16BF) return as(__nv_bfloat16());
  return CUBLAS_STATUS_NOT_SUPPORTED;
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
    // Element (i, j) of op(X), or 0 where its factor is 0 and X is not to be read.
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
  enqueue_kernel(handle->stream, 2.0 * m * n, [=] {
    const int count = trans == CUBLAS_OP_N ? m : n;
    float kept = old_scale.value();
    if (kept == 0) {  // y may be NaN, and OpenBLAS would keep that
      for (int i = 0; i < count; ++i) y[element(i, count, incy)] = 0;
      kept = 1;
    }
    openblas().sgemv(CblasColMajor, cblas_op(trans), m, n, scale.value(), A, lda, x, incx, kept, y, incy);
  });
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
  // Not cblas_sscal: by 0 it makes a 0 of a NaN, where cuBLAS multiplies.
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
