// SPDX-License-Identifier: Apache-2.0
// Chapter 04: a pipeline trains what one rank trains, holds what the README says, and idles as long as its schedule
// predicts.
#include <algorithm>
#include <cmath>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path pipeline = solution("04_pipeline/pipeline");
const std::string schedules[] = {"gpipe", "1f1b", "interleaved"};

// With one micro-batch every sum is formed as on one rank, so results are bitwise equal. M micro-batches add up the
// same k = 96·3 products in a different order, as M sums of k/M each. As in chapter 02, after J steps two runs differ
// by at most J·η·2·k·u·G in a parameter, where u = 2⁻²⁴ and G is the largest product, and by 2·k·u·G in a loss. Here J
// = 20, η = 0.01 and G < 10: 7·10⁻⁵ and 3·10⁻⁴ in the worst case. Rounding errors have either sign, so they grow with
// √k; the tests require 2·10⁻⁵ of both. Measured: 2·10⁻⁷.
constexpr double kBound = 2e-5;
const std::string network =
    "--layers 6,9,8,7,5,4,6,5,3 --activation gelu --samples 960 --epochs 2 --log-every 0 --batch-size 96";

TESTS(equal) {
  const Command serial = on(1, mlp, network);
  for (int ranks : {1, 2, 3, 4, 8}) {
    same_training(text("solution.04.one_micro_batch.", ranks), kSameBits, serial,
                  on(ranks, pipeline, network, "--micro-batches 1"));
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
      same_training(text("solution.04.", schedule, ".", ranks), kBound, serial,
                    on(ranks, pipeline, network, "--micro-batches 6 --schedule", schedule));
    }
  }
  for (int ranks : {1, 2, 4}) {
    same_training(text("solution.04.interleaved.", ranks), kBound, serial,
                  on(ranks, pipeline, network, "--micro-batches 8 --schedule interleaved --partition parameters"));
  }
  same_training("solution.04.interleaved_four_chunks", kBound, serial,
                on(2, pipeline, network, "--micro-batches 6 --schedule interleaved --chunks 4"));
  for (const std::string& schedule : schedules) {
    // The last batch of an epoch has 3 rows for 8 micro-batches, so five of them are empty.
    const std::string rest = "--layers 6,5,4,2 --samples 99 --epochs 3 --batch-size 32";
    same_training("solution.04.empty_micro_batches." + schedule, kBound, on(1, mlp, rest),
                  on(schedule == "interleaved" ? 1 : 3, pipeline, rest, "--micro-batches 8 --schedule", schedule));
    // A schedule changes only the order of sums. Recomputation does not even change that.
    const Command piped = on(2, pipeline, network, "--schedule", schedule);
    same_training("solution.04.recompute." + schedule, kSameBits, piped, with(piped, "--recompute stages"));
    same_training("solution.04.checkpoint_interval." + schedule, kSameBits, piped,
                  with(piped, "--checkpoint-interval 2"));
  }
  // PyTorch's losses, on two ranks with four micro-batches.
  for (const char* name :
       {"single_default", "single_gelu", "single_adamw", "single_odd_widths", "single_short_batch"}) {
    const Golden run = golden(text("tests/golden/", name, ".json"));
    for (const char* schedule : {"gpipe", "1f1b"}) {
      golden_test(text("golden.04_pipeline.", name, ".", schedule), run,
                  on(2, pipeline, run.options, "--schedule", schedule));
    }
  }
}

