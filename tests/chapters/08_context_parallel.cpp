// SPDX-License-Identifier: Apache-2.0
// Chapter 08: any number of ranks trains what one process with chapter 01's attention trains.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path gpt = solution("01_single_gpu/gpt");
const Path ring = solution("08_context_parallel/ring_attention");
const Path ulysses = solution("08_context_parallel/ulysses");
const Path gather = solution("08_context_parallel/gather_kv");

// Sums over the 480 rows of a batch in a different order are some 100 roundings of 6·10⁻⁸. Trained with SGD, because
// AdamW would scale up the gradient of the keys' biases, which is only rounding.
constexpr double kBound = 1e-5;
const std::string text_option = "--text " + source("tests/golden/text").path + " ";
// 48 positions can be cut into 1, 2, 3, 4 and 8 times two pieces; so can 24 heads.
const std::string options = text_option +
                            "--context 48 --heads 24 --width 48 --batch-size 10 --optimizer sgd --lr 0.2 --no-shuffle "
                            "--model-seed 3 --max-steps 8 --log-every 0 ";

struct Way {
  std::string name;
  Path program;
  std::string options;
};
const Way ways[] = {{"ring", ring, "--balance none"},
                    {"zigzag", ring, "--balance zigzag"},
                    {"gather", gather, "--balance none"},
                    {"gather_zigzag", gather, "--balance zigzag"},
                    {"ulysses", ulysses, ""}};

TESTS(equal) {
  const Command one = on(1, gpt, options);
  const auto add = [](const std::string& name, const Way& way, int ranks, const Command& expected,
                      const std::string& more) {
    same_gpt(text("solution.08.", name, ".", way.name, ".", ranks, "ranks"), kBound, expected,
             on(ranks, way.program, options, way.options, more));
  };
  const std::string all = "--dropout 0.2 --clip-norm 0.3 --warmup-steps 3 --lr-schedule cosine";
  for (const Way& way : ways) {
    for (int ranks : {2, 3, 4, 8}) {
      add("equal", way, ranks, one, "");
      add("equal.all", way, ranks, with(one, all), all + text(" --attention-block ", ranks + 1));
    }
    // One rank computes what gpt computes with the same blocks, bit by bit.
    for (const std::string blocks : {"--attention-block 5 --dropout 0.1", "--attention-block 48"}) {
      same_training(text("solution.08.one_rank.", way.name, blocks.find("48") == std::string::npos ? ".blocks" : ""),
                    kSameBits, with(one, blocks), on(1, way.program, options, way.options, blocks));
    }
    for (const int block : {1, 7, 100}) add(text("block_", block), way, 2, one, text("--attention-block ", block));
    const std::string accumulation = "--batch-size 5 --accumulation-steps 2 --dropout 0.1";
    add("accumulation", way, 2, with(one, accumulation), accumulation);
    add("recompute", way, 4, with(one, "--dropout 0.1"), "--dropout 0.1 --recompute blocks");
  }
}

// PyTorch's results, with AdamW. With zigzag, 8 ranks have pieces of one position.
TESTS(golden) {
  const Golden single = golden("tests/golden/gpt_single.json");
  for (const Way& way : ways) {
    for (int ranks : {1, 2, 4, 8}) {
      if (ranks == 8 && way.name == "ulysses") continue;  // 4 heads
      golden_test(text("golden.08.", way.name, ".", ranks, "ranks"), single,
                  on(ranks, way.program, single.options, way.options));
    }
  }
}

// With bfloat16, contexts and gradients are added up in float32, and each term of a gradient is rounded before.
TESTS(bf16) {
  const std::string bf16 = "--precision bf16 --attention-block 48";
  for (const Way& way : ways) {
    same_training("solution.08.bf16.one_rank." + way.name, kSameBits, on(1, gpt, options, bf16),
                  on(1, way.program, options, way.options, bf16));
    same_training("solution.08.bf16." + way.name, 0.01, on(1, gpt, options, bf16),
                  on(4, way.program, options, way.options, bf16));
  }
}

