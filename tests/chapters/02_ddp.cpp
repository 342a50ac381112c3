// SPDX-License-Identifier: Apache-2.0
// Chapter 02: data parallelism trains what one rank trains.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path ddp = solution("02_ddp/ddp");
const Path overlap = solution("02_ddp/ddp_overlap");
const Path long_run = solution("02_ddp/long_run");
const std::pair<std::string, Path> programs[] = {{"ddp", ddp}, {"overlap", overlap}};

// P ranks with B rows each see the same global batches as one rank with P·B rows, and add up the same products in a
// different order. A gradient is a mean of k = P·B products. In any order, its rounding error is at most k·u·G, where u
// = 2⁻²⁴ and G is the largest product. A step of SGD passes η times this error on to the parameters, so after J steps
// two runs differ by at most J·η·2·k·u·G. The effect of earlier differences on later gradients is smaller by a factor
// η. The same bound, without J and η, holds for the loss, a mean over k terms. Here k = 96, J = 20, η = 0.01 and, for
// standard normal data, G < 10: 2.3·10⁻⁵ for the parameters, 1.2·10⁻⁴ for the losses. Measured: 1.2·10⁻⁷.
constexpr double kBound = 1.2e-4;

// 100 samples are 50 per rank: 7 batches of 8, or 4 steps of two batches.
TESTS(verbose) {
  const Command command = on(2, ddp, "--verbose --samples 100 --batch-size 8 --accumulation-steps 2 --epochs 2");
  test("solution.02.verbose", {.ranks = 2}, [=] {
    expect_output(run(command), 0,
                  {"^rank 0: epoch   0  batch size 8  steps 4$", "^rank 1: epoch   1  batch size 8  steps 4$"});
  });
}

TESTS(equal) {
  const std::string training = "--samples 960 --epochs 2 --log-every 0 --batch-size";
  for (int ranks : {2, 3, 4, 8}) {
    const Command parallel = on(ranks, ddp, training, 96 / ranks);
    same_training(text("solution.02.ddp_equals_serial.", ranks), kBound, on(1, ddp, training, 96), parallel);
    // One bucket or several. On two ranks each sum has two terms, so the results are bitwise equal. On more ranks, the
    // order of the terms may depend on the size of the message.
    same_training(text("solution.02.overlap_equals_ddp.", ranks), ranks == 2 ? kSameBits : kBound, parallel,
                  on(ranks, overlap, training, 96 / ranks, "--bucket-mb 0.0001"));
  }
  // The validation loss does not depend on the number of ranks, although neither 3 nor 4 divides the 101 samples.
  const std::string split = "--samples 341 --epochs 2 --validation-samples 101 --log-every 0 --batch-size";
  for (int ranks : {3, 4}) {
    same_training(text("solution.02.validation.", ranks), kBound, on(1, ddp, split, 12),
                  on(ranks, ddp, split, 12 / ranks));
  }
  for (const auto& [name, program] : programs) {
    // On one rank there is nothing to average, and without shuffling all programs see the same batches.
    const std::string net = "--no-shuffle --layers 16,9,3 --activation gelu";
    same_training("solution.02." + name + "_on_one_rank", kSameBits, on(1, mlp, net), on(1, program, net));
    // Four batches of 8 rows per update equal one batch of 32 rows. With 100 samples per rank, the last step has 4
    // rows.
    const Command run = on(2, program, "--samples 200 --epochs 3");
    same_training("solution.02." + name + "_accumulation", kBound, with(run, "--batch-size 32"),
                  with(run, "--batch-size 8 --accumulation-steps 4"));
  }
}

// The floats of a checkpoint of long_run, rank by rank. Nothing else may be in its folder.
std::vector<float> saved_by(int ranks, const std::filesystem::path& folder) {
  std::vector<float> values;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(folder / text("rank-", rank, ".bin"), std::ios::binary);
    for (float value; file.read(reinterpret_cast<char*>(&value), sizeof value);) values.push_back(value);
  }
  const auto entries = std::distance(std::filesystem::directory_iterator(folder), {});
  if (entries != ranks) fail(text(folder.string(), " has ", entries, " entries, expected ", ranks));
  return values;
}

// The parameters at the end of a run, one after the other.
std::vector<float> parameters_of(const Run& run) {
  std::vector<float> values;
  for (const tools::Tensor& parameter : run.record.parameters)
    values.insert(values.end(), parameter.values.begin(), parameter.values.end());
  return values;
}

