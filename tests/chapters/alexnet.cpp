// SPDX-License-Identifier: Apache-2.0
// AlexNet, whose layers differ widely: PyTorch's numbers with every cut and schedule, the same training with every
// strategy, traffic and memory, and the time of a step on a simulated machine.
#include <algorithm>
#include <cmath>
#include <numeric>
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
  add("checkpoint_interval", 2, pipeline, "--partition uniform --checkpoint-interval 3");
  // golden.cpp tests ddp itself.
  const Golden two = golden("tests/golden/alexnet_ddp2.json");
  golden_test("golden.alexnet_ddp2.fsdp", two, on(2, solution("06_fsdp/fsdp"), two.options));
  for (int stage : {1, 2, 3}) {
    golden_test(text("golden.alexnet_ddp2.zero_", stage), two,
                on(2, solution("06_fsdp/zero"), two.options, "--stage", stage));
  }
}

// With dropout, short batches and gradient accumulation, every strategy trains what one process trains. 24 images with
// 1 to 49 windows are up to 1,176 rows. Summing their gradients in a different order costs some hundred roundings of
// 6e-8, relative to gradients below 1.
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
              {"one_process", "03_model_parallel/one_process", 1, 1, "--devices 3 --partition uniform"},
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
  // Recomputation uses the same dropout masks and gives the same bits.
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
    const Command all_kept = on(2, pipeline, options, 12, "--partition uniform --schedule", schedule);
    for (int interval : {1, 3}) {
      same_training(text("solution.alexnet.checkpoint_interval.", schedule, ".", interval), kSameBits, all_kept,
                    with(all_kept, "--checkpoint-interval", interval));
    }
  }
  // Resumes in the middle of an epoch, with dropout: the masks continue, too.
  test("solution.alexnet.resumed", {.ranks = 4}, [=] {
    const Command whole = on(1, mlp, options, 12, "--optimizer adamw --lr 0.001");
    const Run expected = record(with(whole, "--max-steps 8"));
    succeed(with(whole, "--max-steps 7 --checkpoints saved"));
    const Run resumed = record(
        on(4, pipeline, options, 12, "--optimizer adamw --lr 0.001 --max-steps 8 --resume saved"), "resumed.jsonl");
    expect_same_training(expected, resumed, kBound, /*resumed=*/true);
  });
  refused("solution.alexnet.bad.tensor_parallel", "^error: --model is 'alexnet'; expected mlp or gpt",
          on(2, solution("05_tensor_parallel/tensor_parallel"), options, 12));
  refusals("solution.alexnet.bad.", on(4, solution("07_3d/train_3d"), options, 12), R"(
    tp     | --tp 2 | --tp is '2'; expected 1 with --model alexnet
  )");
  refusals("solution.alexnet.bad.", on(4, pipeline, options, 12), R"(
    layers | --schedule interleaved --chunks 4 --micro-batches 4 | --model is 'alexnet', 8 layers for 4 stages of 4; expected at least 16 layers
    interval  | --checkpoint-interval 2 --recompute stages | --checkpoint-interval is '2'; expected 0 with --recompute stages, which is another way
    intervals | --checkpoint-interval -1 | --checkpoint-interval is '-1'; expected
    shrink | --shrink 3 | --shrink is '3'; expected 1, 2, 4, 8, 16, 32 or 64
  )");
}

// ---- what is held and sent: the README's formulas ------------------------------------------------------------------