// A run of one way resumes from a checkpoint of another way, on another number of ranks.
TESTS(checkpoints) {
  test("solution.08.resume", {.ranks = 4}, [] {
    const auto steps = [](int last) { return text(options, "--dropout 0.1 --max-steps ", last, " "); };
    const Run expected = record(on(1, gpt, steps(8)), "expected.jsonl");
    succeed(on(4, ring, steps(2), "--checkpoints a"));
    succeed(on(3, ulysses, steps(4), "--resume a --checkpoints b"));
    succeed(on(2, gather, steps(6), "--resume b --checkpoints c"));
    const Run resumed = record(on(1, gpt, steps(8), "--resume c --checkpoints d"), "resumed.jsonl");
    expect_same_training(expected, resumed, kBound, /*resumed=*/true);
  });
}

// All meshes of 8 ranks that cut the sequences, with all further options, and some without.
TESTS(mesh) {
  const Path mesh = solution("07_3d/train_3d");
  const std::string all = "--dropout 0.2 --clip-norm 0.3 --warmup-steps 2 --lr-schedule cosine --attention-block 5 ";
  const std::string deep = options + "--blocks 4 --max-steps 4 --batch-size ";
  for (const int c : {2, 4, 8}) {
    for (int d = 1; d <= 8 / c; d *= 2) {
      for (int p = 1; p <= 8 / c / d; p *= 2) {
        const int t = 8 / c / d / p;
        const std::string shape =
            text("--dp ", d, " --pp ", p, " --cp ", c, " --tp ", t, p > 1 ? " --micro-batches 2 " : " ");
        const std::string name = text(d, "x", p, "x", c, "x", t);
        const bool is_plain = p == 2 ? d == 2 : c == 8 || (d == 1 && t == 2);
        if (is_plain)
          same_gpt("solution.08.mesh." + name, kBound, on(1, gpt, deep, 16),
                   on(8, mesh, "--model gpt", deep, 16 / d, shape));
        std::string more = all;
        if (d * c > 1) more += "--zero 1 ";
        if (t > 1) more += "--sequence-parallel ";
        if (p == 2) more += "--schedule interleaved ";
        same_gpt(
            "solution.08.mesh.with_all." + name, kBound, on(1, gpt, deep, 16, all),
            on(8, mesh, "--model gpt", deep, 16 / d, shape, more, p > 2 ? "--recompute stages" : "--recompute blocks"));
      }
    }
  }
  refusals("solution.08.mesh.bad.", on(4, mesh), R"(
    context   | --model gpt --context 18 --cp 4       | --context is '18'; expected a multiple of 8
    ranks     | --model gpt --cp 3                    | --cp is '3', --pp is '1' and --tp is '1', which makes 3 ranks a replica; expected a divisor of the 4 ranks
    product   | --model gpt --cp 2 --dp 4             | --cp is '2', --dp is '4', --pp is '1' and --tp is '1'; expected a product of 4 ranks
    only_gpt  | --cp 2                                | --cp is for --model gpt only
  )");
}

// ---- what is sent and held -----------------------------------------------------------------------------------------

