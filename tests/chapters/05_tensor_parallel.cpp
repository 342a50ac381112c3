// SPDX-License-Identifier: Apache-2.0
// Chapter 05: any number of ranks trains the same network.
#include <algorithm>
#include <cmath>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path tensor = solution("05_tensor_parallel/tensor_parallel");
const Path gather = solution("05_tensor_parallel/tensor_parallel_gather");

// P ranks add up the same products as one process, in a different order. An activation or a gradient is a sum of at
// most k = 48 products (the widest layer; a batch has 24 rows). In any order, its error is at most k·u·G, where u =
// 2⁻²⁴ and G is the sum of the products' magnitudes. Forward and backward, four layers are 8 such sums in sequence, so
// a gradient of two runs differs by at most 2·8·k·u·G = 4.6·10⁻⁵·G. J = 40 steps of SGD with η = 0.01 pass 0.4 times
// this on to the parameters. Gradients of a mean over normal data have G ≤ 1 here. Measured: 1.2·10⁻⁷. The tests
// require 5·10⁻⁵ of losses, parameters and gradients; a wrong term is of the order of 10⁻².
constexpr double kBound = 5e-5;
// Bound for the language model. Sums over the 128 rows of a batch or 64 features in a different order are some 100
// roundings of 6·10⁻⁸. Measured: 5·10⁻⁷. It is trained with SGD, because AdamW would scale up the gradient of the keys'
// biases, which is only rounding.
constexpr double kGptBound = 1e-5;
// Two pairs, GELU, a last batch of 8 rows. Only the widths inside the pairs (24 and 48) must be divisible by the number
// of ranks.
const std::string pairs =
    "--layers 12,24,6,48,5 --activation gelu --batch-size 24 --samples 488 --no-shuffle --log-every 0 ";
// For the gathered layers every width except the input's is a multiple of 2, 3, 4 and 8.
const std::string columns =
    "--layers 10,24,48,24 --activation gelu --batch-size 24 --samples 488 --no-shuffle --log-every 0 ";
// A step of SGD with η = 1 leaves value - gradient, so equal parameters after one step mean equal gradients.
const std::pair<std::string, std::string> runs[] = {{"training", "--epochs 2 --max-steps 40"},
                                                    {"gradients", "--lr 1 --max-steps 1"}};

TESTS(equal) {
  for (const auto& [run, steps] : runs) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      same_training(text("solution.05.tensor_parallel.", run, ".", ranks, "ranks"), ranks == 1 ? kSameBits : kBound,
                    on(1, mlp, pairs, steps), on(ranks, tensor, pairs, steps));
      same_training(text("solution.05.tensor_parallel_gather.", run, ".", ranks, "ranks"), kBound,
                    on(1, mlp, columns, steps), on(ranks, gather, columns, steps));
    }
  }
  const std::string batches = columns + "--accumulation-steps 2 --epochs 2";
  same_training("solution.05.tensor_parallel_gather.accumulation", kBound, on(1, gather, batches),
                on(4, gather, batches));
  // AdamW divides a gradient by its own size: with η = 0.001, a relative error of 10⁻³ in a gradient costs 10⁻⁶ per
  // step; there are 21 steps.
  const std::string adamw = pairs + "--optimizer adamw --lr 0.001 --activation relu";
  same_training("solution.05.tensor_parallel.adamw", kBound, on(1, mlp, adamw), on(4, tensor, adamw));
}

// PyTorch's results, on every number of ranks that divides the widths.
TESTS(golden) {
  const auto add = [](const std::string& name, const Path& program, const std::string& file,
                      const std::vector<int>& all_ranks) {
    const Golden run = golden(file);
    for (int ranks : all_ranks) {
      golden_test(text("golden.05.", name, ".", ranks, "ranks"), run, on(ranks, program, run.options));
    }
  };
  add("tensor_parallel", tensor, "tests/golden/single_noshuffle.json", {1, 2});
  add("tensor_parallel_gather", gather, "tests/golden/single_noshuffle.json", {1, 2});
}

