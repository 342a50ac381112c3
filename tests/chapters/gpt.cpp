// SPDX-License-Identifier: Apache-2.0
// The language model, trained with every strategy. Each trains what one process trains, including dropout, clipping and
// learning-rate schedule, with the same losses of validation and test.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

// 12 samples of 16 words are 192 rows. Summing their gradients in a different order costs some 100 roundings of 6e-8.
// Uses SGD, because AdamW would scale up the gradient of the keys' biases, which is zero up to rounding.
constexpr double kBound = 2e-5;

const std::string text_option = "--text " + source("tests/golden/text").path;
const std::string options =
    "--no-shuffle --model-seed 3 --optimizer sgd --lr 0.2 --max-steps 10 --log-every 0 --dropout 0.2 --clip-norm 0.3 "
    "--warmup-steps 3 --lr-schedule cosine --batch-size";

TESTS(gpt_everywhere) {
  const struct {
    std::string name, program;
    int ranks, replicas;
    std::string options;
  } runs[] = {{"ddp", "02_ddp/ddp", 1, 1, ""},
              {"ddp", "02_ddp/ddp", 3, 3, ""},
              {"ddp.accumulation", "02_ddp/ddp", 2, 4, "--accumulation-steps 2"},
              {"ddp.recompute", "02_ddp/ddp", 4, 4, "--recompute blocks"},
              {"ddp_overlap", "02_ddp/ddp_overlap", 2, 2, "--bucket-mb 0.01"},
              {"ddp_overlap", "02_ddp/ddp_overlap", 3, 3, ""},
              {"model_parallel", "03_model_parallel/model_parallel", 1, 1, ""},
              {"model_parallel", "03_model_parallel/model_parallel", 2, 1, ""},
              {"model_parallel", "03_model_parallel/model_parallel", 3, 1, "--recompute blocks"},
              {"model_parallel", "03_model_parallel/model_parallel", 4, 1, "--partition uniform"},
              {"one_process", "03_model_parallel/one_process", 1, 1, "--devices 1"},
              {"one_process.devices", "03_model_parallel/one_process", 1, 1, "--devices 3 --recompute blocks"},
              {"gpipe", "04_pipeline/pipeline", 2, 1, "--schedule gpipe"},
              {"gpipe.blocks", "04_pipeline/pipeline", 3, 1, "--schedule gpipe --recompute blocks"},
              {"1f1b", "04_pipeline/pipeline", 4, 1, "--micro-batches 6"},
              {"1f1b.stages", "04_pipeline/pipeline", 2, 1, "--recompute stages"},
              {"1f1b.interval", "04_pipeline/pipeline", 2, 1, "--checkpoint-interval 2"},
              {"interleaved", "04_pipeline/pipeline", 2, 1, "--schedule interleaved"},
              {"zb-h1", "04_pipeline/pipeline", 3, 1, "--schedule zb-h1"},
              {"zb-v", "04_pipeline/pipeline", 2, 1, "--schedule zb-v"},
              {"interleaved.stages", "04_pipeline/pipeline", 1, 1, "--schedule interleaved --recompute stages"},
              {"zero_0", "06_fsdp/zero", 2, 2, "--stage 0"},
              {"zero_1", "06_fsdp/zero", 2, 2, "--stage 1"},
              {"zero_2", "06_fsdp/zero", 3, 3, "--stage 2"},
              {"zero_2.accumulation", "06_fsdp/zero", 2, 4, "--stage 2 --accumulation-steps 2"},
              {"zero_3", "06_fsdp/zero", 4, 4, "--stage 3 --recompute blocks"},
              {"fsdp", "06_fsdp/fsdp", 2, 2, ""},
              {"fsdp.units", "06_fsdp/fsdp", 3, 3, "--unit-layers 2 --cpu-offload"},
              {"fsdp.hybrid", "06_fsdp/fsdp", 4, 4, "--hybrid 2 --no-reshard-after-forward"}};
  for (const auto& run : runs) {
    same_training(
        text("solution.gpt.", run.name, ".", run.ranks, "ranks"), kBound,
        on(1, solution("01_single_gpu/gpt"), text_option, options, 12),
        on(run.ranks, solution(run.program), "--model gpt", text_option, options, 12 / run.replicas, run.options));
  }
}

