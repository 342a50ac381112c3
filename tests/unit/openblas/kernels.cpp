// SPDX-License-Identifier: Apache-2.0
// kernels replaced: if OpenBLAS has chosen kernels for a lesser processor (as it does for an unknown one), the cpu
// backend replaces them when a handle exists, and the new ones compute correctly. kernels kept: kernels that the user
// has asked for stay.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <workshop_cpu.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

// Returns a function of OpenBLAS, loaded as the cpu backend loads it, or null if it does not exist.
template <typename Function>
Function find(const char* name) {
  static void* library = [] {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    return dlopen(WORKSHOP_OPENBLAS, RTLD_NOW | RTLD_LOCAL);
  }();
  return reinterpret_cast<Function>(dlsym(library, name));
}

[[noreturn]] void end(int status, const std::string& message) {
  std::printf("%s\n", message.c_str());
  std::exit(status);
}

bool has_avx2() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

}  // namespace

int main(int, char** argv) {
  const bool keep = argv[1] == std::string("kept");
  const auto init = find<void (*)()>("gotoblas_init"), quit = find<void (*)()>("gotoblas_quit");
  if (init == nullptr || quit == nullptr) end(77, "this OpenBLAS has kernels for one processor only");
  if (!has_avx2()) end(77, "this processor has no better kernels than the oldest ones");
  quit();
  setenv("OPENBLAS_CORETYPE", "Prescott", 1);
  init();
  if (!keep) unsetenv("OPENBLAS_CORETYPE");
  const std::string before = find<char* (*)()>("openblas_get_corename")();
  if (before != "Prescott") end(77, "this OpenBLAS has no kernels for Prescott");

  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) end(1, "no handle");
  const std::string after = workshop::cpu::blas_kernels();
  if ((after == before) != keep) end(1, "kernels for " + before + ", then for " + after);
  if ((std::getenv("OPENBLAS_CORETYPE") != nullptr) != keep) end(1, "OPENBLAS_CORETYPE has changed");

  constexpr int n = 300;
  const std::vector<float> ones(n * n, 1.0f);
  std::vector<float> product(n * n);
  const float alpha = 1, beta = 0;
  if (cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &alpha, ones.data(), n, ones.data(), n, &beta,
                  product.data(), n) != CUBLAS_STATUS_SUCCESS ||
      cudaDeviceSynchronize() != cudaSuccess) {
    end(1, "no product");
  }
  if (product != std::vector<float>(n * n, n)) end(1, "a wrong product");
  end(0, "kernels for " + before + ", then for " + after);
}