// The formulas of math.md, for T = 48 positions, n = T/c of them on a rank, width 48, 2 blocks, a text of 57 words.
// A step has 10 samples; then 14 samples each of validation and test are evaluated, in 2 batches.
TESTS(traffic) {
  const long E = 48, T = 48, L = 2, steps = 3, samples = steps * 10, evaluated = 2 * 14, batches = 4, words = 57;
  const long parameters = 2 * words * E + T * E + 2 * E + L * (12 * E * E + 13 * E);
  const auto add = [=](const Way& way, long ranks, const std::string& more, const std::vector<Traffic>& of_attention) {
    std::vector<Traffic> lines = of_attention;
    // Every parameter in every step, the losses of the steps, two evaluations.
    lines.push_back({kAll, "ncclAllReduce", steps * (5 + 12 * L) + 3, 4 * (steps * parameters + steps + 2)});
    ledger(text("solution.08.ledger.", way.name, more.empty() ? "" : ".recompute", ".", ranks, "ranks"),
           on(static_cast<int>(ranks), way.program, options, way.options, more, "--max-steps", steps), lines);
  };
  for (const long c : {2, 4}) {
    const long kv = 4 * 2 * T / c * E;  // bytes of a sample's keys and values on a rank
    for (const std::string more : {"", "--recompute blocks"}) {
      // Forward passes through a layer: of how many batches, and of how many samples in all.
      const long forward = more.empty() ? 1 : 2, passes = L * (forward * steps + batches),
                 in_passes = L * (forward * samples + evaluated);
      const std::vector<Traffic> of_ring = {{kAll, "ncclSend", (c - 1) * (passes + L * steps) + c * L * steps,
                                             kv * ((c - 1) * (in_passes + L * samples) + c * L * samples)},
                                            {kAll, "ncclRecv", (c - 1) * (passes + L * steps) + c * L * steps,
                                             kv * ((c - 1) * (in_passes + L * samples) + c * L * samples)}};
      add(ways[0], c, more, of_ring);
      add(ways[1], c, more, of_ring);
      const std::vector<Traffic> of_gather = {
          {kAll, "ncclAllGather", passes + L * steps, kv * (in_passes + L * samples)},
          {kAll, "ncclReduceScatter", L * steps, kv * L * samples}};
      add(ways[2], c, more, of_gather);
      add(ways[3], c, more, of_gather);
      // Three times as much forward as the context, and as much backward; the ledger counts what a rank sends to
      // itself.
      const std::vector<Traffic> of_ulysses = {
          {kAll, "ncclSend", c * 2 * (passes + L * steps), kv * 2 * (in_passes + L * samples)},
          {kAll, "ncclRecv", c * 2 * (passes + L * steps), kv * 2 * (in_passes + L * samples)}};
      add(ways[4], c, more, of_ulysses);
    }
  }
}

// Clean steps, and the memory of math.md on each rank. From T = 64 to 4,096, the attention of a rank holds what the
// formula says; at T = 4,096 on one rank, whole rows of scores would take 134 MB for each head.
TESTS(memory) {
  const auto add = [](const Way& way, long c, long T, long block) {
    const long E = 16, H = 4, d = E / H, L = 2, B = T > 1000 ? 1 : 2, words = 57, n = T / c;
    const long run = way.name.ends_with("zigzag") && c > 1 ? n / 2 : n, keys = block > 0 ? std::min(block, run) : run;
    const std::string sizes = text("--width 16 --heads 4 --context ", T, " --batch-size ", B,
                                   block > 0 ? text(" --attention-block ", block) : "",
                                   T > 100 ? " --max-steps 1" : " --max-steps 3", " --log-every 0");
    const bool is_ulysses = way.name == "ulysses", is_ring = way.program.path == ring.path;
    // Floats of a sample. What a block keeps, the two ends of the model, two gradients, and what attention needs.
    const long inside = block > 0 ? T * H / c : H / c * T * T;
    const long in_blocks = L * (16 * n * E + 4 * n + (is_ulysses ? inside + n * E : H * n));
    const long ends = 2 * n * E + 2 * n + n * words;
    const long probabilities = is_ulysses && block == 0 ? inside : 0;
    const long gradients = 2 * std::max({n * words, 4 * n * E, n * E + std::max(n * E, probabilities)});
    const long whole = std::min(block, T);
    const long attention =
        is_ulysses ? n * E + (block > 0 ? 2 * T * whole + T * (d + 2) : 0)
                   : 2 * run * keys + run * (d + 2) + 2 * run * d + n * E + n * H + (is_ring ? 2 * n * E : 0);
    const long buckets = is_ulysses ? 6 * n * E : is_ring ? 8 * n * E : (4 + 4 * c) * n * E;
    const long parameters = 2 * words * E + T * E + 2 * E + L * (12 * E * E + 13 * E);
    step(text("solution.08.memory.", way.name, ".", c, "ranks.", T, block > 0 ? text(".blocks_of_", block) : ""),
         on(static_cast<int>(c), way.program, T > 100 ? "--words 60000 --vocabulary 57 " : text_option, way.options,
            sizes),
         {{"parameters", 4 * parameters},
          {"gradients", 4 * parameters},
          {"optimizer", 8 * parameters},
          {"activations", 4 * B * (in_blocks + ends + gradients + attention)},
          {"buckets", 4 * B * buckets}});
  };
  for (const Way& way : ways) {
    for (const long c : {1, 2, 4}) {
      add(way, c, 64, 0);
      add(way, c, 64, 12);
    }
  }
  add(ways[1], 1, 4096, 256);
  for (const Way& way : ways) add(way, 4, 1024, 64);
}

