// SPDX-License-Identifier: Apache-2.0
// Chapter 09: every strategy trains a mixture of experts as one process does, wherever the experts are.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path moe = solution("09_expert_parallel/moe");
const Path parallel = solution("09_expert_parallel/moe_parallel");

// With SGD, because AdamW would scale up the gradient of the keys' biases, which is only rounding. Which experts a
// token takes jumps where two scores are equal: with this seed, no run comes near such a place.
constexpr double kBound = 1e-5;
const std::string text_option = "--text " + source("tests/golden/text").path + " ";
const std::string model_options = text_option +
                                  "--context 12 --heads 4 --width 16 --optimizer sgd --lr 0.2 --no-shuffle "
                                  "--model-seed 3 --max-steps 6 --log-every 0 --experts 24 --top-k 3 --aux-loss 0.05 ";
const std::string options = model_options + "--batch-size 24 ";
std::string per_rank(int ranks) { return text("--batch-size ", 24 / ranks, " "); }

// How moe_parallel sends rows: name, its own options, and those of the model.
struct Way {
  std::string name, options, of_model;
};
const Way ways[] = {{"exact", "", ""},
                    {"overlap", "--overlap", ""},
                    {"places", "", "--capacity-factor 0.9"},
                    {"fixed", "--counts fixed", "--capacity-factor 0.9"},
                    {"fixed_overlap", "--counts fixed --overlap", "--capacity-factor 1.5"}};

TESTS(equal) {
  const std::string all = "--clip-norm 0.3 --warmup-steps 3 --lr-schedule cosine --dropout 0.2 --top-k 2";
  for (const Way& way : ways) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      const bool is_odd = ranks == 3;  // in the other cases, everything at once is enough
      const auto add = [&](const std::string& name, const std::string& more) {
        same_gpt(text("solution.09.", name, ".", way.name, ".", ranks, "ranks"), kBound,
                 on(1, moe, options, way.of_model, more),
                 on(ranks, parallel, model_options, per_rank(ranks), way.of_model, way.options, more));
      };
      add(is_odd ? "equal" : "equal.all", is_odd ? "" : all);
    }
    for (int of_group : {1, 2, 4}) {
      same_gpt(text("solution.09.groups_of_", of_group, ".", way.name), kBound, on(1, moe, options, way.of_model, all),
               on(8, parallel, model_options, per_rank(8), way.of_model, way.options, all, "--expert-ranks", of_group));
    }
    const std::string accumulation = "--accumulation-steps 2 --batch-size ";
    same_gpt("solution.09.accumulation." + way.name, kBound, on(1, moe, options, way.of_model),
             on(4, parallel, model_options, way.of_model, way.options, accumulation, 3));
    same_gpt("solution.09.recompute." + way.name, kBound, on(1, moe, options, way.of_model),
             on(4, parallel, model_options, per_rank(4), way.of_model, way.options, "--recompute blocks"));
    // The last batch is short.
    same_gpt("solution.09.short_batch." + way.name, kBound,
             on(1, moe, options, way.of_model, "--max-steps 0 --epochs 1 --aux-loss 0"),
             on(1, parallel, options, way.of_model, way.options, "--max-steps 0 --epochs 1 --aux-loss 0"));
  }
}

// All programs that train any model.
TESTS(strategies) {
  const std::string gpt = "--model gpt --clip-norm 0.3 --capacity-factor 0.9 ";
  const Command one = on(1, moe, options, "--clip-norm 0.3 --capacity-factor 0.9");
  const auto whole = [&](const std::string& name, int ranks, const std::string& program, const std::string& more = "") {
    same_gpt("solution.09.strategies." + name, kBound, one, on(ranks, solution(program), options, gpt, more));
  };
  whole("mlp", 1, "01_single_gpu/mlp", "--recompute blocks");
  whole("model_parallel", 3, "03_model_parallel/model_parallel");
  whole("one_process", 1, "03_model_parallel/one_process", "--devices 2");
  whole("pipeline", 2, "04_pipeline/pipeline", "--schedule 1f1b --micro-batches 4 --recompute stages");
  whole("interleaved", 2, "04_pipeline/pipeline", "--schedule interleaved --micro-batches 4");
  const auto replicas = [&](const std::string& name, const std::string& program, const std::string& more = "") {
    for (int ranks : {2, 4}) {
      same_gpt(text("solution.09.strategies.", name, ".", ranks, "ranks"), kBound, one,
               on(ranks, solution(program), model_options, per_rank(ranks), gpt, more));
    }
  };
  replicas("ddp", "02_ddp/ddp");
  replicas("ddp_overlap", "02_ddp/ddp_overlap");
  for (int stage : {1, 2, 3}) replicas(text("zero_", stage), "06_fsdp/zero", text("--stage ", stage));
  replicas("fsdp", "06_fsdp/fsdp");
}