// ZB-H1 and ZB-V compute the gradients of 1F1B's backwards in two parts, with the same sums in the same order.
TESTS(zero_bubble) {
  const auto like_1f1b = [](const std::string& name, int ranks, const std::string& options,
                            const std::string& schedule = "zb-h1") {
    same_training("solution.04." + schedule + "." + name, kSameBits, on(ranks, pipeline, options),
                  on(ranks, pipeline, options, "--schedule", schedule));
  };
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (int micro_batches : {1, 2, 4, 6, 12})
      like_1f1b(text("is_1f1b.", ranks, "x", micro_batches), ranks, text(network, " --micro-batches ", micro_batches));
  }
  // The last batch has 3 rows for 8 micro-batches, so five of them are empty; then 2 for 4.
  like_1f1b("empty_micro_batches", 3, "--layers 6,5,4,2 --samples 99 --epochs 3 --batch-size 32 --micro-batches 8");
  like_1f1b("last_batch_of_two", 2, "--layers 6,5,4,2 --samples 18 --epochs 3 --batch-size 16 --optimizer adamw");
  like_1f1b("bf16", 4, network + " --micro-batches 6 --precision bf16");
  const std::string gpt = "--model gpt --text " + source("tests/golden/text").path + " --max-steps 4 --blocks 7";
  for (int ranks : {2, 3, 4})
    like_1f1b(text("gpt.", ranks), ranks, gpt + " --micro-batches 4 --dropout 0.1 --clip-norm 0.5");
  like_1f1b("gpt.attention_in_blocks", 3, gpt + " --micro-batches 2 --attention-block 4");
  // Convolutions and experts leave nothing for later.
  like_1f1b("alexnet", 3, "--model alexnet --image-size 63 --shrink 8 --samples 32 --max-steps 3 --batch-size 8");
  like_1f1b("experts", 2, gpt + " --experts 4");

  for (const auto& [ranks, micro_batches] : {std::pair(1, 2), {1, 3}, {2, 4}, {2, 6}, {3, 6}, {3, 12}, {4, 8}, {4, 12}})
    like_1f1b(text("is_1f1b.", ranks, "x", micro_batches), ranks, text(network, " --micro-batches ", micro_batches),
              "zb-v");
  // The last batch has 3 rows for 8 micro-batches.
  like_1f1b("empty_micro_batches", 2, "--layers 6,5,4,4,2 --samples 99 --epochs 3 --batch-size 32 --micro-batches 8",
            "zb-v");
  like_1f1b("bf16", 4, network + " --micro-batches 8 --precision bf16 --validation-samples 100", "zb-v");
  for (int ranks : {2, 3, 4}) like_1f1b(text("gpt.", ranks), ranks, gpt + " --micro-batches 8 --dropout 0.1", "zb-v");
  // The norm sums the squares of all stages. In a V, the stages have other layers, which changes the order of the sum.
  const std::string clipped = gpt + " --micro-batches 8 --clip-norm 0.5";
  same_training("solution.04.zb-v.clipped", kBound, on(3, pipeline, clipped),
                on(3, pipeline, clipped, "--schedule zb-v"));
  like_1f1b("experts", 2, gpt + " --experts 4", "zb-v");
}