// ---- time ----------------------------------------------------------------------------------------------------------

double time_of_step(const Way& way, long c, long n, double operations, double bytes) {
  const Command command = on(static_cast<int>(c), way.program,
                             "--words 20000 --vocabulary 57 --width 64 --heads 1 --blocks 3 --batch-size 1",
                             way.options, "--context", c * n);
  return simulated_step(command, operations, bytes);
}

// The formulas of math.md: operations of a rank in blocks and head, forward and backward, and what cannot be hidden.
double computed(const Way& way, long c, long n) {
  const double E = 64, L = 3, words = 57;
  const double units = way.name == "zigzag" ? (2.0 * c + 1) / 4 : static_cast<double>(c);
  return L * (72.0 * n * E * E + 14 * units * n * n * E) + 6.0 * n * E * words;
}

TESTS(simulated) {
  for (const Way& way : {ways[0], ways[1]}) {
    for (const long c : {2, 4, 8}) {
      test(text("solution.08.simulated.", way.name, ".", c, "ranks"),
           {.ranks = static_cast<int>(c), .cpu_only = "simulates a machine"}, [=] {
             const double time = time_of_step(way, c, 64, 1e9, 1e12), expected = computed(way, c, 64) / 1e6;
             EXPECT_NEAR(time, expected, 0.02 * expected);  // the kernels beside the products take 1.3 %
           });
    }
  }
}

// How much of the communication is hidden, on 4 ranks with zigzag. From n = 4·operations/bytes = 64 on, all of it is
// but the last step home of the gradients, one of the 3C - 2 = 10 transfers of a layer.
TESTS(hidden) {
  for (const auto& [n, hidden] : {std::pair{16, 0.37}, {32, 0.625}, {64, 0.9}, {128, 0.9}}) {
    test(text("solution.08.hidden.", n), {.ranks = 4, .cpu_only = "simulates a machine"}, [n = n, hidden = hidden] {
      const double operations = 1e9, bytes = 62.5e6, whole = 3 * (3 * 4 - 2) * 8.0 * n * 64 / bytes * 1e3;
      const double exposed =
          time_of_step(ways[1], 4, n, operations, bytes) - time_of_step(ways[1], 4, n, operations, 1e13);
      EXPECT_NEAR(1 - exposed / whole, hidden, 0.02);
    });
  }
}

TESTS(bad) {
  refusals("solution.08.bad.", on(4, ring, text_option), R"(
    context    | --context 18                    | --context is '18'; expected a multiple of 8, two pieces for each of 4 ranks
    neighbors  | --context 18 --balance none     | --context is '18'; expected a multiple of the 4 ranks
    balance.#  | --balance all                   | --balance is 'all'; expected none, zigzag
    generate.# | --generate the                  | --generate
    model.#    | --model gpt                     | --model
  )");
  refusals("solution.08.bad.ulysses.", on(4, ulysses, text_option), R"(
    heads      | --heads 2                       | --heads is '2'; expected a multiple of the 4 ranks
    context    | --context 18                    | --context is '18'; expected a multiple of the 4 ranks
    balance.#  | --balance zigzag                | --balance
  )");
}

}  // namespace
}  // namespace workshop::tests