TESTS(golden) {
  const Golden ddp2 = golden("tests/golden/moe_ddp2.json");
  for (const Way& way : ways) {
    golden_test("golden.09.ddp2." + way.name, ddp2,
                on(2, parallel, ddp2.options.substr(ddp2.options.find("--text")), way.options));
  }
  golden_test("golden.09.ddp2.fsdp", ddp2, on(2, solution("06_fsdp/fsdp"), ddp2.options));
  for (const std::string name : {"single", "top1", "all"}) {
    const Golden one = golden("tests/golden/moe_" + name + ".json");
    golden_test("golden.09." + name + ".pipeline", one,
                on(2, solution("04_pipeline/pipeline"), "--model gpt --micro-batches 1", one.options));
  }
}

TESTS(bf16) {
  const std::string bf16 = "--precision bf16";
  same_training("solution.09.bf16.one_rank", kSameBits, on(1, moe, options, bf16), on(1, parallel, options, bf16));
  for (const Way& way : ways) {
    same_training("solution.09.bf16." + way.name, 0.02, on(1, moe, options, way.of_model),
                  on(4, parallel, model_options, per_rank(4), way.of_model, way.options, bf16));
  }
}

// Mixtures without a model around them, with all tokens at the same experts, and with ranks that have no sample.
TESTS(spread) {
  const Path program = {WORKSHOP_BUILD "/tests/chapters/mixture_on_ranks"};
  const std::string small = "--words 500 --vocabulary 40 --context 12 --width 16 --batch-size 4 --experts 8 ";
  for (const std::string more : {"", "--overlap", "--counts fixed --capacity-factor 0.5 --overlap", "--top-k 8",
                                 "--top-k 1 --counts fixed --capacity-factor 20"}) {
    for (int ranks : {1, 2, 4, 8}) {
      std::string name = more;
      std::ranges::replace(name, ' ', '_');
      test(text("solution.09.spread.", ranks, "ranks", name), {.ranks = ranks},
           [=] { succeed(on(ranks, program, small, more)); });
    }
  }
  test("solution.09.one_expert", {.cpu_only = "compares bits"}, [] {
    for (const std::string more : {"", "--accumulation-steps 2 --recompute blocks"}) {
      succeed(on(1, {WORKSHOP_BUILD "/tests/chapters/one_expert"}, "--words 500 --vocabulary 40 --width 32",
                 "--context 16 --batch-size 8 --experts 1 --top-k 1 --aux-loss 0 --max-steps 6", more));
    }
  });
}

// A checkpoint goes on with the experts on other ranks.
TESTS(checkpoints) {
  for (const std::string optimizer : {"sgd", "adamw --lr 0.001"}) {
    test(text("solution.09.resume.", optimizer.substr(0, 3)), {.ranks = 8}, [=] {
      const auto steps = [=](int last) {
        return text(model_options, "--optimizer ", optimizer, " --max-steps ", last);
      };
      const Run expected = record(on(1, moe, steps(8), per_rank(1)), "expected.jsonl");
      succeed(on(4, parallel, steps(2), per_rank(4), "--checkpoints a"));
      succeed(on(8, parallel, steps(4), per_rank(8), "--expert-ranks 2 --resume a --checkpoints b"));
      succeed(on(2, solution("06_fsdp/fsdp"), "--model gpt", steps(6), per_rank(2), "--resume b --checkpoints c"));
      const Run resumed = record(on(3, parallel, steps(8), per_rank(3), "--resume c --checkpoints d"), "resumed.jsonl");
      // AdamW scales up the gradients of the keys' biases, which are only rounding.
      expect_same_training(expected, resumed, optimizer == "sgd" ? kBound : 1e-4, /*resumed=*/true);
    });
  }
}

