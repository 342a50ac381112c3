// SPDX-License-Identifier: Apache-2.0
// Chapter 06, fsdp: every mode trains what ddp trains.
#include <algorithm>
#include <cmath>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path ddp = solution("02_ddp/ddp");
const Path fsdp = solution("06_fsdp/fsdp");

// The ranks add up the same gradients as in ddp, possibly in a different order. On one rank there is nothing to add,
// and a sum of two terms has one order; all other arithmetic is the same, on the host too. There results are bitwise
// equal. On more ranks, a mean of P ≤ 8 values has an error of at most P·u·G in any order, where u = 2⁻²⁴ and G is the
// largest value, so two gradients differ by at most 2·P·u·G = 10⁻⁶·G. Hybrid sharding takes a mean of means and
// accumulation a mean of sums of means: two more roundings each. J = 12 steps of SGD with η = 0.01 pass 0.12 times this
// on to the parameters, and G < 10 for normal data: 2·10⁻⁶. AdamW divides a gradient by its own size. Where the size is
// at least G/1000, the relative error of 10⁻³ costs at most 2·10⁻³·η per step, or with η = 0.001 2.4·10⁻⁵ in 12 steps.
// The tests require 5·10⁻⁵; measured: 3·10⁻⁸. An update with the wrong rank's shard costs 10⁻³ and more.
constexpr double kBound = 5e-5;
// Units of 88, 144, 117 and 50 values, or of 232 and 167. 8 divides 88, 144 and 232; 3 divides 144 and 117; 2 divides
// all but 117 and 167. The number of samples is divisible only by 1 and 2 of the numbers of ranks.
const std::string net = "--layers 7,11,12,9,5 --activation gelu --samples 250 --batch-size 6 --epochs 3 --log-every 0 ";

TESTS(equal) {
  // Both programs get the options `both`; only fsdp gets `options`.
  const auto equals_ddp = [](const std::string& name, const std::string& optimizer, const std::vector<int>& all_ranks,
                             const std::string& options = "", const std::string& both = "") {
    const std::string training =
        net + "--max-steps 12 " + (optimizer == "adamw" ? "--optimizer adamw --lr 0.001 " : "") + both;
    for (int ranks : all_ranks) {
      same_training(text("solution.06.fsdp.", name, ".", optimizer, ".", ranks, "ranks"),
                    ranks < 3 && both.empty() ? kSameBits : kBound, on(ranks, ddp, training),
                    on(ranks, fsdp, training, options));
    }
  };
  equals_ddp("equals_ddp", "adamw", {1, 2, 3, 4, 8});
  equals_ddp("equals_ddp", "sgd", {3});
  equals_ddp("units_of_two", "adamw", {2, 3}, "--unit-layers 2");
  equals_ddp("one_unit", "adamw", {2}, "--unit-layers 9");
  equals_ddp("no_reshard", "adamw", {2, 3}, "--no-reshard-after-forward");
  equals_ddp("no_prefetch", "adamw", {2}, "--no-prefetch");
  equals_ddp("no_overlap", "adamw", {3}, "--no-reshard-after-forward --no-prefetch");
  for (const char* backward : {"pre", "post", "none"}) {
    const std::string option = text("--backward-prefetch ", backward);
    equals_ddp(text("backward_", backward), "adamw", {2, 3}, option);
    equals_ddp(text("backward_", backward, ".kept"), "sgd", {2}, option + " --no-reshard-after-forward");
    equals_ddp(text("backward_", backward, ".alone"), "sgd", {2}, option + " --no-prefetch --unit-layers 2");
    equals_ddp(text("backward_", backward, ".everything"), "adamw", {4}, option + " --cpu-offload --hybrid 2",
               "--accumulation-steps 3");
  }
  equals_ddp("units_by_size", "adamw", {2, 3}, "--min-unit-parameters 200");
  equals_ddp("from_rank_0", "adamw", {2, 3}, "--sync-module-states");
  equals_ddp("from_rank_0.hybrid", "adamw", {4}, "--sync-module-states --hybrid 2 --cpu-offload");
  equals_ddp("hybrid2", "adamw", {4, 8}, "--hybrid 2");
  equals_ddp("hybrid1", "adamw", {3}, "--hybrid 1");
  equals_ddp("offload", "adamw", {1, 2, 3}, "--cpu-offload");
  equals_ddp("offload", "sgd", {2}, "--cpu-offload --no-reshard-after-forward");
  equals_ddp("accumulation", "adamw", {2, 3}, "", "--accumulation-steps 3");
  equals_ddp("everything", "adamw", {4}, "--cpu-offload --hybrid 2 --unit-layers 2 --no-reshard-after-forward",
             "--accumulation-steps 3");

  // All combinations of modes: 96 runs on one rank and 384 on eight, with 2 optimizers and 1 or 3 batches per step.
  for (int ranks : {1, 2, 3, 4, 8}) {
    test(text("solution.06.fsdp.every_mode.", ranks, "ranks"), {.ranks = ranks, .timeout = 1800, .soak = true}, [=] {
      for (const char* training : {"sgd --accumulation-steps 1", "sgd --accumulation-steps 3",
                                   "adamw --accumulation-steps 1", "adamw --accumulation-steps 3"}) {
        const Run expected = record(on(ranks, ddp, net, "--lr 0.001 --optimizer", training), "expected.jsonl");
        for (int hybrid = 1; hybrid <= ranks; ++hybrid) {
          if (ranks % hybrid != 0) continue;
          for (int units : {1, 2, 4}) {
            for (const char* reshard : {"", "--no-reshard-after-forward"}) {
              for (const char* prefetch : {"", "--no-prefetch"}) {
                for (const char* place : {"", "--cpu-offload"}) {
                  const Command mode = on(ranks, fsdp, net, "--lr 0.001 --optimizer", training, "--hybrid", hybrid,
                                          "--unit-layers", units, reshard, prefetch, place);
                  expect_same_training(expected, record(mode, "found.jsonl"), kBound);
                }
              }
            }
          }
        }
      }
    });
  }
  // PyTorch's DistributedDataParallel.
  for (const char* name : {"ddp2_default", "ddp3_uneven", "ddp4_adamw"}) {
    const Golden run = golden(text("tests/golden/", name, ".json"));
    golden_test(text("golden.06.fsdp.", name), run, on(run.ranks, fsdp, run.options));
  }
}