// Attention in blocks of keys, of every kind of size, computes what whole rows of scores do.
TESTS(gpt_in_blocks) {
  const Command whole = on(1, solution("01_single_gpu/gpt"), text_option, options, 12);
  for (const int keys : {1, 5, 8, 16, 100}) {
    same_training(text("solution.gpt.in_blocks.", keys), kBound, whole, with(whole, text("--attention-block ", keys)));
  }
  const auto add = [&](const std::string& name, const std::string& program, int ranks, int replicas,
                       const std::string& more) {
    same_training(
        text("solution.gpt.in_blocks.", name, ".", ranks, "ranks"), kBound, whole,
        on(ranks, solution(program), "--model gpt --attention-block 5", text_option, options, 12 / replicas, more));
  };
  add("ddp", "02_ddp/ddp", 2, 2, "--recompute blocks");
  add("one_process", "03_model_parallel/one_process", 1, 1, "--devices 3");
  add("pipeline", "04_pipeline/pipeline", 2, 1, "--schedule interleaved");
  add("tensor_parallel", "05_tensor_parallel/tensor_parallel", 2, 1, "");
  add("sequence_parallel", "05_tensor_parallel/tensor_parallel", 4, 1, "--sequence-parallel");
  add("fsdp", "06_fsdp/fsdp", 2, 2, "");
  add("train_3d", "07_3d/train_3d", 8, 2, "--dp 2 --pp 2 --tp 2 --micro-batches 3 --sequence-parallel --zero 1");
  const Command blocks = with(whole, "--attention-block 5");
  same_training("solution.gpt.in_blocks.recompute", kSameBits, blocks, with(blocks, "--recompute blocks"));
}

// All meshes of 8 ranks, without and with all further options.
TESTS(gpt_on_every_mesh) {
  const std::string deep =
      "--heads 8 --blocks 6 --no-shuffle --model-seed 3 --optimizer sgd --lr 0.2 --max-steps 4 --log-every 0 --dropout "
      "0.2 "
      "--clip-norm 0.3 --warmup-steps 2 --lr-schedule cosine --batch-size";
  const auto add = [&](const std::string& name, int ranks, int dp, int pp, int tp, const std::string& more) {
    same_training(text("solution.gpt.mesh.", name, ".", dp, "x", pp, "x", tp), kBound,
                  on(1, solution("01_single_gpu/gpt"), text_option, deep, 48),
                  on(ranks, solution("07_3d/train_3d"), "--model gpt", text_option, deep, 48 / dp, "--dp", dp, "--pp",
                     pp, "--tp", tp, more));
  };
  for (int dp : {1, 2, 4, 8}) {
    for (int pp = 1; pp <= 8 / dp; pp *= 2) {
      const int tp = 8 / dp / pp;
      std::string more = pp > 2 ? "--recompute stages" : "--recompute blocks";
      if (dp > 1) more += " --zero 1";
      if (tp > 1) more += " --sequence-parallel";
      if (pp == 2) more += " --schedule interleaved";
      add("with_all", 8, dp, pp, tp, more);
    }
  }
  add("plain", 1, 1, 1, 1, "");
  add("plain", 2, 1, 1, 2, "");
  add("plain", 3, 3, 1, 1, "");
  add("plain", 4, 2, 2, 1, "--schedule gpipe");
  add("plain", 4, 2, 1, 2, "--zero 1");
  add("plain", 8, 2, 2, 2, "");
}

