// SPDX-License-Identifier: Apache-2.0
// oneDNN, with which the cpu backend computes large products of matrices.
#pragma once

#include <cblas.h>

namespace workshop::cpu {

// The product for large matrices: oneDNN's, a tenth faster than OpenBLAS's where one of the matrices is narrow, as most
// are in a step of training. OpenBLAS's where the processor has no AVX2 or the library cannot be loaded. Takes what
// cblas_sgemm takes with matrices in column-major order, and computes on the calling thread alone. Loads the library at
// the first call, which takes some milliseconds that a program with small products does not need.
decltype(&cblas_sgemm) large_sgemm();

}  // namespace workshop::cpu
