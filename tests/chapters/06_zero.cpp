// SPDX-License-Identifier: Apache-2.0
// Chapter 06, zero: every stage trains what ddp trains.
#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path ddp = solution("02_ddp/ddp");
const Path zero = solution("06_fsdp/zero");

// P ranks add up the same P gradients in ddp and at every stage, possibly in a different order: the order may depend on
// a value's position in the message, and a reduce-scatter's messages differ from an all-reduce's. A mean of P ≤ 8
// values has an error of at most P·u·G in any order, where u = 2⁻²⁴ and G is the largest value, so two means differ by
// at most 2·P·u·G = 10⁻⁶·G. J = 12 steps of SGD with η = 0.01 pass 0.12 times this on to the parameters, and less to
// the losses. G < 10 for normal data: 1.2·10⁻⁶. AdamW divides a gradient by its own size, which is at least G/1000
// here. The relative error of 10⁻³ costs at most 2·10⁻³·η per step, or with η = 0.001 2.4·10⁻⁵ in 12 steps. The tests
// require 5·10⁻⁵ of both; a missing update costs 10⁻³. Measured: at most 7.5·10⁻⁹.
//
// On one rank there is nothing to add, and a sum of two terms has one order; there results are bitwise equal.
constexpr double kBound = 5e-5;

TESTS(equal) {
  // Units of 88, 144 and 65 values: 2 and 4 do not divide the last one, 3 does not divide the first and the last, 8
  // does not divide the last. The number of samples is divisible only by 1, 2 and 5, and the last batch has fewer rows.
  const std::string net =
      "--layers 7,11,12,5 --activation gelu --samples 250 --batch-size 12 --epochs 3 --max-steps 12 --log-every 0 "
      "--optimizer ";
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (const std::string optimizer : {"adamw", "sgd"}) {
      const std::string options = net + (optimizer == "adamw" ? "adamw --lr 0.001" : "sgd");
      for (int stage : {0, 1, 2, 3}) {
        // AdamW has optimizer state to shard. SGD has none, so three ranks suffice outside the soak tests.
        same_training(text("solution.06.zero.equals_ddp.", optimizer, ".stage", stage, ".", ranks, "ranks"),
                      ranks < 3 ? kSameBits : kBound, on(ranks, ddp, options),
                      on(ranks, zero, options, "--stage", stage), {.soak = optimizer == "sgd" && ranks != 3});
      }
    }
  }
  // Four batches of 8 rows per update equal one batch of 32. With 100 samples per rank, the last step has 4 rows.
  // Stages 2 and 3 average each batch before accumulating, ddp and stage 1 afterwards, so even on two ranks the order
  // differs.
  const std::string uneven = "--samples 200 --epochs 3 --layers 7,11,12,5 --log-every 0 --batch-size";
  for (int stage : {1, 2, 3}) {
    same_training(text("solution.06.zero.accumulation.stage", stage), kBound, on(2, ddp, uneven, 32),
                  on(2, zero, uneven, 8, "--accumulation-steps 4 --stage", stage));
  }
  // PyTorch's DistributedDataParallel.
  const Golden two = golden("tests/golden/ddp2_default.json"), four = golden("tests/golden/ddp4_adamw.json");
  for (int stage : {0, 1, 2, 3}) {
    golden_test(text("golden.06.zero.ddp2_default.stage", stage), two, on(2, zero, two.options, "--stage", stage));
  }
  golden_test("golden.06.zero.ddp4_adamw.stage3", four, on(4, zero, four.options, "--stage 3"));
}

