// SPDX-License-Identifier: Apache-2.0
// Chapter 10: replicas that differ between steps, and compressed gradients.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path ddp = solution("02_ddp/ddp");
const Path decentralized = solution("10_less_communication/decentralized");
const Path local_sgd = solution("10_less_communication/local_sgd");
const Path compressed = solution("10_less_communication/ddp_compressed");
const Path in_turn{WORKSHOP_BUILD "/tests/chapters/replicas_in_turn"};

const std::string gpt = "--model gpt --optimizer sgd --lr 0.1 --max-steps 6 --dropout 0.2 --clip-norm 0.5 --text " +
                        source("tests/golden/text").path;

// ---- equal to a simulation in one process --------------------------------------------------------------------------

// Returns the losses of every replica and the parameters of the first one: "loss of replica 1 in step 3",
// "0.weight[5]".
std::map<std::string, double> learned_by_each(const Run& run) {
  std::map<std::string, double> all;
  for (const auto& loss : run.record.losses) {
    all[text("loss of replica ", loss.replica, " in step ", loss.step)] = loss.loss;
    all[text("mean loss of step ", loss.step)] = loss.global_loss;
  }
  for (const tools::Tensor& parameter : run.record.parameters) {
    for (std::size_t i = 0; i < parameter.values.size(); ++i) {
      all[text(parameter.name, "[", i, "]")] = parameter.values[i];
    }
  }
  for (const auto& [key, value] : run.record.values) {
    if (key.second.starts_with("distance")) all[key.second] = value;
  }
  return all;
}

// The simulation adds up in a different order, in double precision, and rounds each mean once, while a rank rounds
// every sum: some 2⁻²⁴ of a parameter per step, which a few steps amplify little. 10⁻⁶ is 16 such roundings.
constexpr double kBound = 1e-6;
// In mixed precision, the mixed weights are exact, but the weights that the models compute with may then be rounded to
// neighboring values: mixed_precision.cpp.
constexpr double kBoundOfNeighbors = 1.0 / 128;

// Registers a test: on `ranks` ranks, each replica must have the losses of the simulation, and the first replica its
// parameters.
void as_in_turn(const std::string& name, int ranks, const Path& program, const std::string& technique,
                const std::string& options, const Path& simulation = in_turn) {
  const double bound = options.find("--precision bf16") == std::string::npos ? kBound : kBoundOfNeighbors;
  test(name, {.ranks = ranks}, [=] {
    const Command simulated =
        on(1, simulation, "--technique", technique, "--replicas", ranks, "--log-every 0", options);
    const auto expected = learned_by_each(record(simulated, "expected.jsonl"));
    const Run run = record(on(ranks, program, "--log-every 0", options));
    const auto found = learned_by_each(run);
    EXPECT_TRUE(std::ranges::count_if(expected, [&](const auto& value) { return found.contains(value.first); }) ==
                    std::ssize(expected) &&
                found.size() == expected.size())
        << report(run, text(expected.size(), " values"), text(found.size(), " values, or others"));
    for (const auto& [what, value] : expected) {
      const double error = std::fabs(found.at(what) - value) / std::max(1.0, std::fabs(value));
      if (!(error <= bound)) fail(report(run, text(what, " ", value), text(found.at(what), ", off by ", error)));
    }
  });
}

