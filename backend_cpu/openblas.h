// SPDX-License-Identifier: Apache-2.0
// OpenBLAS, as the cpu backend uses it.
#pragma once

#include <cblas.h>

namespace workshop::cpu {

// The functions that cuBLAS needs. OpenBLAS uses one thread here, because cuBLAS divides products among the rank's
// cores.
struct OpenBlas {
  decltype(&cblas_sgemm) sgemm;
  decltype(&cblas_sgemv) sgemv;
  decltype(&cblas_sdot) sdot;
  decltype(&cblas_snrm2) snrm2;
  decltype(&cblas_saxpy) saxpy;
  decltype(&cblas_scopy) scopy;
};

// Loads OpenBLAS at the first call, and replaces the kernels that it chose if they are for an older processor. OpenBLAS
// goes by the processor's model number. For a model that it does not know yet, it falls back to kernels of 2004
// (OpenMathLib/OpenBLAS#4267), a fifth as fast. A setting in OPENBLAS_CORETYPE is kept.
const OpenBlas& openblas();

// Computes y = alpha op(A) x + beta y in column-major order. OpenBLAS by itself would keep a NaN in y if beta is 0.
void gemv(CBLAS_TRANSPOSE trans, int m, int n, float alpha, const float* a, int lda, const float* x, int incx,
          float beta, float* y, int incy);

}  // namespace workshop::cpu