// The README's memory: 8 layers of width 8, 32 rows.
TESTS(memory) {
  const std::string layers = "--layers 8,8,8,8,8,8,8,8,8";
  // Four stages of two layers, 8 micro-batches of 4 rows; 128 bytes are one micro-batch of one layer's width. For each
  // stage: sets of activations, inputs, messages in flight, and sets of gradients kept for the weights.
  struct Held {
    std::string name, options;
    int activations[4], inputs[4], messages[4], kept[4];
  };
  const Held kinds[] = {{"gpipe", "--schedule gpipe", {8, 8, 8, 8}, {0, 8, 8, 8}, {2, 4, 4, 2}},
                        {"1f1b", "", {4, 3, 2, 1}, {0, 4, 3, 2}, {1, 3, 3, 2}},
                        {"recompute", "--recompute stages", {1, 1, 1, 1}, {0, 4, 3, 2}, {3, 5, 5, 2}},
                        {"zb-h1", "--schedule zb-h1", {4, 4, 4, 4}, {0, 5, 5, 5}, {1, 3, 3, 2}, {1, 2, 3, 4}}};
  for (const Held& held : kinds) {
    test("solution.04.memory." + held.name, on(4, pipeline, layers, "--micro-batches 8", held.options),
         [=](const Run& run) {
           expect_clean_steps(run);
           for (int stage = 0; stage < 4; ++stage) {
             expect_memory(
                 run, stage,
                 {{"activations", 128 * (2 * held.activations[stage] + 2 + held.inputs[stage] + 2 * held.kept[stage])},
                  {"buckets", 128 * held.messages[stage]},
                  {"parameters", 4 * 2 * 9 * 8}});
           }
         });
  }
  // A V of eight parts of one layer each. The first chunk of stage s holds 8 - s sets of activations, the second one
  // s + 1. Inputs are kept as long, and there is one more for the message on its way, but not from the own stage.
  test("solution.04.memory.zb-v", on(4, pipeline, layers, "--micro-batches 8 --schedule zb-v"), [](const Run& run) {
    expect_clean_steps(run);
    const int inputs[] = {0 + 2, 8 + 3, 7 + 4, 6 + 4}, kept[] = {1 + 1, 2 + 1, 2 + 2, 2 + 2};
    for (int stage = 0; stage < 4; ++stage) {
      expect_memory(run, stage,
                    {{"activations", 128 * (9 + 2 * 2 + inputs[stage] + kept[stage])},
                     {"buckets", 128 * (stage == 0 ? 1 + 2 : 2 + 4)},
                     {"parameters", 4 * 2 * 9 * 8}});
    }
  });
  // Probes must neither allocate nor wait: on a GPU either would make the host wait for its peers.
  test("solution.04.recorded_steps", on(2, pipeline, layers, "--max-steps 3").in("WORKSHOP_PROBES=1"),
       [](const Run& run) {
         EXPECT_FALSE(run.record.probes.empty());
         expect_clean_steps(run);
       });
  // Two stages of two chunks of two layers each; 4 micro-batches of 8 rows; 256 bytes per layer width. At most 4 and 2
  // micro-batches are in flight in the chunks of stage 0, and 3 and 1 in those of stage 1. Inputs: 0 and 2 on stage 0,
  // 4 and 2 on stage 1. Each stage has 2 gradients.
  test("solution.04.memory.interleaved", on(2, pipeline, layers, "--schedule interleaved"), [](const Run& run) {
    expect_clean_steps(run);
    expect_memory(run, 0, {{"activations", 256 * (2 * (4 + 2) + 0 + 2 + 2 * 2)}, {"buckets", 256 * 4}});
    expect_memory(run, 1, {{"activations", 256 * (2 * (3 + 1) + 4 + 2 + 2 * 2)}, {"buckets", 256 * 5}});
  });
}

// Traffic, as in the README: 32 steps of 32 rows; every micro-batch crosses every boundary, and its gradients cross
// back. The last rank sends the losses of the epoch to the first.
TESTS(ledger) {
  const auto add = [](const std::string& name, int ranks, int micro_batches, int boundaries,
                      const std::string& options) {
    const int messages = 32 * micro_batches * boundaries, bytes = 4 * 32 * 32 * 8 * boundaries, last = ranks - 1;
    std::vector<Traffic> expected;
    for (int rank = 0; rank <= last && last > 0; ++rank) {
      const int neighbors = (rank > 0) + (rank < last);
      const bool sends = rank == last, receives = rank == 0;  // the losses
      expected.push_back({rank, "ncclSend", neighbors * messages + sends, neighbors * bytes + 4 * 32 * sends});
      expected.push_back({rank, "ncclRecv", neighbors * messages + receives, neighbors * bytes + 4 * 32 * receives});
    }
    ledger("solution.04.ledger." + name,
           on(ranks, pipeline, "--layers 8,8,8,8,8 --micro-batches", micro_batches, options), expected);
  };
  add("gpipe", 4, 8, 1, "--schedule gpipe");
  add("1f1b", 4, 8, 1, "--schedule 1f1b");
  add("zb-h1", 4, 8, 1, "--schedule zb-h1");
  add("recompute", 2, 4, 1, "--recompute stages");
  add("checkpoint_interval", 2, 4, 1, "--checkpoint-interval 1");
  // All three boundaries between four parts lie between the two ranks.
  add("interleaved", 2, 4, 3, "--schedule interleaved");
  add("one_rank", 1, 4, 1, "");
  // A V of four parts on two stages. Stage 0 has the first and the last one, and stage 1 both of those between, with a
  // boundary at which it sends to itself. The losses are where they are printed.
  const std::int64_t messages = 32 * 4 * 2, bytes = 2 * 4 * 32 * 32 * 8;
  ledger("solution.04.ledger.zb-v", on(2, pipeline, "--layers 8,8,8,8,8 --micro-batches 4 --schedule zb-v"),
         {{0, "ncclSend", messages, bytes},
          {0, "ncclRecv", messages, bytes},
          {1, "ncclSend", 2 * messages, 2 * bytes},
          {1, "ncclRecv", 2 * messages, 2 * bytes}});
}

