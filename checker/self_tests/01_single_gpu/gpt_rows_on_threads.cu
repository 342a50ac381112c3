// SPDX-License-Identifier: Apache-2.0
// Runs the participant's row kernels with emulated threads of a GPU. Here, `workshop` is defined as a different name
// (tools/cmake/Workshop.cmake), so that this and the plain functions are in one program.
#include "checker/emulated_gpu/emulated_gpu.h"

#pragma GCC diagnostic ignored "-Wunused-function"  // only the kernels are called
#include "checker/self_tests/01_single_gpu/row_kernels.h"

namespace {
bool reached_todo;
}

namespace workshop {

void todo_on_host(const char*, const char*, int) {
  reached_todo = true;
  emulated_gpu::stop("a TODO is not filled in");
}

}  // namespace workshop

row_kernels::Outcome row_kernels::on_threads(Kernel which, int blocks, const Arrays& a) {
  for (Real* matrix : a.matrices) emulated_gpu::watch("a matrix", matrix, kSize, sizeof(Real));
  for (Real* vector : a.vectors) emulated_gpu::watch("a vector", vector, kWidth, sizeof(Real));
  for (float* numbers : a.of_rows) emulated_gpu::watch("numbers of the rows", numbers, kPositions, sizeof(float));
  emulated_gpu::watch("sums of values", a.floats, kPositions * kWidth, sizeof(float));
  emulated_gpu::watch("targets", a.targets, kRows, sizeof(std::int32_t));
  Outcome outcome;
  reached_todo = false;
  try {
    const emulated_gpu::Grid grid{blocks, workshop::kThreadsPerBlock, emulated_gpu::Order::random, 1};
    workshop::call_row_kernel(
        which, a, [grid](auto kernel, auto... arguments) { emulated_gpu::run("kernel", grid, kernel, arguments...); });
  } catch (const emulated_gpu::Fault& fault) {
    outcome = {reached_todo, fault.what()};
  }
  emulated_gpu::watch_nothing();
  return outcome;
}