// ---- what a step sends and holds, as in the README -----------------------------------------------------------------

struct Mode {
  std::string name;
  int ranks;
  std::vector<int> widths;
  int unit_layers = 1, hybrid = 0, batches = 1;  // hybrid: ranks per shard group, 0 for all
  bool no_reshard = false, no_prefetch = false, offload = false;
  std::string backward = "";  // --backward-prefetch, if given
  long min_parameters = 0;
  bool from_rank_0 = false;
};

// Cuts the layers into units, and each unit into shards.
struct Units {
  long count = 0, shard = 0, padded = 0, largest = 0;  // units; values of a rank's shards, of all units, of the largest
};
Units cut(const Mode& mode, int shards) {
  Units units;
  const int layers = static_cast<int>(mode.widths.size()) - 1;
  for (int first = 0, end = 0; first < layers; first = end) {
    long values = 0;
    for (; end < layers && (end < first + mode.unit_layers || values < mode.min_parameters); ++end)
      values += (mode.widths[end] + 1) * mode.widths[end + 1];
    const long part = (values + shards - 1) / shards;
    ++units.count;
    units.shard += part;
    units.padded += part * shards;
    units.largest = std::max(units.largest, part * shards);
  }
  return units;
}

void expect_mode(const Mode& mode) {
  const int shards = mode.hybrid > 0 ? mode.hybrid : mode.ranks;
  const Units units = cut(mode, shards);
  std::string widths;
  for (int width : mode.widths) widths += text(widths.empty() ? "" : ",", width);
  const Command command =
      on(mode.ranks, fsdp, "--layers", widths, "--optimizer adamw --max-steps 4 --unit-layers", mode.unit_layers,
         mode.hybrid > 0 ? text("--hybrid ", mode.hybrid) : "", "--accumulation-steps", mode.batches,
         mode.no_reshard ? "--no-reshard-after-forward" : "", mode.no_prefetch ? "--no-prefetch" : "",
         mode.offload ? "--cpu-offload" : "", mode.backward.empty() ? "" : "--backward-prefetch " + mode.backward,
         "--min-unit-parameters", mode.min_parameters, mode.from_rank_0 ? "--sync-module-states" : "");
  // A unit is gathered once or twice per batch and reduced once per batch; the sum over the replicas is once per step.
  // All counts are in shards. The last 4·4 bytes are the losses of four steps.
  const long uses = 4 * mode.batches, gathers = mode.no_reshard ? uses : 2 * uses, sums = shards == mode.ranks ? 0 : 4;
  std::vector<Traffic> ledger = {{kAll, "ncclReduceScatter", uses * units.count, uses * 4 * units.shard},
                                 {kAll, "ncclAllGather", gathers * units.count, gathers * 4 * units.shard},
                                 {kAll, "ncclAllReduce", sums * units.count + 1, sums * 4 * units.shard + 4 * 4}};
  if (mode.from_rank_0) ledger.push_back({kAll, "ncclBroadcast", units.count, 4 * units.padded});
  // The peak number of gathered units and of gradients of units. The backward pass needs both; the forward pass needs
  // no more.
  const std::string backward = !mode.backward.empty() ? mode.backward : mode.no_prefetch ? "none" : "pre";
  const long gathered = backward == "pre" ? 2 : 1, gradients = backward == "none" ? 1 : 2;
  const long buckets =
      4 * (mode.no_reshard ? units.padded + gradients * units.largest : (gathered + gradients) * units.largest);
  const long kept = 4 * units.shard, here = mode.offload ? 0 : 1;
  const Bytes memory = {{"parameters", here * kept},
                        {"gradients", here * kept},
                        {"optimizer", here * 2 * kept},
                        {"host", (1 - here) * 4 * kept},
                        {"buckets", buckets}};
  test(text("solution.06.fsdp.step.", mode.name, ".", mode.ranks, "ranks"), command, [=](const Run& run) {
    expect_ledger(run, ledger);
    expect_clean_steps(run);
    expect_memory(run, kAll, memory);
  });
}

