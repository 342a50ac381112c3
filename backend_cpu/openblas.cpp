// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/openblas.h"

#include <dlfcn.h>
#include <workshop_cpu.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace workshop::cpu {
namespace {

// OpenBLAS is loaded by dlopen() instead of linked, because it reads the environment when it is loaded. If that asks
// for several threads, OpenBLAS starts them, and choosing its kernels again while they run crashes (0.3.29).
class Library {
 public:
  Library() {
    const char* threads = std::getenv("OPENBLAS_NUM_THREADS");
    const std::string asked = threads != nullptr ? threads : "";
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    handle_ = dlopen(WORKSHOP_OPENBLAS, RTLD_LAZY | RTLD_LOCAL);
    if (handle_ == nullptr) {
      std::fprintf(stderr, "error: OpenBLAS cannot be loaded: %s\n", dlerror());
      std::exit(1);
    }
    choose_kernels();
    threads != nullptr ? setenv("OPENBLAS_NUM_THREADS", asked.c_str(), 1) : unsetenv("OPENBLAS_NUM_THREADS");
    blas = {find<decltype(blas.sgemm)>("cblas_sgemm"), find<decltype(blas.sgemv)>("cblas_sgemv"),
            find<decltype(blas.sdot)>("cblas_sdot"),   find<decltype(blas.snrm2)>("cblas_snrm2"),
            find<decltype(blas.saxpy)>("cblas_saxpy"), find<decltype(blas.scopy)>("cblas_scopy")};
  }

  const char* kernels() const { return find<char* (*)()>("openblas_get_corename")(); }

  OpenBlas blas{};

 private:
  template <typename Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(handle_, name));
  }

#ifdef __x86_64__
  // Kernels by the instructions that they use. The names are those of OPENBLAS_CORETYPE and openblas_get_corename().
  // Cooperlake's differ from SkylakeX's in bfloat16; their float32 products are 3 to 10 % slower (measured).
  static constexpr std::array<std::string_view, 2> kAvx512 = {"SkylakeX", "SapphireRapids"};
  static constexpr std::array<std::string_view, 2> kAvx2 = {"Haswell", "Zen"};

  bool chosen_from(const std::array<std::string_view, 2>& names) const {
    const std::string_view chosen = kernels();
    return chosen == names[0] || chosen == names[1];
  }

  // Loads the kernels of that name, if the library has them. The functions that OpenBLAS calls when it is loaded and
  // unloaded are not in its headers, and are missing if it was built for a single processor.
  void choose(std::string_view name) const {
    const auto init = find<void (*)()>("gotoblas_init"), quit = find<void (*)()>("gotoblas_quit");
    if (init == nullptr || quit == nullptr) return;
    quit();
    setenv("OPENBLAS_CORETYPE", name.data(), 1);
    init();
    unsetenv("OPENBLAS_CORETYPE");  // it is meant for this process, not for those that it starts
  }

  void choose_kernels() const {
    if (std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
    // These also ask the operating system whether it saves the registers.
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx512 && !chosen_from(kAvx512)) choose(kAvx512[0]);
    if (avx2 && !chosen_from(kAvx512) && !chosen_from(kAvx2)) choose(kAvx2[0]);
  }
#else
  void choose_kernels() const {}
#endif

  void* handle_ = nullptr;
};

const Library& library() {
  static const Library library;
  return library;
}

}  // namespace

const OpenBlas& openblas() { return library().blas; }

void gemv(CBLAS_TRANSPOSE trans, int m, int n, float alpha, const float* a, int lda, const float* x, int incx,
          float beta, float* y, int incy) {
  const int count = trans == CblasNoTrans ? m : n;
  if (beta == 0) {
    for (int i = 0; i < count; ++i) y[static_cast<std::ptrdiff_t>(i) * std::abs(incy)] = 0;
    beta = 1;
  }
  openblas().sgemv(CblasColMajor, trans, m, n, alpha, a, lda, x, incx, beta, y, incy);
}

const char* blas_kernels() { return library().kernels(); }

}  // namespace workshop::cpu