// On a mesh. Without --ep, every replica has all experts.
TESTS(mesh) {
  const Path mesh = solution("07_3d/train_3d");
  const std::string all = "--clip-norm 0.3 --capacity-factor 0.9 --warmup-steps 3 --lr-schedule cosine --dropout 0.2";
  const auto add = [&](int d, int p, int c, int t, int e, const std::string& more) {
    same_gpt(text("solution.09.mesh.", d, "x", p, "x", c, "x", t, ".groups_of_", e), kBound, on(1, moe, options, all),
             on(d * p * c * t, mesh, "--model gpt", model_options, per_rank(d), all, "--dp", d, "--pp", p, "--cp", c,
                "--tp", t, "--ep", e, more));
  };
  add(2, 1, 1, 1, 1, "--zero 1");
  add(2, 1, 1, 1, 2, "");
  add(4, 1, 1, 1, 2, "--recompute blocks");
  add(8, 1, 1, 1, 4, "--zero 1");
  add(2, 2, 1, 1, 2, "--micro-batches 4");
  add(4, 2, 1, 1, 4, "--micro-batches 2 --schedule interleaved --recompute stages --zero 1");
  add(4, 2, 1, 1, 2, "--micro-batches 3 --schedule gpipe");
  add(1, 1, 1, 2, 1, "--zero 1");
  add(2, 1, 1, 2, 2, "--zero 1");
  add(1, 1, 1, 4, 1, "--recompute blocks");
  add(1, 1, 2, 1, 1, "");
  add(2, 1, 2, 1, 1, "--zero 1 --attention-block 5");
  add(2, 1, 2, 1, 2, "");
  add(2, 1, 2, 1, 4, "--recompute blocks --zero 1");
  add(1, 1, 3, 1, 3, "");
  add(1, 1, 2, 2, 2, "");
  add(2, 1, 2, 2, 4, "");
  // Five dimensions: pipeline, replicas (with their experts), context, tensor.
  add(1, 2, 2, 2, 2, "--micro-batches 2 --recompute blocks");
  refusals("solution.09.mesh.bad.", on(4, mesh, "--model gpt"), R"(
    divisor    | --experts 6 --ep 3               | --ep is '3'; expected a divisor of the 4 ranks of the data dimension
    experts    | --experts 6 --ep 4               | --experts is '6'; expected a multiple of the 4 ranks of --ep
    none       | --ep 2                           | --ep is for --model gpt with --experts only
    sequence   | --experts 4 --tp 2 --sequence-parallel | --sequence-parallel is for models without --experts
  )");
}

// ---- what is sent and held -----------------------------------------------------------------------------------------

// The sizes of the model, and of the 57 words of the text. Three steps; then 58 samples each of validation and test are
// evaluated.
constexpr long E = 16, T = 12, H = 4, L = 2, V = 57, kSteps = 3, kExperts = 24, K = 3;
constexpr long kShared = 2 * V * E + T * E + 2 * E + L * (4 * E * E + 8 * E + kExperts * E);
constexpr long kOfExpert = 8 * E * E + 5 * E;  // in a block

