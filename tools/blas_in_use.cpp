// SPDX-License-Identifier: Apache-2.0
// Prints the kernels with which the cpu backend's matrix products run, and on how many cores of a rank that is alone.
#include <workshop_cpu.h>

#include <cstdio>

int main() {
  const int cores = workshop::cpu::cores_of_rank();
  std::printf("OpenBLAS with kernels for %s%s, on %d core%s\n", workshop::cpu::blas_kernels(),
              workshop::cpu::uses_onednn() ? ", oneDNN for large products" : "", cores, cores == 1 ? "" : "s");
}
