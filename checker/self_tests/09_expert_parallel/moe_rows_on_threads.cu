// SPDX-License-Identifier: Apache-2.0
// Runs the participant's kernels with emulated threads of a GPU. Here, `workshop` is defined as a different name
// (tools/cmake/Workshop.cmake), so that this and the plain functions are in one program.
#include "checker/emulated_gpu/emulated_gpu.h"

#pragma GCC diagnostic ignored "-Wunused-function"  // only the kernels are called
#include "checker/self_tests/09_expert_parallel/expert_kernels.h"

namespace {
bool reached_todo;
}

namespace workshop {

void todo_on_host(const char*, const char*, int) {
  reached_todo = true;
  emulated_gpu::stop("a TODO is not filled in");
}

}  // namespace workshop

expert_kernels::Outcome expert_kernels::on_threads(Kernel which, int blocks, const Arrays& a) {
  const auto watch = [](const char* name, auto* values, int count) {
    emulated_gpu::watch(name, values, count, sizeof *values);
  };
  watch("scores", a.scores, kTokens * kExperts);
  for (float* numbers : {a.weights, a.dweights}) watch(kWeights, numbers, kChoices);
  for (int* numbers : {a.chosen, a.places, a.row_of}) watch("numbers of the choices", numbers, kChoices);
  watch("counts", a.counts, kSequences * kExperts);
  watch("first rows", a.starts, kNumbers);
  for (Real* matrix : {a.x, a.y}) watch("a matrix of the tokens", matrix, kTokens * kWidth);
  for (Real* matrix : {a.rows, a.others}) watch("rows", matrix, kChoices * kWidth);
  watch("gradients of the logits", a.dlogits, kTokens * kExperts);
  Outcome outcome;
  reached_todo = false;
  try {
    const emulated_gpu::Grid grid{blocks, workshop::kThreadsPerBlock, emulated_gpu::Order::random, 1};
    workshop::call_expert_kernel(
        which, a, [grid](auto kernel, auto... arguments) { emulated_gpu::run("kernel", grid, kernel, arguments...); });
  } catch (const emulated_gpu::Fault& fault) {
    outcome = {reached_todo, fault.what()};
  }
  emulated_gpu::watch_nothing();
  return outcome;
}