TESTS(as_in_one_process) {
  const std::string network = "--layers 7,6,5,3 --activation gelu --samples 240 --batch-size 8 --epochs 2 --lr 0.1";
  for (int ranks : {2, 3, 4, 8}) {
    as_in_turn(text("solution.10.decentralized.mlp.", ranks), ranks, decentralized, "ring", network);
    as_in_turn(text("solution.10.decentralized.gpt.", ranks), ranks, decentralized, "ring", gpt);
  }
  as_in_turn("solution.10.decentralized.own_values", 5, decentralized, "ring",
             network + " --own-initial-values --accumulation-steps 2");
  as_in_turn("solution.10.decentralized.average", 5, decentralized, "ring", network + " --average-at-end");
  // The model of tests/chapters/toy_model.
  const Path toy{WORKSHOP_BUILD "/toy_model/decentralized"}, toy_in_turn{WORKSHOP_BUILD "/toy_model/replicas_in_turn"};
  as_in_turn("solution.toy.decentralized", 4, toy, "ring", "--layers 7,7 --samples 480 --epochs 2 --batch-size 24",
             toy_in_turn);
  // AdamW updates the mixed parameters by the rank's own moments, and weight decay applies to the mixed parameters.
  as_in_turn("solution.10.decentralized.adamw", 3, decentralized, "ring", network + " --optimizer adamw --lr 0.001");
  for (int ranks : {2, 4}) {
    const std::string bf16 = " --precision bf16";
    as_in_turn(text("solution.bf16.decentralized.mlp.", ranks), ranks, decentralized, "ring",
               network + bf16 + " --own-initial-values --average-at-end");
    as_in_turn(text("solution.bf16.decentralized.gpt.", ranks), ranks, decentralized, "ring", gpt + bf16);
    as_in_turn(text("solution.bf16.local_sgd.mlp.", ranks), ranks, local_sgd, "rounds",
               network + bf16 + " --sync-every 3 --outer-lr 0.7 --outer-momentum 0.9");
    as_in_turn(text("solution.bf16.local_sgd.gpt.", ranks), ranks, local_sgd, "rounds", gpt + bf16 + " --sync-every 4");
  }
}

// ---- decentralized -------------------------------------------------------------------------------------------------

// Returns √(1/P Σ_r ‖w_r − w̄‖²) after each step of one-step epochs.
std::vector<double> distances(const Run& run) {
  std::vector<double> all;
  for (int step = 1; run.record.values.contains({0, text("distance after step ", step)}); ++step) {
    all.push_back(run.record.values.at({0, text("distance after step ", step)}));
  }
  return all;
}

// Without gradients, the distance shrinks by the second eigenvalue of the mixing matrix per step. On two and three
// ranks it vanishes at once, up to rounding.
TESTS(consensus) {
  for (int ranks : {2, 3, 4, 5, 8}) {
    const int steps = 12;
    const Command run = on(ranks, decentralized, "--own-initial-values --lr 0 --layers 32,32,8 --batch-size 4",
                           "--samples", 4 * ranks, "--epochs", steps);
    test(text("solution.10.consensus.", ranks), run, [=](const Run& run) {
      const std::vector<double> found = distances(run);
      ASSERT_EQ(std::ssize(found), steps) << run.command;
      if (ranks <= 3) {
        // 1,320 parameters below 0.2; each sum of three is rounded by at most 3·2⁻²⁶.
        for (double distance : found) EXPECT_TRUE(distance <= 3 * 0x1p-26 * std::sqrt(1320)) << distance;
        return;
      }
      const double factor = (1 + 2 * std::cos(2 * std::numbers::pi / ranks)) / 3;
      // The other eigenvalues have decayed after a few steps; rounding errors become visible at 10⁻⁶.
      int compared = 0;
      for (int step = ranks == 8 ? 6 : 4; step < steps && found[step] > 1e-4; ++step, ++compared) {
        EXPECT_NEAR(found[step] / found[step - 1] / factor, 1, 0.01) << "step " << step;
      }
      EXPECT_GE(compared, 2);
    });
  }
}

TESTS(decentralized) {
  const std::string alone = "--no-shuffle --layers 16,9,3 --activation gelu";
  same_training("solution.10.decentralized_on_one_rank", kSameBits, on(1, mlp, alone), on(1, decentralized, alone));
  // 38 parameters, 16 steps per epoch on two ranks: one broadcast per tensor, one message to and from each neighbor per
  // step, and an all-reduce of an epoch's losses and of its distance.
  for (int ranks : {1, 2, 3, 4}) {
    const long bytes = 4 * 38, neighbors = std::min(ranks - 1, 2), steps = (1024 / 32 + ranks - 1) / ranks;
    const long distances = ranks > 1 ? 1 : 0;
    ledger(text("solution.10.ledger.decentralized.", ranks), on(ranks, decentralized, "--epochs 2 --average-at-end"),
           {{kAll, "ncclBroadcast", 4, bytes},
            {kAll, "ncclSend", 2 * neighbors * steps, 2 * neighbors * steps * bytes},
            {kAll, "ncclRecv", 2 * neighbors * steps, 2 * neighbors * steps * bytes},
            {kAll, "ncclAllReduce", 2 * (1 + distances) + 1, 2 * (4 * steps + distances * bytes) + bytes}});
    step(text("solution.10.step.decentralized.", ranks), on(ranks, decentralized),
         {{"parameters", bytes},
          {"gradients", bytes},
          {"optimizer", 0},
          {"activations", 1792},
          {"buckets", neighbors * bytes}});
  }
  overlaps("solution.10.decentralized_overlaps",
           on(3, decentralized, "--max-steps 3").in("WORKSHOP_SIMULATE=compute=1M,link=1ms+1G/s"), "nccl");
  refusals("solution.10.bad.decentralized.", on(4, decentralized), R"(
    average.#     | --average-at-end=maybe  | --average-at-end
  )");
}