TESTS(steps) {
  // Units of 40·41 = 1,640 values, divisible by 1, 2, 4 and 8: 16Ψ/P bytes and four units.
  for (int ranks : {1, 2, 4, 8}) expect_mode({.name = "even", .ranks = ranks, .widths = {40, 40, 40, 40, 40}});
  const std::vector<int> uneven = {7, 11, 12, 9, 5};
  expect_mode({.name = "uneven", .ranks = 3, .widths = uneven});
  expect_mode({.name = "units_of_two", .ranks = 3, .widths = uneven, .unit_layers = 2});
  expect_mode({.name = "units_of_three", .ranks = 2, .widths = uneven, .unit_layers = 3});
  expect_mode({.name = "no_reshard", .ranks = 3, .widths = uneven, .no_reshard = true});
  expect_mode({.name = "no_prefetch", .ranks = 3, .widths = uneven, .no_prefetch = true});
  for (const char* backward : {"pre", "post", "none"}) {
    const std::string name = text("backward_", backward);
    expect_mode({.name = name, .ranks = 3, .widths = uneven, .backward = backward});
    expect_mode({.name = name + ".kept", .ranks = 2, .widths = uneven, .no_reshard = true, .backward = backward});
    expect_mode({.name = name + ".alone", .ranks = 2, .widths = uneven, .no_prefetch = true, .backward = backward});
  }
  // Units of 232 and 167 values, and of 349 and 50.
  expect_mode({.name = "units_by_size", .ranks = 3, .widths = uneven, .min_parameters = 200});
  expect_mode({.name = "units_by_size.more", .ranks = 2, .widths = uneven, .unit_layers = 2, .min_parameters = 233});
  expect_mode({.name = "from_rank_0", .ranks = 3, .widths = uneven, .from_rank_0 = true});
  expect_mode({.name = "from_rank_0.hybrid", .ranks = 4, .widths = uneven, .hybrid = 2, .from_rank_0 = true});
  expect_mode({.name = "hybrid", .ranks = 4, .widths = uneven, .hybrid = 2, .batches = 2});
  expect_mode({.name = "replicas_only", .ranks = 3, .widths = uneven, .hybrid = 1});
  expect_mode({.name = "offload", .ranks = 3, .widths = uneven, .batches = 2, .offload = true});
  expect_mode({.name = "everything",
               .ranks = 4,
               .widths = uneven,
               .unit_layers = 2,
               .hybrid = 2,
               .batches = 2,
               .no_reshard = true,
               .no_prefetch = true,
               .offload = true});
}