TESTS(traffic) {
  const auto bytes = [](const Run& run, const std::string& op, int rank) {
    double sum = 0;
    for (const auto& call : run.record.collectives) {
      if (call.op == op && (rank == kAll || call.rank == rank)) sum += call.bytes;
    }
    return sum;
  };
  for (const int ranks : {2, 4, 8}) {
    for (const int of_group : {1, 2, 8}) {
      if (ranks % of_group != 0) continue;
      // Fixed counts: all places of all samples of a batch, in both directions, forward and backward.
      test(text("solution.09.ledger.fixed.", ranks, "ranks.groups_of_", of_group), {.ranks = ranks}, [=] {
        const Run run = record(on(ranks, parallel, model_options, per_rank(ranks), "--max-steps", kSteps,
                                  "--counts fixed --capacity-factor 0.9 --expert-ranks", of_group),
                               "run.jsonl");
        const long B = 24 / ranks, places = 2;  // ceil(0.9·3·12/24)
        const long evaluations = 2 * ((58 + 24 - 1) / 24), passes = L * (2 * kSteps + evaluations);
        const double rows = static_cast<double>(kExperts) * B * places;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const std::string op : {"ncclSend", "ncclRecv"}) {
            EXPECT_EQ(bytes(run, op, rank), passes * 2 * rows * E * 4) << run.command;
          }
          // All shared gradients over the world, those of this rank's experts over their replicas, losses and norms.
          const double norms = of_group > 1 ? kSteps : 0;
          const double gradients = kSteps * (kShared + L * kExperts / of_group * kOfExpert);
          EXPECT_EQ(bytes(run, "ncclAllReduce", rank), 4 * (gradients + kSteps + norms + 2)) << run.command;
        }
      });
      // Exact counts: a row for each choice, and the numbers of rows.
      test(text("solution.09.ledger.exact.", ranks, "ranks.groups_of_", of_group), {.ranks = ranks}, [=] {
        const Run run = record(
            on(ranks, parallel, model_options, per_rank(ranks), "--max-steps", kSteps, "--expert-ranks", of_group),
            "run.jsonl");
        const double tokens_of_passes = (2.0 * kSteps * 24 + 2 * 58) * T * L, evaluations = 2 * ((58 + 23) / 24);
        const double counts = ranks * L * (kSteps + evaluations) * kExperts;
        EXPECT_EQ(bytes(run, "ncclSend", kAll), 4 * (tokens_of_passes * 2 * K * E + counts)) << run.command;
        EXPECT_EQ(bytes(run, "ncclRecv", kAll), bytes(run, "ncclSend", kAll)) << run.command;
      });
    }
  }
}

// The formulas of math.md. With exact counts the host waits once per block and forward pass; with fixed ones, never.
TESTS(memory) {
  const auto ints = [](long n) { return n; };  // as many bytes as a float
  const auto add = [&](const std::string& name, const Command& command, long B, long e, bool fixed, long parts,
                       long waits) {
    const long places = 2, rows = fixed ? kExperts * places : K * T, own = kExperts / e;
    const long received = fixed ? rows : e * T * std::min(K, own);
    const bool cut = command.words[0] == parallel.path;
    const long numbers = T * (kExperts + 4 * K) + kExperts;
    const long hidden = cut ? received * 9 * E : rows * 8 * E;
    const long in_blocks = L * (8 * T * E + 4 * T + H * T * T + numbers + 2 * rows * E + hidden);
    const long ends = 2 * T * E + 2 * T + T * V;
    const long scratch = rows * E + 4 * (cut ? received : rows) * E;
    const long gradients = 2 * std::max({T * V, 4 * T * E, scratch, T * E + std::max(T * E, H * T * T)});
    // Beside what is per sample: starts, gradients of weights and logits, shares of the auxiliary loss, counts.
    const long router =
        L * (ints(kExperts * B + 1) + B * T * (K + kExperts) + B * kExperts + (cut ? ints(2 * kExperts * parts) : 0));
    const long parameters = kShared + L * own * kOfExpert;
    step("solution.09.memory." + name, command,
         {{"parameters", 4 * parameters},
          {"gradients", 4 * parameters},
          {"optimizer", 8 * parameters},
          {"activations", 4 * (B * (in_blocks + ends + gradients) + router)},
          {"buckets", cut ? 4 * L * B * received * E : 0}},
         Where::current(), waits);
  };
  const std::string adamw = "--optimizer adamw --lr 0.001 --max-steps 3 ";
  add("moe", on(1, moe, options, adamw), 24, 1, false, 1, kSteps * L);
  add("moe.recompute_waits", on(1, moe, options, adamw, "--capacity-factor 0.9"), 24, 1, false, 1, kSteps * L);
  for (const int ranks : {1, 2, 4}) {
    const Command command = on(ranks, parallel, model_options, adamw, per_rank(ranks));
    add(text("exact.", ranks, "ranks"), command, 24 / ranks, ranks, false, 1, kSteps * L);
    add(text("overlap.", ranks, "ranks"), with(command, "--overlap"), 24 / ranks, ranks, false, 2, kSteps * L);
    add(text("fixed.", ranks, "ranks"), with(command, "--counts fixed --capacity-factor 0.9"), 24 / ranks, ranks, true,
        1, 0);
  }
}

