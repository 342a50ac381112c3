// SPDX-License-Identifier: Apache-2.0
// oneDNN, which the cpu backend uses for large matrix products.
#pragma once

#include <cblas.h>

namespace workshop::cpu {

// Returns the product for large matrices: oneDNN's, a tenth faster than OpenBLAS's if one of the matrices is narrow, as
// most are in a training step. OpenBLAS's if the processor has no AVX2 or the library cannot be loaded. The function
// takes the arguments of cblas_sgemm, with matrices in column-major order, and computes only on the calling thread. The
// first call loads the library, which takes some milliseconds that a program with small products does not need.
decltype(&cblas_sgemm) large_sgemm();

// Returns whether large_sgemm() is slow with a matrix that it reads across the columns, if these are `stride` floats
// apart. The elements of a row are then a multiple of 2 KiB apart, so they all map to a few lines of the cache. Widths
// that are powers of two make such matrices. With its kernels for AVX2, oneDNN takes up to twice as long as OpenBLAS.
bool is_slow_stride(int stride);

}  // namespace workshop::cpu