// Traffic, as in the README. On 4 ranks, units of 28 and 10 values have shards of 7 and 3; an epoch has 8 batches. A
// rank sends P - 1 = 3 times the bytes of a reduce-scatter or an all-gather, and 2·3/4 times those of an all-reduce.
// With Ψ = 38 and Ψ' = 40, a step sends 2·3/4·Ψ values at stage 0, twice 3·10 = 3/4·Ψ' at stages 1 and 2, and three
// times that at stage 3.
TESTS(ledger) {
  const long units = 2, whole = 4 * 38, shards = 4 * (7 + 3), batches = 8;
  for (long accumulated : {1, 4}) {
    const long steps = batches / accumulated;
    for (int stage : {0, 1, 2, 3}) {
      // Stages 0 and 1 reduce once per step, stages 2 and 3 once per batch. Stages 1 and 2 gather once per step, and
      // once for the initial values. Stage 3 gathers twice per batch, and once for the final values. All stages average
      // the losses of the steps once per epoch.
      const long reduces = stage < 2 ? steps : batches, gathers = stage == 3 ? 2 * batches + 1 : steps + 1;
      const Traffic losses{kAll, "ncclAllReduce", 1, 4 * steps};
      const Traffic both{kAll, "ncclAllReduce", 1 + units * steps, 4 * steps + whole * steps};
      const Traffic reduced{kAll, "ncclReduceScatter", units * reduces, shards * reduces};
      const Traffic gathered{kAll, "ncclAllGather", units * gathers, shards * gathers};
      ledger(text("solution.06.zero.ledger.", accumulated > 1 ? "accumulation." : "", "stage", stage),
             on(4, zero, "--stage", stage, "--accumulation-steps", accumulated),
             stage == 0 ? std::vector{both} : std::vector{losses, reduced, gathered});
    }
  }
}

// Clean steps, and the README's memory with AdamW at every stage. `psi` is Ψ, `padded` Ψ' and `largest` Ψ_u.
TESTS(memory) {
  struct Net {
    std::string name, layers;
    int ranks;
    long psi, padded, largest;
  };
  const std::string even = "32,32,32,32,32,32,32,32,32";  // 8 units of 32·33 values, divisible by 1, 2, 4 and 8
  const Net nets[] = {{"even", even, 1, 8448, 8448, 1056},
                      {"even", even, 2, 8448, 8448, 1056},
                      {"even", even, 4, 8448, 8448, 1056},
                      {"even", even, 8, 8448, 8448, 1056},
                      {"padded", "7,11,12,5", 3, 88 + 144 + 65, 90 + 144 + 66, 144}};
  for (const Net& net : nets) {
    const long whole = 4 * net.psi, padded = 4 * net.padded, shard = padded / net.ranks, unit = 4 * net.largest;
    const Bytes stages[] = {
        {{"parameters", whole}, {"gradients", whole}, {"optimizer", 2 * whole}, {"buckets", 0}},
        {{"parameters", padded}, {"gradients", padded}, {"optimizer", 2 * shard}, {"buckets", 0}},
        {{"parameters", padded}, {"gradients", shard}, {"optimizer", 2 * shard}, {"buckets", unit}},
        {{"parameters", shard}, {"gradients", shard}, {"optimizer", 2 * shard}, {"buckets", 2 * unit}}};
    for (int stage : {0, 1, 2, 3}) {
      step(text("solution.06.zero.memory.", net.name, ".stage", stage, ".", net.ranks, "ranks"),
           on(net.ranks, zero, "--optimizer adamw --layers", net.layers, "--stage", stage,
              "--max-steps 2 --accumulation-steps 2"),
           stages[stage]);
    }
  }
}

TESTS(bad) {
  refusals("solution.06.zero.bad.", on(4, zero), R"(
    stage.4.#      | --stage=4              | --stage is '4'; expected a whole number
    stage.-1.#     | --stage=-1             | --stage is '-1'; expected a whole number
    stage.two.#    | --stage=two            | --stage is 'two'; expected a whole number
    accumulation.# | --accumulation-steps 0 | --accumulation-steps is '0'; expected
    unknown.#      | --bucket-mb 3          | --bucket-mb
  )");
}

}  // namespace
}  // namespace workshop::tests
