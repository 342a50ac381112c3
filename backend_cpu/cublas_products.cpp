// SPDX-License-Identifier: Apache-2.0
// The matrix products of cuBLAS, on OpenBLAS or, for large ones, oneDNN. Blocks of C, or the products of a batch, are
// divided among the rank's cores.
#include <cuda_bf16.h>

#include <algorithm>

#include "backend_cpu/cublas_call.h"
#include "backend_cpu/onednn.h"

namespace workshop::cpu {
namespace {

struct Part {
  int begin, end;
};

// Returns the calling core's share of n columns or rows, in whole blocks, because OpenBLAS computes block by block.
Part share_of(int n, int block) {
  const std::int64_t blocks = (n + block - 1) / block;
  const auto bound = [&](int index) {
    return static_cast<int>(std::min<std::int64_t>(n, blocks * index / share.count * block));
  };
  return {bound(share.index), bound(share.index + 1)};
}

// One matrix per product of a batch.
template <typename T>
struct Matrices {
  T* first;
  int ld;
  std::int64_t stride;

  T* at(int product, std::ptrdiff_t offset) const { return first + product * stride + offset; }
};

// The products of a batch, C = alpha op(A) op(B) + beta C. A single product is a batch of one. The products and their
// sums are computed in floats.
template <typename T, typename Result>
struct Gemm {
  CBLAS_TRANSPOSE transa, transb;
  int m, n, k;
  Scalar alpha, beta;
  Matrices<const T> a, b;
  Matrices<Result> c;
  int batch;

  void operator()() const {
    if (is_large()) return run_shared([this] { compute_share(); });
    for (int i = 0; i < batch; ++i) compute(m, n, a.at(i, 0), b.at(i, 0), c.at(i, 0));
  }

 private:
  // From this size on, other cores save more time than it costs to wake them.
  bool is_large() const { return multiplications() >= 1 << 21; }

  // Computes the calling core's share: some products of the batch or, of a single product, some columns or rows of C.
  // The division does not depend on which cores are free, so the result is always the same to the last bit.
  // The rows of C are a layer's features, whose number is mostly round; the columns are samples or an expert's tokens.
  // So the rows give more even shares, unless there are few of them.
  void compute_share() const {
    constexpr int kBlock = 64;
    if (batch > 1) {
      const Part products = share_of(batch, 1);
      for (int i = products.begin; i < products.end; ++i) run(i, {0, m}, {0, n});
    } else if (n >= 2 * m) {
      run(0, {0, m}, share_of(n, kBlock));
    } else {
      run(0, share_of(m, kBlock), {0, n});
    }
  }

  void run(int product, Part rows, Part columns) const {
    if (rows.begin == rows.end || columns.begin == columns.end) return;
    const std::ptrdiff_t offset_a = transa == CblasNoTrans ? rows.begin : rows.begin * std::ptrdiff_t{a.ld};
    const std::ptrdiff_t offset_b = transb == CblasNoTrans ? columns.begin * std::ptrdiff_t{b.ld} : columns.begin;
    const std::ptrdiff_t offset_c = rows.begin + columns.begin * std::ptrdiff_t{c.ld};
    compute(rows.end - rows.begin, columns.end - columns.begin, a.at(product, offset_a), b.at(product, offset_b),
            c.at(product, offset_c));
  }

  void compute(int rows, int columns, const T* block_a, const T* block_b, Result* block_c) const {
    if constexpr (std::is_same_v<T, float>) {
      if (n == 1 && k > 0) {  // with k = 0, gemv() would leave y unchanged
        const bool as_is = transa == CblasNoTrans;
        gemv(transa, as_is ? rows : k, as_is ? k : rows, alpha.value(), block_a, a.ld, block_b,
             transb == CblasNoTrans ? 1 : b.ld, beta.value(), block_c, 1);
        return;
      }
      sgemm()(CblasColMajor, transa, transb, rows, columns, k, alpha.value(), block_a, a.ld, block_b, b.ld,
              beta.value(), block_c, c.ld);
    } else {
      thread_local std::vector<float> floats_a, floats_b, floats_c;
      const bool as_is_a = transa == CblasNoTrans, as_is_b = transb == CblasNoTrans;
      const int ld_a = to_floats(floats_a, block_a, as_is_a ? rows : k, as_is_a ? k : rows, a.ld);
      const int ld_b = to_floats(floats_b, block_b, as_is_b ? k : columns, as_is_b ? columns : k, b.ld);
      const auto product = [&](float* result, int ld) {
        sgemm()(CblasColMajor, transa, transb, rows, columns, k, alpha.value(), floats_a.data(), ld_a, floats_b.data(),
                ld_b, beta.value(), result, ld);
      };
      if constexpr (std::is_same_v<Result, float>) {
        product(block_c, c.ld);
      } else {  // rounded once, at the end
        floats_c.resize(static_cast<std::size_t>(rows) * columns);
        if (beta.value() != 0) to_floats(floats_c, block_c, rows, columns, c.ld);
        product(floats_c.data(), rows);
        for (int j = 0; j < columns; ++j) {
          std::copy_n(floats_c.data() + static_cast<std::size_t>(j) * rows, rows, block_c + std::ptrdiff_t{j} * c.ld);
        }
      }
    }
  }

