// SPDX-License-Identifier: Apache-2.0
// Runs the participant's merge_part() with emulated threads of a GPU. Here, `workshop` is defined as a different name
// (tools/cmake/Workshop.cmake), so that this and the plain function are in one program.
#include "checker/emulated_gpu/emulated_gpu.h"

#pragma GCC diagnostic ignored "-Wunused-function"  // only the kernel is called
#include "checker/self_tests/08_context_parallel/merge.h"

namespace {
bool reached_todo;
}

namespace workshop {

void todo_on_host(const char*, const char*, int) {
  reached_todo = true;
  emulated_gpu::stop("a TODO is not filled in");
}

}  // namespace workshop

merge::Outcome merge::on_threads(int blocks, const Arrays& a) {
  for (float* matrix : {a.context, a.values}) emulated_gpu::watch("a context", matrix, kRows * kWidth, sizeof(float));
  for (float* numbers : {a.log_sums, a.largest, a.sums}) {
    emulated_gpu::watch("numbers of the rows", numbers, kRows, sizeof(float));
  }
  Outcome outcome;
  reached_todo = false;
  try {
    const emulated_gpu::Grid grid{blocks, workshop::kThreadsPerBlock, emulated_gpu::Order::random, 1};
    workshop::call_merge(
        a, [grid](auto kernel, auto... arguments) { emulated_gpu::run("kernel", grid, kernel, arguments...); });
  } catch (const emulated_gpu::Fault& fault) {
    outcome = {reached_todo, fault.what()};
  }
  emulated_gpu::watch_nothing();
  return outcome;
}
