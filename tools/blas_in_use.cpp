// SPDX-License-Identifier: Apache-2.0
// Prints the kernels that the cpu backend uses for matrix products, and the number of cores that a single rank uses.
#include <workshop_cpu.h>

#include <cstdio>

int main() {
  const int cores = workshop::cpu::cores_of_rank();
  std::printf("OpenBLAS with kernels for %s%s, on %d core%s\n", workshop::cpu::blas_kernels(),
              workshop::cpu::uses_onednn() ? ", oneDNN for large products" : "", cores, cores == 1 ? "" : "s");
}