// One training run in which every step uses a different strategy and number of ranks.
TESTS(gpt_checkpoints) {
  const struct {
    std::string program;
    int ranks, replicas;
    std::string options;
  } steps[] = {{"02_ddp/ddp", 2, 2, ""},
               {"03_model_parallel/model_parallel", 3, 1, ""},
               {"04_pipeline/pipeline", 2, 1, "--schedule interleaved"},
               {"05_tensor_parallel/tensor_parallel", 4, 1, "--sequence-parallel"},
               {"06_fsdp/zero", 3, 3, "--stage 3"},
               {"06_fsdp/fsdp", 4, 4, "--hybrid 2"},
               {"07_3d/train_3d", 8, 2, "--dp 2 --pp 2 --tp 2 --zero 1"},
               {"02_ddp/ddp_overlap", 1, 1, ""}};
  test("solution.gpt.one_checkpoint", {.ranks = 8}, [=] {
    const std::string training =
        "--no-shuffle --model-seed 3 --optimizer sgd --lr 0.2 --log-every 0 --dropout 0.2 --clip-norm 0.3 "
        "--warmup-steps 4 "
        "--batch-size";
    const Run expected =
        record(on(1, solution("01_single_gpu/gpt"), text_option, training, "24 --max-steps 8"), "expected.jsonl");
    std::string resume;
    int step = 0;
    for (const auto& s : steps) {
      const Run run = record(on(s.ranks, solution(s.program), "--model gpt", text_option, training, 24 / s.replicas,
                                s.options, "--max-steps", ++step, "--checkpoints saved", resume),
                             text("step-", step, ".jsonl"));
      resume = "--resume saved";
      if (step == 8) expect_same_training(expected, run, kBound, /*resumed=*/true);
    }
  });
}

// With the defaults it learns the stories: within 5 % of the best loss that the grammar allows.
TESTS(gpt_learns) {
  test("soak.gpt_learns", {.ranks = 2, .timeout = 1800, .soak = true}, [] {
    const Run learned = succeed(on(2, solution("02_ddp/ddp"), "--model gpt --log-every 0"));
    const auto number_after = [&](const std::string& words) {
      const std::size_t at = learned.output.rfind(words);
      if (at == std::string::npos) fail(report(learned, words, learned.output));
      return std::stod(learned.output.substr(at + words.size()));
    };
    const double best = number_after("the best possible perplexity is ");
    const double found = std::exp(number_after("test loss "));
    EXPECT_TRUE(found >= best && found <= 1.05 * best) << found << ", with " << best << " the best possible";
  });
}

// ---- what is sent and held, as in the READMEs ----------------------------------------------------------------------

// 57 words, samples of 16 positions, width 16, 4 heads, 2 blocks: the defaults with this text.
constexpr long V = 57, T = 16, E = 16, H = 4;
constexpr long kEmbedding = (V + T) * E, kBlock = 12 * E * E + 13 * E, kHead = V * E + 2 * E;
constexpr long kParameters = kEmbedding + 2 * kBlock + kHead, kTensors = 2 + 2 * 12 + 3;
constexpr long kTrained = 284, kEvaluated = 43 + 43;  // samples; validation and test