// Checks the mean bubble of a simulation, as a fraction of the time.
void expect_bubble(const Run& run, double expected, double tolerance) {
  double sum = 0;
  for (int rank = 0; rank < run.record.world; ++rank) sum += run.record.values.at({rank, "bubble"});
  const double mean = run.record.values.at({0, "mean bubble"});
  EXPECT_TRUE(std::fabs(mean - expected) <= tolerance)
      << report(run, text("a bubble of ", expected, " ± ", tolerance), text(mean));
  EXPECT_TRUE(std::fabs(mean - sum / run.record.world) <= 1e-6)
      << report(run, text("the mean of the ranks, ", sum / run.record.world), text(mean));
}

// Uses the real clock and hence also shows what the schedule costs on a GPU. The computation is simulated, because the
// stages of a real network do not take the same time, as the formula assumes: the first computes no input gradient, the
// last computes a loss.
TESTS(bubble) {
  // With slots of 15 ms, the bubble is (p - 1)/(v·M + p - 1) to within 3 percentage points; see the README. On a busy
  // machine slots begin some milliseconds late, which matters less for longer slots.
  const auto add = [](const std::string& schedule, int stages, int micro_batches, int chunks = 1,
                      const std::string& options = "") {
    test(text("solution.04.bubble.", schedule, ".", stages, "x", micro_batches), {.ranks = stages, .measures = true},
         [=] {
           const double idle = stages - 1.0, slot = 15 * std::pow(3, attempt() - 1);
           expect_bubble(record(on(stages, pipeline, "--simulate-compute", slot, "--max-steps 4 --micro-batches",
                                   micro_batches, "--schedule", schedule, options)),
                         idle / (chunks * micro_batches + idle), 0.03);
         });
  };
  add("1f1b", 2, 16);
  add("1f1b", 4, 8);
  add("1f1b", 8, 4);
  add("gpipe", 4, 8);
  add("interleaved", 4, 8, 2);
  add("interleaved", 2, 4, 3, "--chunks 3");
  add("1f1b", 2, 8, 1, "--precision bf16");

  // ZB-H1: with forwards, backwards and weights of one slot each, and with weights of half a slot.
  for (const double weights : {1.0, 0.5}) {
    test(text("solution.04.bubble.zb-h1.4x8.weights_", weights), {.ranks = 4, .measures = true}, [=] {
      const double slot = 15 * std::pow(3, attempt() - 1), idle = 3 * (2 - weights);
      expect_bubble(record(on(4, pipeline, "--simulate-compute", slot, "--simulate-weights", weights * slot,
                              "--max-steps 4 --micro-batches 8 --schedule zb-h1")),
                    idle / (8 * (2 + weights) + idle), 0.03);
    });
  }
  test("solution.04.bubble.zb-v.3x6", {.ranks = 3, .measures = true}, [=] {
    const double slot = 15 * std::pow(3, attempt() - 1), idle = 2 * (2 - 1);
    expect_bubble(record(on(3, pipeline, "--simulate-compute", slot, "--simulate-weights", slot,
                            "--max-steps 4 --batch-size 30 --micro-batches 6 --schedule zb-v")),
                  idle / (2 * 6 * 3 + idle), 0.03);
  });
  // On a simulated machine, where messages take no time, the bubble is that of the formula, to 2 % of it. All stages
  // have a layer of 512 × 512, so forward, backward and weights take equally long. The first layer has only one input,
  // and is there for the gradient that the first of the other layers would not compute without it. It takes 1/512 of
  // their time, and so does what is not a matrix product. The stage that has most of that is the one that idles least.
  // The bubble of ZB-V is so small that this matters, so its test takes the mean of all stages, and 3 %.
  for (const auto& [stages, micro_batches] : {std::pair(2, 8), std::pair(4, 8), std::pair(4, 16), std::pair(8, 8)}) {
    for (const std::string schedule : {"1f1b", "zb-h1", "zb-v"}) {
      if (schedule == "zb-v" && micro_batches < 2 * stages) continue;
      test(text("solution.04.simulated_bubble.", schedule, ".", stages, "x", micro_batches),
           {.ranks = stages, .cpu_only = "only the cpu backend simulates"}, [=, M = micro_batches, p = stages] {
             std::string layers = "--layers 1";
             const int chunks = schedule == "zb-v" ? 2 : 1;
             for (int layer = 0; layer <= chunks * p; ++layer) layers += ",512";
             const Run run = record(on(p, pipeline, layers, "--max-steps 6 --log-every 0 --samples", 64 * M,
                                       "--batch-size", 8 * M, "--micro-batches", M, "--schedule", schedule)
                                        .in("WORKSHOP_SIMULATE=compute=10G,link=0s+10T/s"));
             const double idle = (p - 1) * (schedule == "1f1b" ? 3.0 : 1.0), expected = idle / (3 * chunks * M + idle);
             double least = 1, sum = 0;
             for (int stage = 0; stage < p; ++stage) {
               const double share = run.record.values.at({stage, "idle share"});
               least = std::min(least, share);
               sum += share;
             }
             const double found = chunks == 2 ? sum / p : least, within = chunks == 2 ? 0.03 : 0.02;
             EXPECT_TRUE(std::fabs(found - expected) <= within * expected)
                 << report(run, text("stages that idle for ", expected, " of the time, to ", within), text(found));
           });
    }
  }

  // Messages travel during computation.
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    overlaps("solution.04.overlap_is_real." + schedule,
             on(2, pipeline, "--schedule", schedule, "--simulate-compute 5 --max-steps 2"), "ncclSend");
  }
  // Every group of messages takes 5 ms longer. GPipe hides all of them except the first message in each direction: 2 ·
  // 5 ms in 18 slots of 20 ms, for a bubble of 13.5 % instead of 11.1 %. If each slot had to wait, the bubble would be
  // 29 %.
  test("solution.04.gpipe_hides_messages", {.ranks = 2, .measures = true}, [] {
    expect_bubble(record(on(2, pipeline, "--schedule gpipe --simulate-compute 20 --micro-batches 8 --max-steps 3")
                             .in("WORKSHOP_SLOW=collectives")),
                  0.135, 0.06);
  });
}

