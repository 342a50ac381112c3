// SPDX-License-Identifier: Apache-2.0
// Matrix products on cuBLAS. Matrices are row-major, as in C++ and PyTorch.
#pragma once

#include <map>
#include <memory>
#include <type_traits>

#include "common/base/check.h"
#include "model/precision.h"

namespace workshop {

enum class Op { as_is, transposed };

// C[m, n] = op(A)[m, k] · op(B)[k, n] + beta·C, all row-major; beta is 0 or 1.
//
// cuBLAS is column-major: what it reads from a row-major matrix is the transpose. So it is asked for the transposed
// product Cᵀ = op(B)ᵀ · op(A)ᵀ: the operands change places, m and n too, and what it writes is the C that we want. The
// matrices are of the type that precision.h says; their products are always added up in float32.
inline void gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, const Real* A, const Real* B, float beta,
                 Real* C) {
  const float one = 1.0f;
  const auto blas_op = [](Op op) { return op == Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const int columns_a = op_a == Op::transposed ? m : k;
  const int columns_b = op_b == Op::transposed ? k : n;
  CUBLAS_CHECK(cublasGemmEx(blas, blas_op(op_b), blas_op(op_a), n, m, k, &one, B, kCudaReal, columns_b, A, kCudaReal,
                            columns_a, &beta, C, kCudaReal, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

// One matrix a sample, each inside a bigger row-major one: rows are `row_stride` numbers apart, samples `stride`.
struct Matrices {
  Real* data;
  int row_stride;
  long long stride;
};

// C[m, n] = factor · op(A)[m, k] · op(B)[k, n], for `count` samples in one call; row-major, as gemm().
inline void batched_gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, float factor, Matrices A,
                         Matrices B, Matrices C, int count) {
  const float zero = 0.0f;
  const auto blas_op = [](Op op) { return op == Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  CUBLAS_CHECK(cublasGemmStridedBatchedEx(blas, blas_op(op_b), blas_op(op_a), n, m, k, &factor, B.data, kCudaReal,
                                          B.row_stride, B.stride, A.data, kCudaReal, A.row_stride, A.stride, &zero,
                                          C.data, kCudaReal, C.row_stride, C.stride, count, CUBLAS_COMPUTE_32F,
                                          CUBLAS_GEMM_DEFAULT));
}

// cuBLAS on one stream. All that work on a stream share a handle, because each handle has a workspace of its own on the
// device, of many megabytes, and nothing is gained by two where calls follow one after the other.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) : handle_(handle_of(stream)), stream_(stream) {}
  operator cublasHandle_t() const { return handle_.get(); }
  cudaStream_t stream() const { return stream_; }

 private:
  using Handle = std::shared_ptr<std::remove_pointer_t<cublasHandle_t>>;

  static Handle handle_of(cudaStream_t stream) {
    static std::map<cudaStream_t, std::weak_ptr<Handle::element_type>> handles;
    Handle handle = handles[stream].lock();
    if (handle == nullptr) {
      cublasHandle_t created = nullptr;
      CUBLAS_CHECK(cublasCreate(&created));
      CUBLAS_CHECK(cublasSetStream(created, stream));
      handle.reset(created, cublasDestroy);
      handles[stream] = handle;
    }
    return handle;
  }

  Handle handle_;
  cudaStream_t stream_;
};

}  // namespace workshop