// ---- communication behind the work ---------------------------------------------------------------------------------

// The spans of one step, in stream order.
struct Step {
  std::vector<Span> gathers, forwards, backwards, reductions;
  double loss = 0, update = 0;  // durations
  double begin = INFINITY, end = 0;

  double serial() const {
    double sum = loss + update;
    for (const auto* spans : {&gathers, &forwards, &backwards, &reductions}) {
      for (const Span& span : *spans) sum += span.duration;
    }
    return sum;
  }
  // Returns the time from the first gather to the end of the update if no stream waits longer than it must. The two
  // streams work in order. Each use of a unit waits for its gather; anything enqueued on the communication stream after
  // a use waits for that use. With prefetching, the gather for the next use is enqueued before a use, otherwise after
  // it.
  double scheduled(bool prefetch) const {
    const std::size_t units = forwards.size(), uses = 2 * units;
    const bool gathered_again = gathers.size() == uses;
    std::vector<double> fetched(uses);
    double communication = 0, compute = 0;
    const auto fetch = [&](std::size_t use) {
      if (use < units || gathered_again) communication += gathers[use].duration;
      fetched[use] = communication;
    };
    for (std::size_t use = 0; use < uses; ++use) {
      if (use == 0 || !prefetch) fetch(use);
      if (prefetch && use + 1 < uses) fetch(use + 1);
      compute = std::max(compute, fetched[use]);
      compute += use < units ? forwards[use].duration : backwards[use - units].duration;
      communication = std::max(communication, compute);
      if (use >= units) communication += reductions[use - units].duration;
      if (use + 1 == units) compute += loss;
    }
    return std::max(compute, communication) + update;
  }
  // Returns the deviation of the step's time from its ideal, relative to the time that prefetching saves.
  double error(bool prefetch) const {
    return std::fabs(end - begin - scheduled(prefetch)) / (scheduled(false) - scheduled(true));
  }
};

std::vector<Step> steps_of(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::begin);
  std::vector<Step> steps(1);
  for (const Span& span : spans) {
    Step& step = steps.back();
    if (span.name.starts_with("gather")) {
      step.gathers.push_back(span);
      step.begin = std::min(step.begin, span.begin);
    }
    if (span.name.starts_with("forward of")) step.forwards.push_back(span);
    if (span.name.starts_with("backward of")) step.backwards.push_back(span);
    if (span.name.starts_with("reduce")) step.reductions.push_back(span);
    if (span.name == "loss") step.loss = span.duration;
    if (span.name != "update") continue;
    step.update = span.duration;
    step.end = span.end();
    const std::size_t units = step.forwards.size(), gathers = step.gathers.size();
    if (units == 0 || step.backwards.size() != units || step.reductions.size() != units ||
        (gathers != units && gathers != 2 * units))
      fail("the timeline has a step with spans missing");
    steps.emplace_back();
  }
  steps.pop_back();
  if (steps.empty()) fail("the timeline has no steps");
  return steps;
}