// With CUDA_LAUNCH_BLOCKING the host waits for each call.
TESTS(launch_blocking) {
  const auto blocking = [](const std::string& options) {
    return on(4, pipeline, network, options).in("CUDA_LAUNCH_BLOCKING=1");
  };
  test("solution.04.launch_blocking.gpipe", {.ranks = 4}, [=] { succeed(blocking("--schedule gpipe --max-steps 4")); });
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "zb-v"}) {
    refused(text("solution.04.launch_blocking.", schedule),
            text("^error: CUDA_LAUNCH_BLOCKING is '1'; unset it or set it to 0, because --schedule ", schedule, " "),
            blocking(text("--micro-batches 8 --schedule ", schedule)));
  }
}

// Where CUDA and NCCL may block the host, WORKSHOP_BLOCKING blocks it. Nothing hangs, and the results are the same.
TESTS(blocking) {
  const std::string gpt = "--model gpt --blocks 7 --text " + source("tests/golden/text").path;
  for (const auto& [name, model] : {std::pair("mlp", network), std::pair("gpt", gpt)}) {
    for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
      for (int stages : {2, 4}) {
        const Command command = on(stages, pipeline, model, "--max-steps 3 --micro-batches",
                                   schedule == "zb-v" ? 2 * stages : 4, "--schedule", schedule);
        same_training(text("solution.04.blocking.", name, ".", schedule, ".", stages), 0, command,
                      command.in("WORKSHOP_BLOCKING=1"));
      }
    }
  }
}