// Floats per sample for each layer, for images of 64 pixels with all widths divided by 32: parameters, what the forward
// pass keeps, the windows, and the largest gradient.
struct Floats {
  int parameters, saved, windows, widest;
};
// The buffers that each of these layers keeps, and the size of its output.
struct Kept {
  std::vector<int> buffers;
  int output;
};
constexpr int C1 = 2, C2 = 6, C3 = 12, C4 = 8, C5 = 8, H = 128;
const Floats layers[] = {{C1 * (363 + 1), 225 * C1 + 2 * 49 * C1, 225 * 363, 225 * C1},
                         {C2 * (25 * C1 + 1), 49 * C2 + 2 * 9 * C2, 49 * 25 * C1, 49 * C2},
                         {C3 * (9 * C2 + 1), 9 * C3, 9 * 9 * C2, 9 * C3},
                         {C4 * (9 * C3 + 1), 9 * C4, 9 * 9 * C3, 9 * C4},
                         {C5 * (9 * C4 + 1), 9 * C5 + 2 * C5 + 36 * C5, 9 * 9 * C4, 36 * C5},
                         {H * (36 * C5 + 1), H + 36 * C5, 0, H},
                         {H * (H + 1), H + H, 0, H},
                         {10 * (H + 1), 10, 0, 10}};

const Kept kept[] = {{{225 * C1, 49 * C1, 49 * C1}, 49 * C1},
                     {{49 * C2, 9 * C2, 9 * C2}, 9 * C2},
                     {{9 * C3}, 9 * C3},
                     {{9 * C4}, 9 * C4},
                     {{9 * C5, C5, C5, 36 * C5}, 36 * C5},
                     {{H, 36 * C5}, H},
                     {{H, H}, H},
                     {{10}, 10}};

Floats total(int first, int last) {
  Floats all{0, 0, 0, 0};
  for (int i = first; i < last; ++i) {
    all.parameters += layers[i].parameters;
    all.saved += layers[i].saved;
    all.windows = std::max(all.windows, layers[i].windows);
    all.widest = std::max(all.widest, layers[i].widest);
  }
  return all;
}

const std::string small = "--model alexnet --images " + source("tests/golden/images").path +
                          " --image-size 64 --shrink 32 --batch-size 8 --epochs 1 --log-every 0";

TESTS(alexnet_memory) {
  const Floats all = total(0, 8);
  step("solution.alexnet.memory", on(1, mlp, small),
       {{"parameters", 4 * all.parameters},
        {"gradients", 4 * all.parameters},
        {"optimizer", 8 * all.parameters},
        {"activations", 4 * 8 * (all.saved + all.windows + 2 * all.widest)}});
  // Four micro-batches of 2 images. The first stage has two in flight, the second one, with room for two inputs. The
  // boundary is the input of convolution 4.
  for (const bool recompute : {false, true}) {
    test(text("solution.alexnet.memory.pipeline", recompute ? ".recompute" : ""),
         on(2, pipeline, small, "--partition uniform", recompute ? "--recompute stages" : ""), [=](const Run& run) {
           expect_clean_steps(run);
           for (int rank : {0, 1}) {
             const Floats held = total(4 * rank, 4 * rank + 4);
             const int in_flight = recompute || rank == 1 ? 1 : 2, inputs = rank == 1 ? 2 : 0;
             expect_memory(run, rank,
                           {{"parameters", 4 * held.parameters},
                            {"activations",
                             4 * 2 * (in_flight * held.saved + held.windows + 2 * held.widest + inputs * 9 * C4)}});
           }
         });
  }
}