// Four units of two layers. On the simulated machine, a gather and a reduction take 5 ms each, a forward pass 4.6 ms
// and a backward pass 9 ms. The steps must take as long as a schedule of such spans predicts, to within 10⁻⁴ of the
// time that prefetching saves, and prefetching must save at least a tenth of the sum of all spans.
TESTS(schedule) {
  for (const std::string mode : {"prefetch", "no-prefetch"}) {
    for (const std::string reshard : {"reshard", "no-reshard"}) {
      test("solution.06.fsdp.schedule." + mode + "." + reshard,
           {.ranks = 2, .cpu_only = "only the cpu backend simulates"}, [=] {
             const bool prefetch = mode == "prefetch";
             const Run run =
                 succeed(on(2, fsdp, "--layers 8,8,8,8,8,8,8,8,8 --unit-layers 2 --activation gelu --max-steps 5",
                            "--timeline timeline.json", "--" + mode, "--" + reshard + "-after-forward")
                             .in("WORKSHOP_SIMULATE=compute=2M,link=5ms+1G/s"));
             const auto timeline = read_timeline("timeline.json");
             EXPECT_EQ(timeline.size(), 2u) << report(run, "spans of two ranks", text(timeline.size()));
             for (const auto& [rank, spans] : timeline) {
               const std::vector<Step> steps = steps_of(spans);
               const Step& worst =
                   *std::ranges::max_element(steps, {}, [=](const Step& step) { return step.error(prefetch); });
               const double with = worst.scheduled(true), without = worst.scheduled(false);
               EXPECT_TRUE(worst.error(prefetch) <= 1e-4 && without - with >= 0.1 * worst.serial())
                   << report(run,
                             text("rank ", rank, ": a step takes ", prefetch ? with : without,
                                  " ms by the schedule, with prefetching ", with, ", without ", without, "; all spans ",
                                  worst.serial()),
                             text(worst.end - worst.begin, " ms"));
             }
           });
    }
  }
}

// A simulated machine on which gathering and reducing a unit take 1 ms each and a backward pass takes 2 ms; for the
// first unit, which computes no input gradient, it takes 1 ms. The measured time runs from the first backward pass to
// the end of the last reduction. With `pre` it is 5·2 + 1 + 1 ms, because the gathers and all but the last reduction
// overlap with backward passes. With `post` the gathers add 5 ms. With `none` nothing overlaps, which adds 10 ms.
TESTS(backward_prefetch) {
  for (const auto& [mode, expected] : {std::pair{"pre", 12.0}, {"post", 17.0}, {"none", 22.0}}) {
    test(text("solution.06.fsdp.backward_prefetch.", mode), {.ranks = 2, .cpu_only = "simulates a machine"}, [=] {
      // A unit has 128·129 parameters, and a batch 64 rows: 2·64·128² operations forward and twice as many backward. A
      // rank sends half of a unit.
      const double forward = 2 * 64 * 128 * 128 * 1e3, bytes = 2 * 128 * 129 * 1e3;
      const Command command = on(2, fsdp, "--layers 128,128,128,128,128,128,128 --batch-size 64 --max-steps 4",
                                 "--timeline timeline.json --backward-prefetch", mode);
      succeed(command.in(text("WORKSHOP_SIMULATE=compute=", forward, ",link=0s+", bytes, "/s")));
      const auto timeline = read_timeline("timeline.json");
      for (const auto& [rank, spans] : timeline) {
        const Step step = steps_of(spans).back();
        const double time = step.reductions.back().end() - step.backwards.front().begin;
        // Kernels other than the products take less than one percent.
        EXPECT_NEAR(time, expected, 0.01 * expected) << "rank " << rank;
      }
    });
  }
}

TESTS(bad) {
  refusals("solution.06.fsdp.bad.", on(4, fsdp), R"(
    hybrid0.#      | --hybrid 0             | --hybrid is '0'; expected a whole number of at least 1
    hybrid3.#      | --hybrid 3             | --hybrid is '3'; expected a number that divides the # rank
    units.#        | --unit-layers 0        | --unit-layers is '0'; expected a whole number of at least 1
    accumulation.# | --accumulation-steps 0 | --accumulation-steps is '0'; expected
    backward.#     | --backward-prefetch yes | --backward-prefetch is 'yes'; expected pre, post, none
    parameters.#   | --min-unit-parameters -1 | --min-unit-parameters is '-1'; expected a whole number of at least 0
    unknown.#      | --stage 3              | --stage
  )");
}

}  // namespace
}  // namespace workshop::tests