// A rank looks at the flags of two steps ago, so the ranks stop two steps after the first of them has got a signal.
TESTS(long_runs) {
  const std::string training = "--samples 960 --epochs 2 --log-every 0 --batch-size 8";
  for (const int ranks : {1, 2, 3}) {
    const std::string saving = "--checkpoints saved --save-every 7 --check-replicas 5";
    same_training(text("solution.02.long_run_is_ddp.", ranks), kSameBits, on(ranks, ddp, training),
                  on(ranks, long_run, training, saving));
    test(text("solution.02.long_run_stops.", ranks), {.ranks = ranks}, [=] {
      const Command command = on(ranks, long_run, training, "--checkpoints saved --save-every 4 --slow-disk 20");
      // record() would take status 75 for a failure.
      const Run stopped = run(with(command, "--warned-ranks 1 --warned-at 9 --record stopped.jsonl"));
      expect_output(stopped, 75, {"^Stopped after step 11 because of SIGTERM$"});
      const Run whole = record(on(ranks, ddp, training, "--max-steps 11"));
      EXPECT_EQ(saved_by(ranks, "saved/step-00000011"), parameters_of(whole)) << stopped.command;
      for (const int step : {4, 8}) {
        EXPECT_EQ(saved_by(ranks, text("saved/step-0000000", step)).size(), 38u) << stopped.command;
      }
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator("saved"), {}), 3) << stopped.command;
    });
  }
  test("solution.02.long_run_stops_without_saving", {.ranks = 2}, [=] {
    const Run stopped = run(on(2, long_run, training, "--warned-ranks 2"));
    expect_output(stopped, 0, {"^Stopped after step 2 because of SIGTERM$"});
  });
  // Whichever rank differs is named; if it is rank 0, the first that differs from it.
  for (const int rank : {0, 1, 2}) {
    test(text("solution.02.long_run_finds_parted_replica.", rank), {.ranks = 3}, [=] {
      const Run parted = run(on(3, long_run, training, "--check-replicas 4 --damaged-rank", rank));
      expect_one_line(parted, 1,
                      text("^error: after step 4, the parameters on rank ", std::max(rank, 1), " differ from those"));
    });
  }
}

// Traffic, as in the README: 38 parameters in 4 tensors, 16 steps per epoch on two ranks.
TESTS(ledger) {
  const int bytes = 4 * 38, steps = 16;
  // One broadcast per tensor; one all-reduce per tensor and step; one all-reduce per epoch for the losses of its steps.
  // Accumulating over 4 batches leaves 4 steps.
  struct {
    std::string name, options;
    int epochs, steps;
  } runs[] = {{"ddp", "", 1, steps},
              {"ddp_two_epochs", "--epochs 2", 2, steps},
              {"ddp_accumulation", "--accumulation-steps 4", 1, steps / 4}};
  for (const auto& run : runs) {
    ledger("solution.02.ledger." + run.name, on(2, ddp, run.options),
           {{kAll, "ncclBroadcast", 4, bytes},
            {kAll, "ncclAllReduce", run.epochs * (4 * run.steps + 1), run.epochs * run.steps * (bytes + 4)}});
  }
  // One bucket, or one per layer: the same bytes.
  for (int buckets : {1, 2}) {
    ledger(text("solution.02.ledger.overlap_", buckets == 1 ? "one_bucket" : "two_buckets"),
           on(2, overlap, buckets == 1 ? "" : "--bucket-mb 0.00003"),
           {{kAll, "ncclBroadcast", 1, bytes}, {kAll, "ncclAllReduce", buckets * steps + 1, steps * (bytes + 4)}});
  }
}

// A rank holds what one GPU holds in chapter 01.
TESTS(steps) {
  for (const auto& [name, program] : programs) {
    step("solution.02.step." + name, on(2, program),
         {{"parameters", 152}, {"gradients", 152}, {"optimizer", 0}, {"activations", 1792}, {"buckets", 0}});
  }
  // The all-reduce of the first bucket overlaps with the backward pass of the layers below.
  overlaps("solution.02.overlap_is_real",
           on(2, overlap, "--bucket-mb 0.00003 --max-steps 3").in("WORKSHOP_SIMULATE=compute=1M,link=10us+1G/s"));
}

// ---- what it costs -------------------------------------------------------------------------------------------------

// Bytes of weights and of biases of three 512 x 512 layers, per layer.
constexpr double kWeights = 4.0 * 512 * 512, kBiases = 4.0 * 512;
constexpr double kAlpha = 2e-6;