// ---- time ----------------------------------------------------------------------------------------------------------

// The formulas of math.md, with fixed counts and as many places as choices: K·T rows for each sample.
constexpr double kWidth = 64, kSamples = 4, kTokens = 32, kRows = 2 * kTokens * kSamples, kBlocks = 2;

double time_of_step(int ranks, double operations, double bytes, const std::string& more = "") {
  return simulated_step(
      on(ranks, parallel, "--words 20000 --vocabulary 57 --width 64 --heads 1 --context 32 --experts 8 --top-k 2",
         "--blocks 2 --batch-size 4 --counts fixed --capacity-factor 1", more),
      operations, bytes);
}

// Returns the milliseconds of the four exchanges of a block, forward and backward.
double exchanged(int ranks, double bytes) {
  return kBlocks * 4 * 4 * kRows * kWidth * (ranks - 1) / ranks / bytes * 1e3;
}

TESTS(simulated) {
  for (const int ranks : {1, 2, 4, 8}) {
    test(text("solution.09.simulated.computed.", ranks, "ranks"), {.ranks = ranks, .cpu_only = "simulates a machine"},
         [=] {
           const double attention = 8 * kWidth * kWidth + 4 * kTokens * kWidth, experts = 16 * kWidth * kWidth;
           const double token = kBlocks * (attention + 2 * kWidth * 8) + 2 * kWidth * 57;
           const double operations = 3 * (kTokens * kSamples * token + kBlocks * kRows * experts);
           EXPECT_NEAR(time_of_step(ranks, 1e9, 1e13), operations / 1e6,
                       0.02 * operations / 1e6);  // other kernels take 0.9 %
         });
    if (ranks == 1) continue;
    for (const std::string more : {"", "--overlap"}) {
      test(text("solution.09.simulated.exchanged", more.empty() ? "." : ".overlap.", ranks, "ranks"),
           {.ranks = ranks, .cpu_only = "simulates a machine"}, [=] {
             // The experts take longer than the exchanges, so --overlap hides half of these.
             const double operations = 1e9, bytes = 1e7;
             const double shown = exchanged(ranks, bytes) * (more.empty() ? 1 : 0.5);
             const double time = time_of_step(ranks, operations, bytes, more);
             EXPECT_NEAR(time - time_of_step(ranks, operations, 1e13, more), shown, 0.001 * shown);
           });
    }
  }
}

TESTS(overlap) {
  overlaps("solution.09.overlap.hides",
           on(2, parallel, "--words 2000 --vocabulary 60 --context 32 --width 64 --batch-size 8 --max-steps 3",
              "--overlap --log-every 0"),
           "ncclSend");
}

TESTS(bad) {
  refusals("solution.09.bad.", on(4, parallel, text_option), R"(
    ranks      | --expert-ranks 3                 | --expert-ranks is '3'; expected a number that divides the 4 ranks
    experts    | --experts 6                      | --experts is '6'; expected a multiple of the 4 ranks that have them
    none       | --experts 0                      | --experts is '0'; expected at least 1
    top_k      | --top-k 9                        | --top-k is '9'; expected at most the 8 of --experts
    fixed      | --counts fixed                   | --counts is 'fixed'; expected a --capacity-factor greater than 0
    counts.#   | --counts some                    | --counts is 'some'; expected exact, fixed
    factor.#   | --capacity-factor -1             | --capacity-factor is '-1'; expected a number of at least 0
    aux.#      | --aux-loss -1                    | --aux-loss is '-1'; expected a number of at least 0
    generate.# | --generate the                   | --generate
  )");
  refusals("solution.09.bad.others.", on(2, solution("05_tensor_parallel/tensor_parallel"), "--model gpt"), R"(
    tensor     | --experts 4                      | there is no option '--experts'
  )");
  refusals("solution.09.bad.mlp.", on(1, solution("01_single_gpu/mlp")), R"(
    experts    | --experts 4                      | --experts
  )");
}

}  // namespace
}  // namespace workshop::tests