// Traffic, as in the README. The default is 32 steps of 32 rows with 6,4,2.
TESTS(ledger) {
  // One all-reduce per pair, step and direction: 4·B·I bytes backward and 4·B·O forward.
  ledger("solution.05.ledger.tensor_parallel.2ranks", on(2, tensor),
         {{kAll, "ncclAllReduce", 32 * 2, 32 * 4 * 32 * (6 + 2)}});
  ledger("solution.05.ledger.tensor_parallel.pairs.4ranks", on(4, tensor, pairs, "--max-steps 2"),
         {{kAll, "ncclAllReduce", 2 * 2 * 2, 2 * 4 * 24 * (12 + 6 + 6 + 5)}});
  // Per layer and step an all-gather of 4·B·O/P bytes and, except for the first layer, a reduce-scatter of 4·B·I/P.
  ledger("solution.05.ledger.tensor_parallel_gather.2ranks", on(2, gather),
         {{kAll, "ncclAllGather", 32 * 2, 32 * 4 * 32 * (4 + 2) / 2},
          {kAll, "ncclReduceScatter", 32, 32 * 4 * 32 * 4 / 2}});
  ledger("solution.05.ledger.tensor_parallel_gather.layers.4ranks", on(4, gather, columns, "--max-steps 2"),
         {{kAll, "ncclAllGather", 2 * 3, 2 * 4 * 24 * (24 + 48 + 24) / 4},
          {kAll, "ncclReduceScatter", 2 * 2, 2 * 4 * 24 * (24 + 48) / 4}});
}

// Clean steps, and the README's memory.
TESTS(steps) {
  const auto add = [](const std::string& name, const Command& command, long parameters, long activations) {
    step(text("solution.05.step.", name, ".", command.ranks, "ranks"), command,
         {{"parameters", 4 * parameters},
          {"gradients", 4 * parameters},
          {"optimizer", 0},
          {"activations", 4 * activations},
          {"buckets", 0}});
  };
  // Parameters per pair, with h features between its two layers: (I + 1)·h/P + h/P·O + O. Activations: the outputs of
  // every layer (with GELU, twice except for the last layer), and two gradients as wide as the widest input or output.
  add("tensor_parallel", on(2, tensor), 7 * 4 / 2 + 4 / 2 * 2 + 2, 32 * (2 + 2 + 2 * 6));
  add("tensor_parallel.pairs", on(4, tensor, pairs, "--epochs 2"),
      13 * 24 / 4 + 24 / 4 * 6 + 6 + 7 * 48 / 4 + 48 / 4 * 5 + 5, 24 * (2 * 6 + 2 * 6 + 2 * 12 + 5 + 2 * 12));
  // Parameters per layer: (I + 1)·O/P. Activations: the whole output of every layer; this rank's part of each output
  // before its activation function; and two gradients of the widest output.
  add("tensor_parallel_gather", on(2, gather), 7 * 4 / 2 + 5 * 2 / 2, 32 * (4 + 2 + 2 * 4));
  add("tensor_parallel_gather.layers", on(4, gather, columns, "--epochs 2"), 11 * 24 / 4 + 25 * 48 / 4 + 49 * 24 / 4,
      24 * (24 + 48 + 24 + 6 + 12 + 2 * 48));
  // Six pairs of width 64 on 4 ranks: most of the memory is for the activations between the pairs, which are not split.
  const std::string deep = "--layers 64,64,64,64,64,64,64,64,64,64,64,64,64 --max-steps 2";
  step("solution.05.memory.tensor_parallel.4ranks", on(4, tensor, deep), {{"activations", 77824}});
}

// ---- the language model --------------------------------------------------------------------------------------------

const Path gpt = solution("01_single_gpu/gpt");
// 57 words, not divisible by 2, 4 or 8 ranks. The text has 284 samples of 16 positions for training, and 43 each for
// validation and test.
const std::string text_option = " --text " + source("tests/golden/text").path + " ";
const std::string sgd = text_option + "--optimizer sgd --lr 0.1 --no-shuffle --log-every 0 ";