TESTS(gpt_ledger) {
  const long steps = 18, evaluations = 2;  // batches of 8 on two replicas of 142 samples
  const auto run = [](const std::string& program, const std::string& options) {
    return on(2, solution(program), "--model gpt", text_option, "--clip-norm 0.5", options);
  };
  const long averaged = 4 * (kParameters * steps + steps + evaluations);
  ledger("solution.gpt.ledger.ddp", run("02_ddp/ddp", ""),
         {{kAll, "ncclBroadcast", kTensors, 4 * kParameters},
          {kAll, "ncclAllReduce", kTensors * steps + 1 + evaluations, averaged}});
  ledger("solution.gpt.ledger.ddp_overlap", run("02_ddp/ddp_overlap", ""),
         {{kAll, "ncclBroadcast", 1, 4 * kParameters}, {kAll, "ncclAllReduce", steps + 1 + evaluations, averaged}});

  // The sharded models have 4 units, which are divisible by two ranks. Each step also sums the norm, one float. An
  // evaluation has three batches per rank.
  const long units = 4, shards = 4 * kParameters / 2, batches = 2 * 3;
  const Traffic sums{kAll, "ncclAllReduce", 1 + steps + evaluations, 4 * (2 * steps + evaluations)};
  const auto reduced = [&](long times) { return Traffic{kAll, "ncclReduceScatter", units * times, shards * times}; };
  const auto gathered = [&](long times) { return Traffic{kAll, "ncclAllGather", units * times, shards * times}; };
  ledger("solution.gpt.ledger.zero_1", run("06_fsdp/zero", "--stage 1"), {sums, reduced(steps), gathered(steps + 1)});
  ledger("solution.gpt.ledger.zero_3", run("06_fsdp/zero", "--stage 3"),
         {sums, reduced(steps), gathered(2 * steps + batches + 1)});
  // With prefetching, a forward pass gathers the last unit (the head) again, for a backward pass that an evaluation
  // does not have.
  Traffic fetched = gathered(2 * steps + batches);
  fetched.calls += batches;
  fetched.bytes += 4 * kHead / 2 * batches;
  ledger("solution.gpt.ledger.fsdp", run("06_fsdp/fsdp", ""), {sums, reduced(steps), fetched});
}

// Pipeline stages: any boundary has T·E floats per sample.
TESTS(gpt_ledger_of_stages) {
  const long steps = 36, floats = 4 * T * E, evaluated = 6 + 6;  // batches
  const long up = floats * (kTrained + kEvaluated), down = floats * kTrained;
  const Traffic sums{kAll, "ncclAllReduce", steps + 2, 4 * (steps + 2)};  // norms, validation and test
  ledger("solution.gpt.ledger.model_parallel",
         on(3, solution("03_model_parallel/model_parallel"), "--model gpt", text_option),
         {sums,
          {0, "ncclSend", steps + evaluated, up},
          {0, "ncclRecv", steps + 1, down + 4 * steps},
          {1, "ncclSend", 2 * steps + evaluated, up + down},
          {1, "ncclRecv", 2 * steps + evaluated, up + down},
          {2, "ncclSend", steps + 1, down + 4 * steps},
          {2, "ncclRecv", steps + evaluated, up}});
  const long M = 4;
  ledger("solution.gpt.ledger.pipeline", on(2, solution("04_pipeline/pipeline"), "--model gpt", text_option),
         {sums,
          {0, "ncclSend", M * (steps + evaluated), up},
          {0, "ncclRecv", M * steps + 1, down + 4 * steps},
          {1, "ncclSend", M * steps + 1, down + 4 * steps},
          {1, "ncclRecv", M * (steps + evaluated), up}});
}