// Returns the time of an all-reduce on a simulated machine (backend_cpu/semantics.md): ring or tree, whichever is
// faster.
double all_reduce_seconds(int ranks, double bytes, double seconds_per_byte) {
  const double ring = 2.0 * (ranks - 1) * (kAlpha + bytes / ranks * seconds_per_byte);
  const double levels = std::ceil(std::log2(ranks));
  return std::min(ring, 2 * (levels * kAlpha + bytes * seconds_per_byte));
}

// The README's formulas for the time of a step, with the computation time measured on one rank.
TESTS(cost) {
  const std::string options = "--layers 512,512,512,512 --batch-size 64 --samples 2048 --max-steps 3";
  const auto add = [=](const std::string& name, const Path& program, const std::string& more, double bandwidth,
                       const std::function<double(int ranks, double alone)>& expected) {
    for (const int ranks : {2, 4, 8}) {
      test(text("solution.02.cost.", name, ".", ranks), {.ranks = ranks, .cpu_only = "only the cpu backend simulates"},
           [=] {
             const std::string machine = text("WORKSHOP_SIMULATE=compute=500G,link=2us+", bandwidth, "G/s");
             const auto seconds = [&](int n) {
               return record(on(n, program, options, more).in(machine)).record.seconds_per_step;
             };
             const double alone = seconds(1), found = seconds(ranks), formula = expected(ranks, alone);
             EXPECT_TRUE(std::abs(found - formula) <= 0.05 * formula)
                 << text(ranks, " ranks take ", found, " s a step, expected ", formula);
           });
    }
  };
  add("ddp", ddp, "", 5, [](int ranks, double alone) {
    return alone + 3 * (all_reduce_seconds(ranks, kWeights, 0.2e-9) + all_reduce_seconds(ranks, kBiases, 0.2e-9));
  });
  // Slow links: everything is hidden except the time until the first bucket is full.
  add("overlap_slow_links", overlap, "--bucket-mb 1", 0.5, [](int ranks, double alone) {
    const double until_first = alone * 5 / 8;  // 8 products of equal cost: 3 forward, then 2, 2 and 1 backward
    return until_first + 3 * all_reduce_seconds(ranks, kWeights + kBiases, 2e-9);
  });
  // Fast links: everything is hidden except the communication of the last bucket.
  add("overlap_fast_links", overlap, "--bucket-mb 1", 50,
      [](int ranks, double alone) { return alone + all_reduce_seconds(ranks, kWeights + kBiases, 0.02e-9); });
}

TESTS(bad) {
  for (const auto& [name, program] : programs) {
    refusals("solution.02.bad." + name + ".", on(4, program), R"(
      #.batch      | --batch-size 0      | --batch-size is '0'; expected a whole number of at least 1
      #.activation | --activation tanh   | --activation is 'tanh'; expected none, relu, gelu
      #.record     | --record /nowhere/r | --record is '/nowhere/r', which cannot be written: No such file
      #.unknown    | --bucket 3          | --bucket
    )");
  }
  refusals("solution.02.bad.", on(4, ddp), R"(
    accumulation.# | --accumulation-steps 0    | --accumulation-steps is '0'; expected
    validation.#   | --validation-samples 1024 | --validation-samples is '1024'; expected fewer than the 1024 of
  )");
  refusals("solution.02.bad.", on(4, long_run), R"(
    save_every.# | --save-every 5  | --save-every needs a folder to save to: --checkpoints
    slow_disk.#  | --slow-disk -1  | --slow-disk is '-1'; expected a whole number from 0 to 10000
    resume.#     | --resume saved  | --resume
  )");
  refusals("solution.02.bad.", on(4, overlap),
           "bucket.# | --bucket-mb 0 | --bucket-mb is '0'; expected a number greater than 0");
  const Path env{"env"};
  refused("solution.02.bad.world", "RANK and WORLD_SIZE say rank 0 of 2, but mpirun started",
          on(4, env, "RANK=0 WORLD_SIZE=2", ddp), {.cpu_only = "mpirun need not start the ranks"});
  refused("solution.02.bad.world_size", "WORLD_SIZE is 'two'; expected a whole number",
          on(1, env, "RANK=0 WORLD_SIZE=two", ddp));
  refused("solution.02.bad.rank", "RANK is 4, but WORLD_SIZE is 4: ranks are counted from 0",
          on(1, env, "RANK=4 WORLD_SIZE=4 LOCAL_RANK=0", ddp));
  refused("solution.02.bad.torchrun",
          "the cpu backend needs mpirun or srun --mpi=pmix to start several ranks; found only torchrun's variables",
          on(1, env, "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0", ddp), {.cpu_only = "GPUs need no MPI"});
}

}  // namespace
}  // namespace workshop::tests