  std::int64_t multiplications() const { return std::int64_t{m} * n * k * batch; }

  // oneDNN's first product takes tens of milliseconds, to compile kernels. Batches pay for that at a smaller size,
  // because there are many of them: one per head of each block.
  decltype(&cblas_sgemm) sgemm() const {
    const bool large = multiplications() >= (batch > 1 ? 1 << 22 : 1 << 24);
    const bool strided_a = transa == CblasNoTrans && is_slow_stride(a.ld);
    const bool strided_b = transb != CblasNoTrans && is_slow_stride(b.ld);
    const bool across_columns = batch == 1 && (strided_a || strided_b);
    return large && !across_columns ? large_sgemm() : openblas().sgemm;
  }

  // Copies a matrix to floats, without the gaps between its columns. Returns its leading dimension.
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

// Computes all products: every call of this file ends here.
template <typename T, typename Result>
cublasStatus_t multiply(const char* call, cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                        int m, int n, int k, const float* alpha, Matrices<const T> a, Matrices<const T> b,
                        const float* beta, Matrices<Result> c, int batch) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (batch < 0 || !valid_gemm(transa, transb, m, n, k, alpha, a.ld, b.ld, beta, c.ld)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  if (!check_arguments(call, handle->stream,
                       {operand("A", transa, m, k, a.first, a.ld, a.stride, batch),
                        operand("B", transb, k, n, b.first, b.ld, b.stride, batch),
                        {"C", c.first, m, n, c.ld, true, c.stride, batch}}))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  enqueue_kernel(
      handle->stream, 2.0 * m * n * k * batch,
      Gemm<T, Result>{cblas_op(transa), cblas_op(transb), m, n, k, {handle, alpha}, {handle, beta}, a, b, c, batch});
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace workshop::cpu

using workshop::cpu::multiply;

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                           int k, const float* alpha, const float* A, int lda, const float* B, int ldb,
                           const float* beta, float* C, int ldc) {
  return cublasSgemmStridedBatched(handle, transa, transb, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float* alpha, const float* A, int lda,
                                         long long int strideA, const float* B, int ldb, long long int strideB,
                                         const float* beta, float* C, int ldc, long long int strideC, int batchCount) {
  return multiply<float, float>(batchCount == 1 ? "cublasSgemm" : "cublasSgemmStridedBatched", handle, transa, transb,
                                m, n, k, alpha, {A, lda, strideA}, {B, ldb, strideB}, beta, {C, ldc, strideC},
                                batchCount);
}

namespace {

// Calls `multiply_as` with a value of the operands' type and one of the result's.
template <typename MultiplyAs>
cublasStatus_t multiply_typed(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t compute,
                              const MultiplyAs& multiply_as) {
  if (a != b || compute != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a == CUDA_R_32F && c == CUDA_R_32F) return multiply_as(float(), float());
  if (a == CUDA_R_16BF && c == CUDA_R_32F) return multiply_as(__nv_bfloat16(), float());
  if (a == CUDA_R_16BF && c == CUDA_R_16BF) return multiply_as(__nv_bfloat16(), __nv_bfloat16());
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C, cudaDataType Ctype, int ldc,
                            cublasComputeType_t computeType, cublasGemmAlgo_t) {
  return multiply_typed(Atype, Btype, Ctype, computeType, [&]<typename T, typename Result>(T, Result) {
    return multiply<T, Result>("cublasGemmEx", handle, transa, transb, m, n, k, static_cast<const float*>(alpha),
                               {static_cast<const T*>(A), lda, 0}, {static_cast<const T*>(B), ldb, 0},
                               static_cast<const float*>(beta), {static_cast<Result*>(C), ldc, 0}, 1);
  });
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void* alpha, const void* A, cudaDataType Atype,
                                          int lda, long long int strideA, const void* B, cudaDataType Btype, int ldb,
                                          long long int strideB, const void* beta, void* C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t) {
  return multiply_typed(Atype, Btype, Ctype, computeType, [&]<typename T, typename Result>(T, Result) {
    return multiply<T, Result>("cublasGemmStridedBatchedEx", handle, transa, transb, m, n, k,
                               static_cast<const float*>(alpha), {static_cast<const T*>(A), lda, strideA},
                               {static_cast<const T*>(B), ldb, strideB}, static_cast<const float*>(beta),
                               {static_cast<Result*>(C), ldc, strideC}, batchCount);
  });
}