// Floats per sample that a block keeps, and the width of its gradients: see chapter 01's README. Each unit of a sharded
// model has its own two gradients.
TESTS(gpt_memory) {
  const long block = 16 * T * E + 4 * T + H * T * T, ends = 2 * T * E + 2 * T + T * V;
  const long wide_block = std::max(4 * T * E, T * E + H * T * T), wide_head = T * V;
  const long samples = 8, whole = 4 * kParameters, shard = whole / 2;
  const auto activations = [&](long kept, long widest) { return 4 * samples * (kept + 2 * widest); };
  const auto run = [](const std::string& program, const std::string& options) {
    return on(2, solution(program), "--model gpt", text_option, "--clip-norm 0.5 --max-steps 8", options);
  };
  const long at_once = activations(2 * block + ends, wide_block);
  const long in_units = activations(2 * block + ends, T * E + 2 * wide_block + wide_head);
  const long recomputed = activations(block + 2 * T * E + ends, T * E + 2 * wide_block + wide_head);
  step("solution.gpt.memory.ddp", run("02_ddp/ddp", ""),
       {{"parameters", whole}, {"gradients", whole}, {"optimizer", 2 * whole}, {"activations", at_once}});
  const Bytes stages[] = {
      {{"parameters", whole}, {"gradients", whole}, {"optimizer", 2 * whole}, {"activations", in_units}},
      {{"parameters", whole}, {"gradients", whole}, {"optimizer", whole}, {"activations", in_units}},
      {{"parameters", whole}, {"gradients", shard}, {"optimizer", whole}, {"buckets", 4 * kBlock}},
      {{"parameters", shard}, {"gradients", shard}, {"optimizer", whole}, {"buckets", 8 * kBlock}}};
  for (int stage : {0, 1, 2, 3}) {
    step(text("solution.gpt.memory.zero_", stage), run("06_fsdp/zero", text("--stage ", stage)), stages[stage]);
  }
  step("solution.gpt.memory.fsdp", run("06_fsdp/fsdp", "--recompute blocks"),
       {{"parameters", shard},
        {"gradients", shard},
        {"optimizer", whole},
        {"buckets", 16 * kBlock},
        {"activations", recomputed}});
}

// A mesh of 2 × 2 × 2 ranks with 1F1B: embedding and first block on the bottom stage, the second block and the head on
// the top stage. Each rank sends and holds what chapters 02, 04, 05 and 06 predict, combined.
void expect_cube(const Run& run, bool sequence, bool zero) {
  const long D = 2, n = 2, M = 4, steps = 8, rows = 8;  // replicas, tensor ranks; rows per replica and step
  const long trained = steps * rows, messages = steps * M, passes = 2 * 3 * M;  // passes: evaluated micro-batches
  const long t = sequence ? T / n : T, features = T * E / n, scores = H * T * T / n;
  const long block = 4 * t * E + 4 * t + 12 * features + scores;
  for (int rank = 0; rank < 8; ++rank) {
    const bool top = rank >= 4;
    const long evaluated = 2 * (rank / 2 % 2 == 0 ? 22 : 21);  // the replica's samples of validation and test
    const long words = V * (rank % n + 1) / n - V * (rank % n) / n;
    const long parameters = (12 * E * E + 7 * E) / n + 6 * E + (top ? words * E + 2 * E : (words + T) * E);
    const long shard = zero ? (parameters + D - 1) / D : parameters;

    // The tensor group sums up T·E floats per sample: twice per block forward and backward, and once more for the
    // embedding (forward) and for the head (backward).
    const long forward = top ? 2 : 3, backward = top ? 3 : 2;
    const Traffic tensor{rank, sequence ? "ncclReduceScatter" : "ncclAllReduce",
                         messages * (forward + backward) + passes * forward,
                         4 * T * E / (sequence ? n : 1) * (trained * (forward + backward) + evaluated * forward)};
    // Sequence parallelism gathers the inputs of three products, and again in the backward pass for the weights'
    // gradients.
    const long in = top ? 3 : 2, back = 5;
    const Traffic gathered{rank, "ncclAllGather", messages * (in + back) + passes * in,
                           4 * T * E / n * (trained * (in + back) + evaluated * in)};
    const Traffic data = zero ? Traffic{rank, "ncclReduceScatter", steps, 4 * steps * shard}
                              : Traffic{rank, "ncclAllReduce", steps, 4 * steps * parameters};
    // The norm is summed over two or three dimensions of the mesh. Further: the mean losses of validation and test, and
    // those of all steps.
    const long squares = (zero ? 3 : 2) * steps;
    Traffic sums{rank, "ncclAllReduce", squares + 2 + (top ? 0 : 1), 4 * (squares + 2 + (top ? 0 : steps))};
    if (top) {  // cross entropy
      sums.calls += 3 * (messages + passes);
      sums.bytes += 4 * 3 * T * (trained + evaluated);
    }
    if (sequence) {  // gradients of the block's two norms, and of the final norm
      sums.calls += messages * (top ? 2 : 1);
      sums.bytes += 4 * messages * (top ? 6 : 4) * E;
    }
    std::map<std::string, Traffic> expected;
    const auto add = [&](const Traffic& more) {
      Traffic& traffic = expected.try_emplace(more.op, Traffic{rank, more.op, 0, 0}).first->second;
      traffic.calls += more.calls;
      traffic.bytes += more.bytes;
    };
    add(tensor);
    add(data);
    add(sums);
    if (sequence) add(gathered);
    if (zero) add({rank, "ncclAllGather", steps, 4 * steps * shard});
    // Activations, gradients, and the losses once per epoch.
    const Traffic up{rank, top ? "ncclRecv" : "ncclSend", messages + passes, 4 * t * E * (trained + evaluated)};
    const Traffic down{rank, top ? "ncclSend" : "ncclRecv", messages + 1, 4 * (t * E * trained + steps)};
    add(up);
    add(down);
    std::vector<Traffic> lines;
    for (const auto& [op, traffic] : expected) lines.push_back(traffic);
    expect_ledger(run, lines, rank);

    const long held = zero ? D * shard : parameters;
    const long kept = top ? block + t * E + 2 * t + T * words : 2 * (t * E + block);  // of one backward pass; of two
    const long inputs = top ? 2 * t * E : 0;
    const long widest = std::max({4 * features, t * E + std::max(t * E, scores), top ? T * words : 0});
    expect_memory(run, rank,
                  {{"parameters", 4 * held},
                   {"gradients", 4 * held},
                   {"optimizer", 8 * shard},
                   {"activations", 4 * (rows / M) * (kept + inputs + 2 * widest + (sequence ? 2 * T * E : 0))},
                   {"buckets", 4 * (rows / M) * (top ? 2 : 1) * t * E}});
  }
  expect_clean_steps(run);
}

