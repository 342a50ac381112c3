// SPDX-License-Identifier: Apache-2.0
// Chapter 03: the ranks do together what one process does alone, in the same order: not a bit may differ.
#include <algorithm>
#include <cmath>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path model_parallel = solution("03_model_parallel/model_parallel");

// The same options, and so the same batches, on one GPU and on several ranks.
void equals_mlp(const std::string& name, int ranks, const std::string& options,
                const std::string& partition = "uniform") {
  same_training(text("solution.03.", name, ".", ranks), kSameBits, on(1, mlp, options, "--log-every 0"),
                on(ranks, model_parallel, options, "--log-every 0 --partition", partition));
}

TESTS(equal) {
  const std::string deep = " --layers 16,24,9,24,17,8,8,12,3 ";
  const std::string training = "--samples 500 --epochs 2";  // the last batch of each epoch has 20 rows
  for (int ranks : {1, 2, 3, 4, 8}) {
    equals_mlp("relu", ranks, training + deep + "--activation relu");
    equals_mlp("gelu_adamw", ranks,
               training + " --layers 5,40,7,7,64,3,2,2,6 --activation gelu --optimizer adamw --no-shuffle",
               "parameters");
  }
  equals_mlp("no_activation", 3, training + " --layers 6,4,4,2 --weight-decay 0.1");
  equals_mlp("parameters", 2, "--layers 3,128,1,70", "parameters");
  // One step with so long a stride that the parameters become -lr·gradient: the gradients, to the last bit.
  for (int ranks : {2, 3, 8}) equals_mlp("gradients", ranks, deep + "--activation gelu --lr 1e9 --max-steps 1");

  for (int ranks : {1, 2}) {
    golden_test(text("golden.03.", ranks), golden("tests/golden/single_default.json"), on(ranks, model_parallel));
  }
}

// What is sent, as in the README: the activations of every sample over every boundary, and the gradients back.
TESTS(ledger) {
  const int samples = 100, batches = 4, epochs = 2;
  // The widths of 12,10,8,6,4 at the boundaries of 1, 2, 3 and 4 parts.
  for (const std::vector<int>& boundaries : {std::vector<int>{}, {8}, {8, 6}, {10, 8, 6}}) {
    const int last = static_cast<int>(boundaries.size());
    std::vector<Traffic> expected;
    for (int rank = 0; rank <= last; ++rank) {
      const int neighbors = (rank > 0) + (rank < last);
      const int width = (rank > 0 ? boundaries[rank - 1] : 0) + (rank < last ? boundaries[rank] : 0);
      // Once an epoch the last rank sends rank 0 the losses of its batches.
      const bool sends = last > 0 && rank == last, receives = last > 0 && rank == 0;
      for (const auto& [op, losses] : {std::pair{"ncclSend", sends}, {"ncclRecv", receives}}) {
        expected.push_back(
            {rank, op, epochs * (neighbors * batches + losses), 4 * epochs * (samples * width + losses * batches)});
      }
    }
    ledger(text("solution.03.ledger.", last + 1),
           on(last + 1, model_parallel, "--layers 12,10,8,6,4 --samples", samples, "--epochs", epochs), expected);
  }
}

// Nothing allocated, nothing waited for, and the README's memory.
TESTS(steps) {
  step("solution.03.step.1", on(1, model_parallel, "--epochs 2"),  // what chapter 01's program holds
       {{"parameters", 152}, {"gradients", 152}, {"optimizer", 0}, {"activations", 1792}, {"buckets", 0}});
  // 12,10,8,6,4 on three ranks: layers 0 and 1, layer 2, layer 3. Of the outputs before and, but for the last layer,
  // after the activation; two gradients of the widest output; and on the ranks that receive, input and its gradient.
  const Command run = on(3, model_parallel, "--layers 12,10,8,6,4 --activation gelu --optimizer adamw --epochs 2");
  test("solution.03.step.3", run, [](const Run& run) {
    const long parameters[] = {13 * 10 + 11 * 8, 9 * 6, 7 * 4};
    const long columns[] = {2 * 10 + 2 * 8 + 2 * 10, 2 * 6 + 2 * 6 + 2 * 8, 4 + 2 * 4 + 2 * 6};
    expect_clean_steps(run);
    for (int rank : {0, 1, 2}) {
      expect_memory(run, rank,
                    {{"parameters", 4 * parameters[rank]},
                     {"gradients", 4 * parameters[rank]},
                     {"optimizer", 8 * parameters[rank]},
                     {"activations", 4 * 32 * columns[rank]},
                     {"buckets", 0}});
    }
  });
}

// On a simulated machine with fast links the stages are equal but for the loss, the update and the activation that the
// last layer has not. Of P ranks each idles (P - 1)/P of the time, by its own record and by the timeline from its first
// idle span to its last.
TESTS(idle) {
  for (int ranks : {1, 2, 4}) {
    test(text("solution.03.idle.", ranks), {.ranks = ranks, .cpu_only = "only the cpu backend simulates"}, [=] {
      const double ideal = (ranks - 1.0) / ranks, tolerance = 0.05;
      const Run run = record(on(ranks, model_parallel, "--layers 8,8,8,8,8,8,8,8,8 --activation relu --max-steps 20",
                                "--timeline timeline.json")
                                 .in("WORKSHOP_SIMULATE=compute=1M,link=1us+1G/s"));
      const auto timeline = read_timeline("timeline.json");
      for (int rank = 0; rank < ranks; ++rank) {
        double idle = 0, first = INFINITY, last = -INFINITY;
        for (const Span& span : timeline.at(rank)) {
          if (span.name != "idle") continue;
          idle += span.duration;
          first = std::min(first, span.begin);
          last = std::max(last, span.end());
        }
        const double recorded = run.record.values.at({rank, "idle share"}), seen = idle / (last - first);
        EXPECT_TRUE(std::fabs(recorded - ideal) <= tolerance && std::fabs(seen - ideal) <= tolerance)
            << report(run, text("rank ", rank, " idles ", ideal, " of the time"),
                      text(recorded, " recorded, ", seen, " in the timeline"));
      }
    });
  }
}

TESTS(bad) {
  refusals("solution.03.bad.", on(4, model_parallel), R"(
    partition.# | --layers 9,8,7,6,5 --partition even           | --partition is 'even'; expected uniform, parameters
    batch.#     | --layers 9,8,7,6,5 --batch-size 0             | --batch-size is '0'; expected a whole number of at least 1
    unknown.#   | --layers 9,8,7,6,5 --micro-batches 2          | --micro-batches
    ranks.4     | --layers 5,4,3,2 --partition parameters       | --layers is '5,4,3,2', 3 layers for 4 ranks; expected
  )");
  refusals("solution.03.bad.", on(3, model_parallel),
           "ranks.3 | | --layers is '6,4,2', 2 layers for 3 ranks; expected a layer a rank or more");
}

}  // namespace
}  // namespace workshop::tests
