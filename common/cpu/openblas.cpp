#include "common/cpu/openblas.h"

#include <cblas.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "workshop_cpu.h"

// What OpenBLAS does when it is loaded and unloaded; not in its headers, and not there if it was built for one
// processor.
extern "C" {
[[gnu::weak]] void gotoblas_init();
[[gnu::weak]] void gotoblas_quit();
}

namespace workshop::cpu {
namespace {

#ifdef __x86_64__
// Kernels by the instructions they use, the names being those of OPENBLAS_CORETYPE and openblas_get_corename().
// Cooperlake's differ from SkylakeX's in bfloat16; their float32 products are no faster (measured: 3 to 10 % slower).
constexpr std::array<std::string_view, 2> kAvx512 = {"SkylakeX", "SapphireRapids"};
constexpr std::array<std::string_view, 2> kAvx2 = {"Haswell", "Zen"};

template <std::size_t n>
bool chosen_from(const std::array<std::string_view, n>& names) {
  const std::string_view chosen = openblas_get_corename();
  for (const std::string_view name : names) {
    if (chosen == name) return true;
  }
  return false;
}

// Loads the kernels of that name, if the library has them.
void choose(std::string_view name) {
  gotoblas_quit();
  setenv("OPENBLAS_CORETYPE", name.data(), 1);
  gotoblas_init();
  unsetenv("OPENBLAS_CORETYPE");  // it speaks for this process, not for those that it starts
}

void choose_kernels() {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || gotoblas_init == nullptr || gotoblas_quit == nullptr) return;
  // These ask the operating system too whether it keeps the registers.
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512 && !chosen_from(kAvx512)) choose(kAvx512[0]);
  if (avx2 && !chosen_from(kAvx512) && !chosen_from(kAvx2)) choose(kAvx2[0]);
}
#else
void choose_kernels() {}
#endif

}  // namespace

void prepare_openblas() {
  static std::once_flag once;
  std::call_once(once, [] {
    choose_kernels();
    openblas_set_num_threads(1);
  });
}

const char* blas_kernels() {
  prepare_openblas();
  return openblas_get_corename();
}

}  // namespace workshop::cpu