TESTS(gpt_cube) {
  const Command cube = on(8, solution("07_3d/train_3d"), "--model gpt --dp 2 --pp 2 --tp 2 --max-steps 8", text_option);
  test("solution.gpt.cube", cube, [](const Run& run) { expect_cube(run, false, false); });
  test("solution.gpt.cube.sharded", with(cube, "--sequence-parallel --zero 1 --clip-norm 0.5"),
       [](const Run& run) { expect_cube(run, true, true); });
}

TESTS(gpt_bad) {
  refusals("solution.gpt.bad.", on(2, solution("02_ddp/ddp"), "--model gpt"), R"(
    model.#      | --model resnet       | --model is 'resnet'; expected mlp, gpt, alexnet
    layers.#     | --layers 6,4,2       | --layers is for --model mlp only
    samples.#    | --samples 8          | --samples is for --model mlp or alexnet only
    validation.# | --validation-samples=8 | --validation-samples is for --model mlp or alexnet only
    parameters.# | --width 8192 --blocks 3 | ^error: --blocks, --width and the vocabulary give 2.4 billion parameters; expected fewer than 2.31$
    heads.#      | --heads 3            | --width is '64'; expected a multiple of the 3 of --heads
    dropout.#    | --dropout 1          | --dropout is '1'; expected
  )");
  refusals("solution.gpt.bad.", on(2, solution("02_ddp/ddp")), R"(
    width.#      | --width 8            | --width is for --model gpt only
    text.#       | --text somewhere     | --text is for --model gpt only
    recompute.#  | --recompute blocks   | --recompute is 'blocks'; expected
  )");
  refusals("solution.gpt.bad.", on(5, solution("03_model_parallel/model_parallel"), "--model gpt"), R"(
    ranks        |                      | --blocks is '2', which makes 4 layers for 5 ranks; expected
  )");
}

}  // namespace
}  // namespace workshop::tests
