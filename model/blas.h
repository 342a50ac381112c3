// SPDX-License-Identifier: Apache-2.0
// Matrix products on cuBLAS. Matrices are row-major, as in C++ and PyTorch.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "model/precision.h"

namespace workshop {

enum class Op { as_is, transposed };

// Computes C[m, n] = op(A)[m, k] · op(B)[k, n] + beta·C, all row-major; beta is 0 or 1. The matrices hold Reals
// (precision.h); the products are always accumulated in float32. Matrices may be empty: with k = 0, the product is
// zero.
void gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, const Real* A, const Real* B, float beta,
          Real* C);

// One matrix per sample, each inside a bigger row-major one: rows are `row_stride` numbers apart, samples `stride`.
template <typename T>
struct MatricesOf {
  T* data;
  int row_stride;
  long long stride;

  MatricesOf from_row(int row) const {
    return {data + static_cast<std::ptrdiff_t>(row) * row_stride, row_stride, stride};
  }
};
using Matrices = MatricesOf<Real>;

// Computes C[m, n] = factor · op(A)[m, k] · op(B)[k, n] for `count` samples in one call; row-major, as gemm().
void batched_gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, float factor, Matrices A, Matrices B,
                  Matrices C, int count);

// Computes C[m, n] = op(A)[m, k] · op(B)[k, n] + beta·C in the same way, where C is float32 in either precision: a sum
// of several products, which should not be rounded after each of them. beta is 0 or 1.
void add_batched_gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, Matrices A, Matrices B, float beta,
                      MatricesOf<float> C, int count);

// cuBLAS on one stream. All objects for the same stream share a handle: each handle has its own workspace of many
// megabytes on the device, and calls on one stream run one after the other anyway.
class Blas {
 public:
  explicit Blas(cudaStream_t stream);
  operator cublasHandle_t() const { return handle_.get(); }
  cudaStream_t stream() const { return stream_; }

 private:
  std::shared_ptr<std::remove_pointer_t<cublasHandle_t>> handle_;
  cudaStream_t stream_;
};

}  // namespace workshop