// ---- local SGD -----------------------------------------------------------------------------------------------------

TESTS(local_sgd) {
  const std::string network = "--layers 7,6,5,3 --activation gelu --samples 240 --batch-size 8 --epochs 2 --lr 0.1";
  as_in_turn("solution.10.local_sgd.mlp", 3, local_sgd, "rounds", network + " --sync-every 3");
  as_in_turn("solution.10.local_sgd.gpt", 4, local_sgd, "rounds", gpt + " --sync-every 4");
  as_in_turn("solution.10.local_sgd.outer", 3, local_sgd, "rounds",
             network + " --sync-every 3 --outer-lr 0.7 --outer-momentum 0.9 --accumulation-steps 2");
  as_in_turn("solution.10.local_sgd.diloco", 4, local_sgd, "rounds",
             network + " --sync-every 4 --outer-lr 0.7 --outer-momentum 0.9 --optimizer adamw --lr 0.001");
  // The mean of w - η·g_r is w - η·(mean of g_r), up to rounding: 2⁻²⁴ per step for each of the P terms (below 1) and
  // for the sum. After 20 steps on 3 ranks the two differ by at most 20·(3 + 2)·2⁻²⁴ and what later steps make of it.
  for (int ranks : {2, 3}) {
    const std::string training = "--samples 960 --epochs 2 --log-every 0 --batch-size";
    same_training(text("solution.10.local_sgd_is_ddp.", ranks), 1e-5, on(ranks, ddp, training, 96 / ranks),
                  on(ranks, local_sgd, training, 96 / ranks, "--sync-every 1"));
  }
  const std::string alone = "--no-shuffle --layers 16,9,3 --activation gelu --sync-every 3";
  same_training("solution.10.local_sgd_on_one_rank", kSameBits,
                on(1, mlp, "--no-shuffle --layers 16,9,3 --activation gelu"), on(1, local_sgd, alone));
  // 32 steps in two epochs; the last round has two.
  const long bytes = 4 * 38, steps = 16, rounds = 7;
  ledger("solution.10.ledger.local_sgd", on(2, local_sgd, "--epochs 2 --sync-every 5"),
         {{kAll, "ncclBroadcast", 4, bytes}, {kAll, "ncclAllReduce", rounds + 2, rounds * bytes + 2 * 4 * steps}});
  step("solution.10.step.local_sgd", on(2, local_sgd),
       {{"parameters", bytes}, {"gradients", bytes}, {"optimizer", 0}, {"activations", 1792}, {"buckets", 0}});
  step("solution.10.step.local_sgd_outer", on(2, local_sgd, "--outer-momentum 0.9"),
       {{"parameters", bytes}, {"gradients", bytes}, {"optimizer", 2 * bytes}, {"activations", 1792}, {"buckets", 0}});
  refusals("solution.10.bad.local_sgd.", on(4, local_sgd), R"(
    every.#    | --sync-every 0     | --sync-every is '0'; expected a whole number of at least 1
    lr.#       | --outer-lr 0       | --outer-lr is '0'; expected a number greater than 0
    momentum.# | --outer-momentum 2 | --outer-momentum is '2'; expected at most 1
  )");
}

// ---- compressed gradients ------------------------------------------------------------------------------------------

const std::string with_probes = "WORKSHOP_PROBES=1";

// Returns the tensor of the probe with this name on a rank in a step; `number` selects among several.
const tools::Tensor& probed(const Run& run, std::string_view name, int rank, int step, int number = 0) {
  for (const tools::Probe& probe : run.record.probes) {
    if (probe.tensor.name == name && probe.rank == rank && probe.step == step && number-- == 0) return probe.tensor;
  }
  fail(report(run, text("'", name, "' of rank ", rank, " in step ", step), "none"));
}

