// SPDX-License-Identifier: Apache-2.0
// Row-major matrix products on cuBLAS, which is column-major and therefore reads a row-major matrix as its transpose.
// So we ask it for the transposed product Cᵀ = op(B)ᵀ · op(A)ᵀ: the operands trade places, as do m and n. It writes Cᵀ
// column by column, which is C row by row.
#include <map>

#include "common/base/check.h"
#include "model/blas.h"

namespace workshop {
namespace {

using Handle = std::shared_ptr<std::remove_pointer_t<cublasHandle_t>>;

constexpr auto kSumsInFloat =
    static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);

// Returns the handle that everyone on this stream shares.
Handle handle_of(cudaStream_t stream) {
  static std::map<cudaStream_t, std::weak_ptr<Handle::element_type>> handles;
  Handle handle = handles[stream].lock();
  if (handle == nullptr) {
    cublasHandle_t created = nullptr;
    CUBLAS_CHECK(cublasCreate(&created));
    CUBLAS_CHECK(cublasSetStream(created, stream));
    // Without this, a large product of bfloat16s may be cut into parts whose sums are rounded to bfloat16.
    CUBLAS_CHECK(cublasSetMathMode(created, kSumsInFloat));
    handle.reset(created, cublasDestroy);
    handles[stream] = handle;
  }
  return handle;
}

cublasOperation_t blas_op(Op op) { return op == Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

void gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, const Real* A, const Real* B, float beta,
          Real* C) {
  if (k == 0 && beta == 0) {  // cuBLAS accepts no matrix without columns
    cudaStream_t stream = nullptr;
    CUBLAS_CHECK(cublasGetStream(blas, &stream));
    CUDA_CHECK(cudaMemsetAsync(C, 0, sizeof(Real) * m * n, stream));
  }
  if (m == 0 || n == 0 || k == 0) return;
  const float one = 1.0f;
  const int columns_a = op_a == Op::transposed ? m : k;
  const int columns_b = op_b == Op::transposed ? k : n;
  CUBLAS_CHECK(cublasGemmEx(blas, blas_op(op_b), blas_op(op_a), n, m, k, &one, B, kCudaReal, columns_b, A, kCudaReal,
                            columns_a, &beta, C, kCudaReal, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

namespace {

template <typename Result>
void multiply(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, float factor, Matrices A, Matrices B,
              float beta, MatricesOf<Result> C, cudaDataType result, int count) {
  CUBLAS_CHECK(cublasGemmStridedBatchedEx(blas, blas_op(op_b), blas_op(op_a), n, m, k, &factor, B.data, kCudaReal,
                                          B.row_stride, B.stride, A.data, kCudaReal, A.row_stride, A.stride, &beta,
                                          C.data, result, C.row_stride, C.stride, count, CUBLAS_COMPUTE_32F,
                                          CUBLAS_GEMM_DEFAULT));
}

}  // namespace

void batched_gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, float factor, Matrices A, Matrices B,
                  Matrices C, int count) {
  multiply(blas, op_a, op_b, m, n, k, factor, A, B, 0, C, kCudaReal, count);
}

void add_batched_gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, Matrices A, Matrices B, float beta,
                      MatricesOf<float> C, int count) {
  multiply(blas, op_a, op_b, m, n, k, 1, A, B, beta, C, CUDA_R_32F, count);
}

Blas::Blas(cudaStream_t stream) : handle_(handle_of(stream)), stream_(stream) {}

}  // namespace workshop
