// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/onednn.h"

#include <dlfcn.h>
#include <workshop_cpu.h>

#include "backend_cpu/openblas.h"

#ifdef WORKSHOP_ONEDNN
#include <dnnl.h>
#endif

namespace workshop::cpu {
namespace {

#ifdef WORKSHOP_ONEDNN
struct OneDnn {
  decltype(&dnnl_sgemm) sgemm = nullptr;
  void (*set_threads)(int) = nullptr;  // OpenMP's, for products of the calling thread

  OneDnn() {
    if (!__builtin_cpu_supports("avx2")) return;
    void* library = dlopen(WORKSHOP_ONEDNN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_num_threads"));
    if (set_threads != nullptr) sgemm = reinterpret_cast<decltype(sgemm)>(dlsym(library, "dnnl_sgemm"));
  }
};

const OneDnn& onednn() {
  static const OneDnn library;
  return library;
}

// oneDNN's matrices are in row-major order, so a column-major product becomes op(B)ᵀ op(A)ᵀ.
void product(CBLAS_LAYOUT, CBLAS_TRANSPOSE transa, CBLAS_TRANSPOSE transb, blasint m, blasint n, blasint k, float alpha,
             const float* a, blasint lda, const float* b, blasint ldb, float beta, float* c, blasint ldc) {
  thread_local const bool alone = (onednn().set_threads(1), true);
  static_cast<void>(alone);
  const auto name = [](CBLAS_TRANSPOSE trans) { return trans == CblasNoTrans ? 'N' : 'T'; };
  onednn().sgemm(name(transb), name(transa), n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
}
#endif

}  // namespace

bool is_slow_stride([[maybe_unused]] int stride) {
#ifdef WORKSHOP_ONEDNN
  static const bool has_avx512 = __builtin_cpu_supports("avx512f");
  return !has_avx512 && stride % 512 == 0;
#else
  return false;
#endif
}

decltype(&cblas_sgemm) large_sgemm() {
#ifdef WORKSHOP_ONEDNN
  if (onednn().sgemm != nullptr) return product;
#endif
  return openblas().sgemm;
}

bool uses_onednn() { return large_sgemm() != openblas().sgemm; }

}  // namespace workshop::cpu