TESTS(compressed) {
  const std::string training = "--samples 960 --epochs 2 --log-every 0 --batch-size 48 --layers 6,5,4,2";
  for (const std::string options :
       {"none", "none --error-feedback", "topk --ratio 1", "topk --ratio 1 --error-feedback", "randomk --ratio 1"}) {
    std::string name = options.substr(0, options.find(' ')) + (options.ends_with("feedback") ? "_feedback" : "");
    same_training("solution.10.compressed_is_ddp." + name, kSameBits, on(2, ddp, training),
                  on(2, compressed, training, "--bucket-mb 0.0001 --compress", options));
  }

  // 38 parameters in one bucket, 16 steps on two ranks. 4 values are kept. A part has 24 values, or 3 bytes of signs.
  const long bytes = 4 * 38, S = 16, P = 2;
  const Traffic broadcast{kAll, "ncclBroadcast", 1, bytes}, losses{kAll, "ncclAllReduce", 1, 4 * S};
  const auto coded = [&](long part) {
    return std::vector<Traffic>{broadcast,
                                losses,
                                {kAll, "ncclSend", P * S, P * S * part},
                                {kAll, "ncclRecv", P * S, P * S * part},
                                {kAll, "ncclAllGather", 3 * S, S * (part + 8)}};
  };
  ledger("solution.10.ledger.compressed_none", on(2, compressed, "--compress none"),
         {broadcast, {kAll, "ncclAllReduce", S + 1, S * (bytes + 4)}});
  ledger("solution.10.ledger.compressed_topk", on(2, compressed, "--compress topk --ratio 0.1"),
         {broadcast, losses, {kAll, "ncclAllGather", 2 * S, S * 8 * 4}});
  ledger("solution.10.ledger.compressed_randomk", on(2, compressed, "--compress randomk --ratio 0.1"),
         {broadcast, {kAll, "ncclAllReduce", S + 1, S * (4 * 4 + 4)}});
  ledger("solution.10.ledger.compressed_int8", on(2, compressed, "--compress int8"), coded(24));
  ledger("solution.10.ledger.compressed_sign", on(2, compressed, "--compress sign"), coded(3));

  // Summed over all ranks, what is sent plus the remainders must equal what was there. A rank rounds each value when it
  // computes the remainder; the mean is rounded when it is summed and scaled; the sum of the remainders is rounded once
  // more. Together with the sums of the test itself: fewer than 16 roundings per rank of the largest value.
  for (const std::string kind : {"topk", "randomk", "int8", "sign"}) {
    const int ranks = 3;
    const Command run =
        on(ranks, compressed, "--max-steps 3 --error-feedback --lr 0.1 --compress", kind).in(with_probes);
    test("solution.10.error_feedback." + kind, run, [=](const Run& run) {
      for (int step = 0; step < 3; ++step) {
        const tools::Tensor& mean = probed(run, "gradients before the update", 0, step);
        double lost = 0;
        for (std::size_t i = 0; i < mean.values.size(); ++i) {
          double before = 0, after = ranks * mean.values[i], largest = std::fabs(after);
          for (int rank = 0; rank < ranks; ++rank) {
            const double had = probed(run, "bucket with what was left out before", rank, step).values.at(i);
            const double left = probed(run, "left out of the bucket", rank, step).values.at(i);
            before += had;
            after += left;
            lost += std::fabs(left);
            largest = std::max({largest, std::fabs(had), std::fabs(left)});
          }
          const double error = std::fabs(before - after);
          if (!(error <= 16 * ranks * 0x1p-24 * largest))
            fail(report(run, text(before), text(after, " in step ", step)));
        }
        EXPECT_TRUE(lost > 0) << "nothing was left out";
      }
    });
  }

  // int8 rounds a value by at most half a scale, once on each rank and once in the mean.
  test("solution.10.int8_bound", {.ranks = 3}, [] {
    const std::string once = "--max-steps 1 --layers 30,20,5";
    const Run exact = record(on(3, solution("02_ddp/ddp_overlap"), once).in(with_probes), "exact.jsonl");
    const Run run = record(on(3, compressed, once, "--compress int8 --error-feedback").in(with_probes));
    const tools::Tensor& expected = probed(exact, "bucket after its all-reduce", 0, 0);
    const tools::Tensor& found = probed(run, "gradients before the update", 0, 0);
    double scale = 0, scale_of_mean = 0, largest = 0;
    for (int rank = 0; rank < 3; ++rank) {
      scale += probed(run, "scale", rank, 0, 0).values[0] / 3;
      scale_of_mean = std::max(scale_of_mean, probed(run, "scale", rank, 0, 1).values[0]);
    }
    const double bound = (scale + scale_of_mean) / 2 * (1 + 1e-5);
    for (std::size_t i = 0; i < expected.values.size(); ++i) {
      const double error = std::fabs(found.values.at(i) - expected.values[i]);
      largest = std::max(largest, error);
      if (!(error <= bound)) fail(report(run, text(expected.values[i], " up to ", bound), text(found.values[i])));
    }
    EXPECT_TRUE(largest > bound / 100) << "nothing was rounded: " << largest << " of " << bound;
  });

  refusals("solution.10.bad.compressed.", on(4, compressed), R"(
    kind.#  | --compress zip | --compress is 'zip'; expected none, topk, randomk, int8, sign
    ratio.# | --ratio 0      | --ratio is '0'; expected a number greater than 0
    most.#  | --ratio 1.5    | --ratio is '1.5'; expected at most 1
  )");
}