// For each micro-batch in flight, keeps the output of the last of every `interval` layers. One such group has buffers;
// the j-th buffer is as large as the j-th largest of any group.
TESTS(alexnet_checkpoint_interval) {
  const auto held = [](int first, int last, int interval, int in_flight) {
    int outputs = 0;
    std::vector<int> room;
    for (int begin = first; begin < last; begin += interval) {
      std::vector<int> group;
      const int end = std::min(begin + interval, last);
      for (int i = begin; i < end; ++i) group.insert(group.end(), kept[i].buffers.begin(), kept[i].buffers.end());
      std::sort(group.rbegin(), group.rend());
      room.resize(std::max(room.size(), group.size()));
      for (std::size_t j = 0; j < group.size(); ++j) room[j] = std::max(room[j], group[j]);
      outputs += kept[end - 1].output;
    }
    return in_flight * outputs + std::accumulate(room.begin(), room.end(), 0);
  };
  const auto add = [&](const std::string& name, int interval, const std::string& options, int first_in_flight,
                       int second_in_flight, int inputs) {
    test(text("solution.alexnet.memory.checkpoint_interval.", name, interval),
         on(2, pipeline, small, "--partition uniform --checkpoint-interval", interval, options), [=](const Run& run) {
           expect_clean_steps(run);
           for (int rank : {0, 1}) {
             const Floats all = total(4 * rank, 4 * rank + 4);
             const int activations =
                 held(4 * rank, 4 * rank + 4, interval, rank == 0 ? first_in_flight : second_in_flight);
             expect_memory(run, rank,
                           {{"parameters", 4 * all.parameters},
                            {"activations",
                             4 * 2 * (activations + all.windows + 2 * all.widest + (rank == 1 ? inputs : 0) * 9 * C4)},
                            // The second stage does not prepare images, because it does not read them.
                            {"host", 3 * 8 * 4 * ((rank == 0 ? 3 * 64 * 64 : 0) + 1)}});
           }
         });
  };
  for (int interval : {1, 2, 3, 4, 9}) add("1f1b.", interval, "", 2, 1, 2);
  add("gpipe.", 2, "--schedule gpipe", 4, 4, 4);
}

TESTS(alexnet_ledger) {
  // 15 images in two steps of four micro-batches. The 3 test images are split into four micro-batches; one is
  // empty. Activations and gradients cross one boundary. It is as wide as the feature map below it or, with equal
  // shares of the parameters, as a linear layer, because the first stage then has all layers up to the largest one. The
  // ranks sum up both loss and accuracy of the test.
  const auto add = [](const std::string& partition, int width) {
    ledger("solution.alexnet.ledger." + partition, on(2, pipeline, small, "--partition", partition),
           {{0, "ncclSend", 8 + 4, 4 * (15 + 3) * width},
            {1, "ncclRecv", 8 + 4, 4 * (15 + 3) * width},
            {1, "ncclSend", 8 + 1, 4 * 15 * width + 4 * 2},
            {0, "ncclRecv", 8 + 1, 4 * 15 * width + 4 * 2},
            {kAll, "ncclAllReduce", 2, 8}});
  };
  add("uniform", 9 * C4);
  add("parameters", H);
}

// ---- the time of a step --------------------------------------------------------------------------------------------

// On a machine where every operation takes the same time, a step takes as long as the README predicts from the times of
// the layers, to 5 %. The rest is messages and the update of the stage of the last micro-batch.
TESTS(alexnet_partitions) {
  const auto add = [](const std::string& name, int ranks, const std::string& options) {
    test("solution.alexnet.step_time." + name, {.ranks = ranks, .cpu_only = "only the cpu backend simulates"}, [=] {
      const auto measured = [&](const std::string& partition) {
        return record(
            on(ranks, pipeline, options, "--partition", partition).in("WORKSHOP_SIMULATE=compute=100G,link=5us+10G/s"));
      };
      const Run timed = measured("time");
      double best = 0;
      for (const std::string partition : {"time", "parameters", "uniform"}) {
        const double expected = timed.record.values.at({0, "expected step, " + partition});
        const double found = 1e3 * (partition == "time" ? timed : measured(partition)).record.seconds_per_step;
        if (partition == "time") best = found;
        EXPECT_TRUE(std::fabs(found - expected) <= 0.05 * expected)
            << text(partition, ": a step of ", found, " ms, expected ", expected);
        EXPECT_TRUE(found >= 0.99 * best) << text(partition, " is faster than time: ", found, " and ", best, " ms");
      }
    });
  };
  const std::string steps =
      "--model alexnet --dropout 0 --optimizer sgd --samples 64 --max-steps 6 --log-every 0 --batch-size";
  add("2", 2, steps + " 16 --micro-batches 8 --image-size 224 --shrink 8");
  add("checkpoint_interval", 2, steps + " 16 --micro-batches 8 --image-size 100 --shrink 8 --checkpoint-interval 2");
  add("4", 4, steps + " 16 --micro-batches 16 --image-size 100 --shrink 4");
}

}  // namespace
}  // namespace workshop::tests
