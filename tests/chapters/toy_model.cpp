// SPDX-License-Identifier: Apache-2.0
// A model of the tests' own (toy_model/models.cu), trained with every strategy, which shows that no strategy depends on
// a particular model.
#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

Path toy(const std::string& program) { return {WORKSHOP_BUILD "/toy_model/" + program}; }

// All go through the samples in order and start from the same parameters, so each trains what one process trains, up to
// the order of sums; the bound is that of chapter 07.
constexpr double kBound = 1e-4;

TESTS(toy_model) {
  const std::string options =
      "--layers 7,7 --no-shuffle --model-seed 3 --samples 480 --epochs 2 --optimizer adamw --log-every 0 --batch-size";
  const struct {
    std::string name;
    int ranks, replicas;
    std::string program, options;
  } runs[] = {{"ddp", 3, 3, "ddp", ""},
              {"ddp_overlap", 2, 2, "ddp_overlap", "--bucket-mb 0.0001"},
              {"zero_1", 2, 2, "zero", "--stage 1"},
              {"zero_2", 2, 2, "zero", "--stage 2"},
              {"zero_3", 2, 2, "zero", "--stage 3"},
              {"fsdp", 2, 2, "fsdp", ""},
              {"fsdp_units", 3, 3, "fsdp", "--unit-layers 2 --cpu-offload"},
              {"model_parallel", 3, 1, "model_parallel", ""},
              {"gpipe", 2, 1, "pipeline", "--schedule gpipe"},
              {"1f1b", 4, 1, "pipeline", "--micro-batches 8"},
              {"interleaved", 2, 1, "pipeline", "--schedule interleaved --recompute stages"},
              {"train_3d", 4, 2, "train_3d", "--pp 2 --zero 1"}};
  for (const auto& run : runs) {
    same_training("solution.toy." + run.name, kBound, on(1, toy("ddp"), options, 96),
                  on(run.ranks, toy(run.program), options, 96 / run.replicas, run.options));
  }
  // The programs of chapter 10 that train something different are run in a mode in which they do not: compression keeps
  // everything, and averaging happens after every step. For decentralized see 10_less_communication.cpp.
  const std::string sgd =
      "--layers 7,7 --no-shuffle --model-seed 3 --samples 480 --epochs 2 --log-every 0 --batch-size";
  same_training("solution.toy.ddp_compressed", kBound, on(1, toy("ddp"), options, 96),
                on(3, toy("ddp_compressed"), options, 32, "--compress topk --ratio 1 --error-feedback"));
  same_training("solution.toy.local_sgd", kBound, on(1, toy("ddp"), sgd, 96),
                on(3, toy("local_sgd"), sgd, 32, "--sync-every 1"));
  same_training("solution.toy.parameter_server", kSameBits, on(1, toy("ddp"), options, 96),
                on(2, toy("parameter_server"), options, 96));
}

// Every program finds the validation loss of one process, although its ranks have unequal shares of the 97 samples and
// unequal numbers of batches.
TESTS(validation) {
  const std::string options =
      "--layers 8,8,4,8,6 --activation gelu --no-shuffle --model-seed 5 --samples 337 --validation-samples 97 "
      "--epochs 2 --log-every 0 --batch-size";
  const struct {
    std::string program;
    int ranks, replicas;
    std::string options;
  } runs[] = {{"02_ddp/ddp", 3, 3, ""},
              {"02_ddp/ddp_overlap", 2, 2, ""},
              {"03_model_parallel/model_parallel", 3, 1, ""},
              {"04_pipeline/pipeline", 2, 1, "--schedule gpipe"},
              {"04_pipeline/pipeline", 1, 1, "--schedule interleaved --chunks 4 --recompute stages"},
              {"05_tensor_parallel/tensor_parallel", 2, 1, "--overlap"},
              {"05_tensor_parallel/tensor_parallel_gather", 2, 1, ""},
              {"06_fsdp/zero", 3, 3, "--stage 3"},
              {"06_fsdp/fsdp", 3, 3, ""},
              {"07_3d/train_3d", 8, 2, "--dp 2 --pp 2 --tp 2 --micro-batches 3"}};
  for (const auto& run : runs) {
    const std::string program = run.program.substr(run.program.find('/') + 1);
    same_training(text("solution.validation.", program, ".", run.ranks), kBound,
                  on(1, solution("01_single_gpu/mlp"), options, 12),
                  on(run.ranks, solution(run.program), options, 12 / run.replicas, run.options));
  }
}

// The second stream does not change the order of any sum, so the results are bitwise equal.
TESTS(overlap) {
  const Command run = on(2, solution("05_tensor_parallel/tensor_parallel"), "--layers 6,8,4,8,3 --activation gelu");
  same_training("solution.05.overlap", kSameBits, run, with(run, "--overlap"));
}

}  // namespace
}  // namespace workshop::tests