TESTS(gpt_equal) {
  const struct {
    std::string name, options, cut_options;
  } variants[] = {
      {"", "", ""},
      {"sequence", "", "--sequence-parallel --overlap"},
      {"dropout", "--dropout 0.2", "--overlap"},
      {"sequence.dropout", "--dropout 0.2", "--sequence-parallel"},
      {"clip", "--clip-norm 0.2", ""},
      {"sequence.clip", "--clip-norm 0.2 --warmup-steps 5 --lr-schedule cosine", "--sequence-parallel"},
      {"recompute", "--dropout 0.1", "--recompute blocks"},
      {"sequence.recompute", "--dropout 0.1", "--sequence-parallel --recompute blocks"},
      {"accumulation", "--dropout 0.1 --batch-size 4 --accumulation-steps 2", ""},
      {"sequence.accumulation", "--dropout 0.1 --batch-size 4 --accumulation-steps 2", "--sequence-parallel"}};
  for (const auto& [name, options, cut_options] : variants) {
    for (int ranks : {2, 4}) {
      same_gpt(text("solution.05.gpt.", name.empty() ? "" : name + ".", ranks, "ranks"), kGptBound,
               on(1, gpt, sgd, options), on(ranks, tensor, "--model gpt", sgd, options, cut_options));
    }
  }
  // Three ranks; eight ranks, some with a smaller part of the vocabulary; other depths, widths and contexts.
  const std::string third = "--heads 3 --width 18 --context 12 --blocks 3 --vocabulary 31 --dropout 0.1";
  same_gpt("solution.05.gpt.3ranks", kGptBound, on(1, gpt, sgd, third), on(3, tensor, "--model gpt", sgd, third));
  same_gpt("solution.05.gpt.sequence.3ranks", kGptBound, on(1, gpt, sgd, third),
           on(3, tensor, "--model gpt", sgd, third, "--sequence-parallel"));
  const std::string eighth = "--heads 8 --width 32 --blocks 1 --max-steps 10";
  same_gpt("solution.05.gpt.sequence.8ranks", kGptBound, on(1, gpt, sgd, eighth),
           on(8, tensor, "--model gpt", sgd, eighth, "--sequence-parallel"));
  // PyTorch's results, with AdamW.
  const Golden single = golden("tests/golden/gpt_single.json");
  for (int ranks : {1, 2, 4}) {
    golden_test(text("golden.05.gpt.", ranks, "ranks"), single,
                on(ranks, tensor, "--model gpt --shuffle", single.options));
    golden_test(text("golden.05.gpt.sequence.", ranks, "ranks"), single,
                on(ranks, tensor, "--model gpt --shuffle --sequence-parallel", single.options));
  }
}

// The README's traffic formulas: `steps` steps of 8 samples, then validation and test.
TESTS(gpt_ledger) {
  const long T = 16, E = 16, L = 2, R = 8 * T, steps = 5;
  const long evaluated = 2 * 43 * T, batches = 2 * 6;  // rows, and the batches that hold them
  const auto add = [=](const std::string& name, int ranks, long again, const std::string& options) {
    const long each_way = 2 * L + 1;
    ledger("solution.05.gpt.ledger." + name, on(ranks, tensor, "--model gpt", sgd, options, "--max-steps", steps),
           {{kAll, "ncclAllReduce", steps * (2 * each_way + again + 3 + 1) + batches * (each_way + 3),
             4 * (steps * (R * E * (2 * each_way + again) + 3 * R + 1) + evaluated * (E * each_way + 3))}});
    ledger("solution.05.gpt.ledger.sequence." + name,
           on(ranks, tensor, "--model gpt --sequence-parallel", sgd, options, "--max-steps", steps),
           {{kAll, "ncclAllGather", steps * (3 * each_way + again) + batches * each_way,
             4 * E / ranks * (steps * R * (3 * each_way + again) + evaluated * each_way)},
            {kAll, "ncclReduceScatter", steps * (2 * each_way + again) + batches * each_way,
             4 * E / ranks * (steps * R * (2 * each_way + again) + evaluated * each_way)},
            {kAll, "ncclAllReduce", steps * (3 + L + 1 + 1) + batches * 3,
             4 * (steps * (3 * R + 4 * E * L + 2 * E + 1) + evaluated * 3)}});
  };
  add("2ranks", 2, 0, "");
  add("4ranks", 4, 0, "--dropout 0.1 --clip-norm 0.1");
  add("recompute", 2, 2 * L, "--recompute blocks");
}

