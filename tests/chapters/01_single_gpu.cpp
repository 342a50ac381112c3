// SPDX-License-Identifier: Apache-2.0
// Chapter 01. Its numbers are compared with PyTorch's by the golden tests; here is what those cannot see.
#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");

// Central differences of the loss, through every activation and at several depths.
TESTS(gradients) {
  const auto add = [](const std::string& name, const Command& command) {
    test("solution.01.gradients." + name, {}, [=] { succeed(command); });
  };
  for (const std::string activation : {"none", "relu", "gelu"}) {
    add(activation, on(1, mlp, "--gradient-check --layers 7,9,8,5 --max-steps 1 --activation", activation));
  }
  // A value that is shifted in a copy which the stream does not wait for has not arrived when the loss is computed.
  add("slow", on(1, mlp, "--gradient-check --layers 3,2,2 --max-steps 1").in("WORKSHOP_SLOW=kernels"));
  // One cuBLAS handle, and so one workspace, for each stream.
  test("solution.01.shared_handles", {}, [] { succeed(on(1, {WORKSHOP_BUILD "/tests/chapters/shared_handles"})); });
}

// What a step must not do, and what the README says that a run sends and holds: 6,4,2 has 38 parameters; activations of
// 32 rows are the outputs, with GELU those of the first layer twice, and two gradients of the widest.
TESTS(steps) {
  const long parameters = 7 * 4 + 5 * 2;
  step("solution.01.step", on(1, mlp, "--epochs 2"),
       {{"parameters", 4 * parameters},
        {"gradients", 4 * parameters},
        {"optimizer", 0},
        {"activations", 4 * 32 * (4 + 2 + 2 * 4)},
        {"buckets", 0}});
  step("solution.01.step.adamw", on(1, mlp, "--optimizer adamw --activation gelu"),
       {{"parameters", 4 * parameters},
        {"gradients", 4 * parameters},
        {"optimizer", 8 * parameters},
        {"activations", 4 * 32 * (2 * 4 + 2 + 2 * 4)},
        {"buckets", 0}});
}

TESTS(bad) {
  // A device that is too small for the model: one line, status 1.
  test("solution.01.out_of_memory", {}, [] {
    expect_output(run(on(1, mlp, "--layers 1024,1024,1024").in("WORKSHOP_DEVICE_MEMORY=1M")), 1,
                  {"cudaMalloc.*cudaErrorMemoryAllocation"});
  });
  refusals("solution.01.bad.", on(2, mlp), "ranks | | mlp trains on one GPU; it was started on 2 ranks");
  refusals("solution.01.bad.", on(1, mlp), R"(
    layers | --layers 6                 | --layers is '6'; expected two or more
    record | --record /nowhere/run.jsonl | --record is '/nowhere/run.jsonl', which cannot be written
  )");
}

}  // namespace
}  // namespace workshop::tests
