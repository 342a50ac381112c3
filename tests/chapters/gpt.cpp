// SPDX-License-Identifier: Apache-2.0
// The language model, trained with every strategy: each learns what one process learns, dropout, clipping and the
// schedule included, and finds the same losses of validation and test.
#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

// 12 samples of 16 words are 192 rows, and their gradients are added up in another order: some 100 roundings of 6e-8.
// SGD, because AdamW scales up what is rounding alone: the gradient of the keys' biases is zero.
constexpr double kBound = 2e-5;

const std::string text_option = "--text " + source("tests/golden/text").path;
const std::string options =
    "--no-shuffle --model-seed 3 --optimizer sgd --lr 0.2 --max-steps 10 --log-every 0 --dropout 0.2 --clip-norm 0.3 "
    "--warmup-steps 3 --lr-schedule cosine --batch-size";

TESTS(gpt_everywhere) {
  const struct {
    std::string name, program;
    int ranks, replicas;
    std::string options;
  } runs[] = {{"ddp", "02_ddp/ddp", 1, 1, ""},
              {"ddp", "02_ddp/ddp", 3, 3, ""},
              {"ddp.accumulation", "02_ddp/ddp", 2, 4, "--accumulation-steps 2"},
              {"ddp.recompute", "02_ddp/ddp", 4, 4, "--recompute blocks"},
              {"ddp_overlap", "02_ddp/ddp_overlap", 2, 2, "--bucket-mb 0.01"},
              {"ddp_overlap", "02_ddp/ddp_overlap", 3, 3, ""},
              {"model_parallel", "03_model_parallel/model_parallel", 1, 1, ""},
              {"model_parallel", "03_model_parallel/model_parallel", 2, 1, ""},
              {"model_parallel", "03_model_parallel/model_parallel", 3, 1, "--recompute blocks"},
              {"model_parallel", "03_model_parallel/model_parallel", 4, 1, "--partition uniform"},
              {"gpipe", "04_pipeline/pipeline", 2, 1, "--schedule gpipe"},
              {"gpipe.blocks", "04_pipeline/pipeline", 3, 1, "--schedule gpipe --recompute blocks"},
              {"1f1b", "04_pipeline/pipeline", 4, 1, "--micro-batches 6"},
              {"1f1b.stages", "04_pipeline/pipeline", 2, 1, "--recompute stages"},
              {"interleaved", "04_pipeline/pipeline", 2, 1, "--schedule interleaved"},
              {"interleaved.stages", "04_pipeline/pipeline", 1, 1, "--schedule interleaved --recompute stages"},
              {"zero_0", "06_fsdp/zero", 2, 2, "--stage 0"},
              {"zero_1", "06_fsdp/zero", 2, 2, "--stage 1"},
              {"zero_2", "06_fsdp/zero", 3, 3, "--stage 2"},
              {"zero_2.accumulation", "06_fsdp/zero", 2, 4, "--stage 2 --accumulation-steps 2"},
              {"zero_3", "06_fsdp/zero", 4, 4, "--stage 3 --recompute blocks"},
              {"fsdp", "06_fsdp/fsdp", 2, 2, ""},
              {"fsdp.units", "06_fsdp/fsdp", 3, 3, "--unit-layers 2 --cpu-offload"},
              {"fsdp.hybrid", "06_fsdp/fsdp", 4, 4, "--hybrid 2 --no-reshard-after-forward"}};
  for (const auto& run : runs) {
    same_training(text("solution.gpt.", run.name, ".", run.ranks, "ranks"), kBound,
                  on(1, solution("01_single_gpu/gpt"), text_option, options, 12),
                  on(run.ranks, solution(run.program), "--model gpt", text_option, options, 12 / run.replicas, run.options));
  }
}

}  // namespace
}  // namespace workshop::tests