TESTS(bad) {
  // --print needs no ranks.
  test("solution.04.print.zb-h1", {}, [] {
    expect_output(run(on(1, pipeline, "--print --stages 3 --schedule zb-h1")), 0,
                  {R"(stage 1 .  \. F0 F1  \. B0 F2 B1 W0 F3 B2 W1 B3 W2 W3)",
                   "14 slots; each stage computes in 12 .*a bubble of 14.3 % of the time", "stage 2 has at most 3 in"});
  });
  test("solution.04.print.zb-v", {}, [] {
    expect_output(
        run(on(1, pipeline, "--print --stages 2 --schedule zb-v")), 0,
        {R"(stage 0 . F0a F1a F2a F0b B0b W0b F1b B1b W1b F3a B0a W0a F2b B2b W2b B1a W1a F3b B3b W3b B2a W2a)",
         "25 slots; each stage computes in 24 .*a bubble of 4.0 % of the time", "stage 1 has at most 4 in"});
  });
  test("solution.04.print", {}, [] {
    expect_output(run(on(1, pipeline, "--print --stages 3")), 0,
                  {R"(stage 1 .  \. F0 F1  \. B0 F2 B1 F3 B2  \. B3  \.)",
                   "12 slots.*a bubble of 33.3 % of the time, 50.0 % of the ideal"});
  });
  refusals("solution.04.bad.", on(4, pipeline, "--layers 4,4,4,4,4"), R"(
    #.divisor       | --micro-batches 5       | --micro-batches is '5'; expected a divisor of --batch-size, 32
    #.micro_batches | --micro-batches 0       | --micro-batches is '0'; expected a whole number
    #.schedule      | --schedule zb           | --schedule is 'zb'; expected gpipe, 1f1b, interleaved, zb-h1, zb-v or a file: zb: cannot be read
    #.in_flight     | --in-flight 2           | --in-flight is '2'; expected a file as --schedule then
    #.ahead         | --ahead 2               | --ahead is '2'; expected a file as --schedule then
    #.slots         | --print --slots 1,0,1   | --slots is '1,0,1'; expected three whole numbers from 1 to 100
    #.chunks        | --chunks 2              | --chunks is '2'; expected 1 unless --schedule is interleaved or zb-v
    #.stages        | --stages 3              | --stages is '3'; expected the number of ranks, #
    #.simulate      | --simulate-compute=-1   | --simulate-compute is '-1'; expected a number greater than 0
    #.layers        | --schedule interleaved --chunks 8 | --layers is '4,4,4,4,4', 4 layers for # stages of 8; expected at least
    #.weights       | --simulate-weights 5    | --simulate-weights is '5'; expected 0 without --simulate-compute
    #.long_weights  | --schedule zb-h1 --simulate-compute 1 --simulate-weights 2 | '2'; expected at most 1, --simulate-compute
    #.recompute     | --schedule zb-h1 --recompute stages | --recompute is 'stages'; expected none with --schedule zb-h1
    #.interval      | --schedule zb-h1 --checkpoint-interval 2 | '2'; expected 0 with --schedule zb-h1
    #.v_chunks      | --schedule zb-v --chunks 3 | --chunks is '3'; expected 2 with --schedule zb-v
    #.v_weights     | --schedule zb-v --micro-batches 32 --simulate-compute 1 --simulate-weights 2 | '2'; expected at most 1, --simulate-compute
    v_micro_batches | --schedule zb-v --micro-batches 4 | --micro-batches is '4'; expected at least 8 with --schedule zb-v, twice the number of stages
    interleaved     | --layers 4,4,4,4,4,4,4,4,4 --schedule interleaved --micro-batches 2 | '2'; expected a multiple of the 4 stages
  )");
  refusals("solution.04.bad.", on(4, pipeline),
           "too_few_layers | | --layers is '6,4,2', 2 layers for 4 stages of 1; expected at least 4 layers");
  refusals("solution.04.bad.", on(1, pipeline),
           "print | --print --stages 4 --schedule interleaved --micro-batches 6 | --micro-batches is '6'; expected a "
           "multiple of the 4 stages");
}

}  // namespace
}  // namespace workshop::tests