// ---- when they pay, on a simulated machine -------------------------------------------------------------------------

double seconds_per_step(const Command& command, const std::string& link) {
  return record(command.in("WORKSHOP_SIMULATE=compute=10G,link=" + link)).record.seconds_per_step;
}

// A compressor that takes τ_k seconds per step and sends x bytes instead of x_0 is faster below the bandwidth (x_0 −
// x)/τ_k. Ten percent below this bandwidth it must win, ten percent above it must lose. One bucket, so nothing is
// hidden.
TESTS(crossover) {
  constexpr int kRanks = 4;
  constexpr double kValues = 2 * (256 * 256 + 256), kKept = 1316, kExact = 1.5 * 4 * kValues;
  const auto add = [=](const std::string& kind, double bytes) {
    test("solution.10.crossover." + kind, {.ranks = kRanks, .cpu_only = "only the cpu backend simulates"}, [=] {
      const auto seconds = [&](const std::string& compress, double bandwidth) {
        const Command command = on(kRanks, compressed, "--layers 256,256,256 --samples 1024 --max-steps 6",
                                   "--ratio 0.01 --compress", compress);
        return seconds_per_step(command, text("0us+", bandwidth, "/s"));
      };
      const double cost = seconds(kind, 1e15) - seconds("none", 1e15);
      ASSERT_GT(cost, 0);
      const double crossover = (kExact - bytes) / cost;
      EXPECT_LT(seconds(kind, crossover / 1.1), seconds("none", crossover / 1.1)) << text("below ", crossover);
      EXPECT_GT(seconds(kind, crossover * 1.1), seconds("none", crossover * 1.1)) << text("above ", crossover);
    });
  };
  add("topk", (kRanks - 1) * 8 * kKept);
  add("randomk", 1.5 * 4 * kKept);
  add("int8", 1.5 * kValues);
  add("sign", 1.5 * kValues / 8);
}

// With short messages, a step of the ring of neighbors takes the same time on any number of ranks; an all-reduce does
// not.
TESTS(latency) {
  test("solution.10.decentralized_latency", {.ranks = 8, .cpu_only = "only the cpu backend simulates"}, [] {
    const auto seconds = [](const Path& program, int ranks) {
      return seconds_per_step(on(ranks, program, "--samples 32768 --batch-size 8 --max-steps 403 --log-every 0"),
                              "1ms+1T/s");
    };
    const double four = seconds(decentralized, 4), eight = seconds(decentralized, 8);
    EXPECT_TRUE(std::abs(eight - four) <= 0.01 * four)
        << text(four, " and ", eight);  // one average of losses in 400 steps
    EXPECT_TRUE(std::abs(four - 1e-3) <= 0.05 * 1e-3)
        << text(four);  // one message to each neighbor, hidden behind nothing
    EXPECT_GT(seconds(ddp, 8), 1.4 * seconds(ddp, 4));
  });
}

}  // namespace
}  // namespace workshop::tests