// Clean steps, and the README's memory on each rank.
TESTS(gpt_steps) {
  const auto add = [](const std::string& name, long ranks, long sequence, const std::string& options) {
    const bool dropout = options.find("dropout") != std::string::npos;
    const bool recompute = options.find("recompute") != std::string::npos;
    const std::string parallel = sequence ? "--sequence-parallel" : "";
    test("solution.05.gpt.step." + name,
         on(static_cast<int>(ranks), tensor, "--model gpt --epochs 2", text_option, parallel, options),
         [=](const Run& run) {
           expect_clean_steps(run);
           const long T = 16, E = 16, H = 4, L = 2, samples = 8;
           const long t = sequence ? T / ranks : T, p = H * T * T / ranks, features = T * E / ranks;
           const long block = 4 * t * E + 4 * t + 12 * features + p;
           for (long rank = 0; rank < ranks; ++rank) {
             const long words = 57 * (rank + 1) / ranks - 57 * rank / ranks;
             const long parameters = 2 * words * E + T * E + 2 * E + L * ((12 * E * E + 7 * E) / ranks + 6 * E);
             const long ends = 2 * t * E + 2 * t + T * words;
             const long blocks = (recompute ? block + L * t * E : L * block) + (dropout ? L * p : 0);
             const long gradients = 2 * std::max({T * words, 4 * features, t * E + std::max(t * E, p)});
             expect_memory(run, static_cast<int>(rank),
                           {{"parameters", 4 * parameters},
                            {"gradients", 4 * parameters},
                            {"optimizer", 8 * parameters},
                            {"activations", 4 * samples * (blocks + ends + gradients + sequence * 2 * T * E)},
                            {"buckets", 0}});
           }
         });
  };
  add("2ranks", 2, 0, "");
  add("4ranks", 4, 0, "--dropout 0.1 --clip-norm 0.1");
  add("recompute", 2, 0, "--recompute blocks");
  add("sequence.2ranks", 2, 1, "");
  add("sequence.4ranks", 4, 1, "--dropout 0.1 --clip-norm 0.1 --overlap");
  add("sequence.recompute", 2, 1, "--recompute blocks --accumulation-steps 2");
}

// A checkpoint of one process resumes on four ranks, theirs on two ranks, and theirs on one; sharded or as one file.
TESTS(gpt_checkpoints) {
  for (const std::string format : {"sharded", "full"}) {
    test("solution.05.gpt.resume." + format, {.ranks = 4}, [=] {
      const std::string options = sgd + "--dropout 0.1 --max-steps ";
      const Run expected = record(on(1, gpt, options + "12"), "expected.jsonl");
      const std::string save = " --checkpoint-format " + format + " --checkpoints ";
      succeed(on(1, gpt, options + "3", save + "a"));
      succeed(on(4, tensor, "--model gpt --sequence-parallel", options + "6 --resume a", save + "b"));
      succeed(on(2, tensor, "--model gpt", options + "9 --resume b", save + "c"));
      const Run resumed = record(on(1, gpt, options + "12 --resume c", save + "d"), "resumed.jsonl");
      expect_same_training(expected, resumed, kGptBound, /*resumed=*/true);
    });
  }
}

TESTS(bad) {
  refusals("solution.05.bad.tensor_parallel.", on(4, tensor), R"(
    odd.#     | --layers 8,8,8,8                  | --layers has 3 layers; expected an even number
    one.#     | --layers 8,8                      | --layers has 1 layer; expected an even number
    unknown.# | --heads 4                         | --heads
    width     | --layers 8,8,8,6,8                | --layers has a width of 6 inside a pair; expected a multiple of the 4 ranks
    rows.#    | --sequence-parallel               | --sequence-parallel is for --model gpt alone
  )");
  refusals("solution.05.bad.gpt.", on(4, tensor, "--model gpt", text_option), R"(
    heads     | --heads 2                         | --heads is '2'; expected a multiple of the 4 ranks
    context   | --context 18 --sequence-parallel  | --context is '18'; --sequence-parallel expects a multiple of the 4 ranks
    words     | --vocabulary 1                    | the vocabulary has . words?; expected one a rank, 4
    layers.#  | --layers 8,8,8                    | --layers is for --model mlp only
  )");
  refusals("solution.05.bad.tensor_parallel_gather.", on(4, gather), R"(
    unknown.# | --tp 4                            | --tp
    width     | --layers 8,8,8,6                  | --layers has a layer with 6 outputs; expected a multiple of the 4
  )");
}

}  // namespace
}  // namespace workshop::tests
