// SPDX-License-Identifier: Apache-2.0
// AlexNet, whose layers are unlike: PyTorch's numbers with every cut and schedule, what one process learns with every
// strategy, what is sent and held, and what a step takes on a simulated machine.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp"), pipeline = solution("04_pipeline/pipeline"),
           model_parallel = solution("03_model_parallel/model_parallel");

TESTS(alexnet_golden) {
  const auto add = [](const std::string& name, int ranks, const Path& program, const std::string& options) {
    const Golden run = golden("tests/golden/alexnet_64.json");
    golden_test("golden.alexnet_64." + name, run, on(ranks, program, run.options, options));
  };
  for (int ranks : {2, 4}) {
    add(text("model_parallel.", ranks), ranks, model_parallel, "");
    for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
      add(text(schedule, ".", ranks), ranks, pipeline, "--schedule " + schedule);
    }
  }
  add("uniform", 4, pipeline, "--partition uniform");
  add("time", 2, pipeline, "--partition time");
  add("recompute", 4, pipeline, "--recompute stages");
  // golden.cpp has ddp itself.
  const Golden two = golden("tests/golden/alexnet_ddp2.json");
  golden_test("golden.alexnet_ddp2.fsdp", two, on(2, solution("06_fsdp/fsdp"), two.options));
  for (int stage : {1, 2, 3}) {
    golden_test(text("golden.alexnet_ddp2.zero_", stage), two,
                on(2, solution("06_fsdp/zero"), two.options, "--stage", stage));
  }
}

// Dropout, short batches and the mean over several: all learn what one process learns. 24 images of 1 to 49 windows are
// up to 1,176 rows, and the sums of their gradients have another order: some hundred roundings of 6e-8, relative to
// gradients below 1.
TESTS(alexnet_everywhere) {
  constexpr double kBound = 2e-5;
  const std::string options =
      "--model alexnet --image-size 64 --shrink 32 --no-shuffle --optimizer sgd --lr 0.2 --samples 66 --epochs 2 "
      "--validation-samples 12 --log-every 0 --batch-size";
  const struct {
    std::string name, program;
    int ranks, replicas;
    std::string options;
  } runs[] = {{"ddp", "02_ddp/ddp", 3, 3, ""},
              {"ddp.accumulation", "02_ddp/ddp", 2, 4, "--accumulation-steps 2"},
              {"ddp_overlap", "02_ddp/ddp_overlap", 2, 2, "--bucket-mb 0.01"},
              {"model_parallel", "03_model_parallel/model_parallel", 3, 1, ""},
              {"gpipe", "04_pipeline/pipeline", 3, 1, "--schedule gpipe --partition uniform"},
              {"1f1b", "04_pipeline/pipeline", 2, 1, "--micro-batches 6"},
              {"interleaved", "04_pipeline/pipeline", 2, 1, "--schedule interleaved --recompute stages"},
              {"zero_1", "06_fsdp/zero", 2, 2, "--stage 1"},
              {"zero_2", "06_fsdp/zero", 2, 2, "--stage 2"},
              {"zero_3", "06_fsdp/zero", 3, 3, "--stage 3"},
              {"fsdp", "06_fsdp/fsdp", 2, 2, "--unit-layers 3"},
              {"train_3d", "07_3d/train_3d", 4, 2, "--pp 2 --dp 2 --zero 1 --micro-batches 3"}};
  for (const auto& run : runs) {
    same_training("solution.alexnet." + run.name, kBound, on(1, mlp, options, 12),
                  on(run.ranks, solution(run.program), options, 12 / run.replicas, run.options));
  }
  same_training("solution.alexnet.accumulation", kBound, on(1, mlp, options, 12),
                on(1, mlp, options, 4, "--accumulation-steps 3"));
  refused("solution.alexnet.bad.tensor_parallel", "^error: --model is 'alexnet'; expected mlp or gpt",
          on(2, solution("05_tensor_parallel/tensor_parallel"), options, 12));
  refusals("solution.alexnet.bad.", on(4, solution("07_3d/train_3d"), options, 12), R"(
    tp     | --tp 2 | --tp is '2'; expected 1 with --model alexnet
  )");
  refusals("solution.alexnet.bad.", on(4, pipeline, options, 12), R"(
    layers | --schedule interleaved --chunks 4 --micro-batches 4 | --model is 'alexnet', 8 layers for 4 stages of 4; expected at least 16 layers
    shrink | --shrink 3 | --shrink is '3'; expected 1, 2, 4, 8, 16, 32 or 64
  )");
}

}  // namespace
}  // namespace workshop::tests
