// SPDX-License-Identifier: Apache-2.0
// OpenBLAS, as the cpu backend uses it.
#pragma once

#include <cblas.h>

namespace workshop::cpu {

// The functions that cuBLAS needs. Has OpenBLAS use one thread, as products are divided among the rank's cores
// there.
struct OpenBlas {
  decltype(&cblas_sgemm) sgemm;
  decltype(&cblas_sgemv) sgemv;
  decltype(&cblas_sdot) sdot;
  decltype(&cblas_snrm2) snrm2;
  decltype(&cblas_saxpy) saxpy;
  decltype(&cblas_scopy) scopy;
};

// Loads OpenBLAS at the first call, and replaces the kernels that it chose if they are for a lesser processor. OpenBLAS
// goes by the processor's model number and falls back to kernels of 2004 for one that it does not know yet
// (OpenMathLib/OpenBLAS#4267), a fifth as fast. What the user asks for with OPENBLAS_CORETYPE stays.
const OpenBlas& openblas();

// y = alpha op(A) x + beta y in column-major order, where OpenBLAS by itself would keep a NaN of y although beta is 0.
void gemv(CBLAS_TRANSPOSE trans, int m, int n, float alpha, const float* a, int lda, const float* x, int incx,
          float beta, float* y, int incy);

}  // namespace workshop::cpu
