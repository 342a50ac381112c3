// SPDX-License-Identifier: Apache-2.0
// --precision bf16 in every program that supports it: the same training as in one process, half the bytes, and the
// memory that the ZeRO paper assumes.
#include <algorithm>
#include <cmath>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path ddp = solution("02_ddp/ddp");
const Path overlap = solution("02_ddp/ddp_overlap");
const Path compressed = solution("10_less_communication/ddp_compressed");
const Path server = solution("10_less_communication/parameter_server");
const Path local_sgd = solution("10_less_communication/local_sgd");
const Path decentralized = solution("10_less_communication/decentralized");
const Path model_parallel = solution("03_model_parallel/model_parallel");
const Path one_process = solution("03_model_parallel/one_process");
const Path pipeline = solution("04_pipeline/pipeline");
const Path tensor_parallel = solution("05_tensor_parallel/tensor_parallel");
const Path gather = solution("05_tensor_parallel/tensor_parallel_gather");
const Path zero = solution("06_fsdp/zero");
const Path fsdp = solution("06_fsdp/fsdp");
const Path train_3d = solution("07_3d/train_3d");

const std::string nets[][2] = {
    {"mlp", "--precision bf16 --layers 16,32,32,32,8 --activation gelu --samples 192 --epochs 2 --lr 0.05"},
    {"gpt",
     "--precision bf16 --model gpt --blocks 2 --width 32 --heads 4 --context 16 --words 4000 --vocabulary 64 "
     "--optimizer sgd --lr 0.1 --clip-norm 1 --max-steps 8"}};

// Two ways to compute the same number may round it to neighboring bfloat16s, which are 2⁻⁷ apart above 1, where the
// weights of the norms are. Measured: 2·10⁻⁴ for losses, 2⁻⁸ for parameters.
constexpr double kBound = 1.0 / 128;

TESTS(equal) {
  for (const auto& [net, options] : nets) {
    const auto name = [net = net](const std::string& of) { return "solution.bf16." + net + "." + of; };
    const Command serial = on(1, mlp, options, "--no-shuffle --batch-size 8");
    const auto like_serial = [&](const std::string& of, double bound, int ranks, const Path& program,
                                 const std::string& further = "") {
      same_training(name(of), bound, serial, on(ranks, program, options, "--no-shuffle --batch-size 8", further));
    };
    // Cuts between layers change no computation and no rounding. Cuts into micro-batches change the rounding of
    // gradients.
    like_serial("model_parallel", kSameBits, 2, model_parallel);
    like_serial("one_process", kSameBits, 1, one_process, "--devices 2");
    like_serial("pipeline", kBound, 2, pipeline, "--micro-batches 4");
    // Each rank's part of a sum is rounded before the parts are added up.
    like_serial("tensor_parallel", kBound, 2, tensor_parallel);
    if (net == "gpt") like_serial("sequence_parallel", kBound, 2, tensor_parallel, "--sequence-parallel");
    like_serial("train_3d", kBound, 4, train_3d, "--pp 2 --tp 2 --micro-batches 2");

    // Sums over blocks of keys are in float32.
    if (net == "gpt") {
      for (int keys : {3, 16}) {
        like_serial(text("attention_block.", keys), kBound, 1, mlp, text("--attention-block ", keys));
      }
    }

    const Command replicas = on(2, ddp, options, "--batch-size 4");
    for (int ranks : {2, 4}) {
      same_training(name(text("ddp.", ranks)), kBound, on(1, ddp, options, "--batch-size 8"),
                    on(ranks, ddp, options, "--batch-size", 8 / ranks));
    }
    // An average of two is rounded once, however it is computed.
    const auto like_ddp = [&](const std::string& of, const Path& program, const std::string& further = "") {
      same_training(name(of), kSameBits, replicas, on(2, program, options, "--batch-size 4", further));
    };
    like_ddp("overlap", overlap, "--bucket-mb 0.001");
    for (int stage : {1, 2, 3}) like_ddp(text("zero.", stage), zero, text("--stage ", stage));
    like_ddp("fsdp", fsdp);
    like_ddp("fsdp.cpu_offload", fsdp, "--cpu-offload");
    like_ddp("train_3d.zero", train_3d, "--dp 2 --zero 1");
  }
  const std::string alexnet =
      "--precision bf16 --model alexnet --image-size 32 --shrink 16 --samples 64 --max-steps 4 --no-shuffle "
      "--batch-size 8";
  same_training("solution.bf16.alexnet.pipeline", kBound, on(1, mlp, alexnet),
                on(2, pipeline, alexnet, "--micro-batches 2"));
}

TESTS(gathered) {
  const std::string net = nets[0][1] + " --no-shuffle --batch-size 8";
  for (int ranks : {2, 4}) {
    same_training(text("solution.bf16.tensor_parallel_gather.", ranks), kBound, on(1, mlp, net),
                  on(ranks, gather, net));
  }
}

// Chapter 10's programs in modes that train what another program trains; 10_less_communication.cpp has the rest.
TESTS(less_communication) {
  for (const auto& [net, options] : nets) {
    const auto name = [net = net](const std::string& of) { return "solution.bf16." + net + "." + of; };
    const Command serial = on(1, mlp, options, "--no-shuffle --batch-size 8"),
                  replicas = on(2, ddp, options, "--batch-size 4");
    same_training(name("decentralized"), kSameBits, serial,
                  on(1, decentralized, options, "--no-shuffle --batch-size 8"));
    same_training(name("local_sgd"), kSameBits, serial, on(1, local_sgd, options, "--no-shuffle --batch-size 8"));
    // Here, too, the average of two is rounded once: all values are sent, and sent as they are.
    for (const std::string kind : {"none", "topk --ratio 1", "randomk --ratio 1 --error-feedback"}) {
      same_training(name("compressed." + kind.substr(0, kind.find(' '))), kSameBits, replicas,
                    on(2, compressed, options, "--batch-size 4 --bucket-mb 0.001 --compress", kind));
    }
  }
  // One step on each rank and then the mean of the exact weights is one step along the mean of the gradients, except
  // that this mean is not rounded. (Each rank clips its own gradient, so the language model, which clips, is left out.)
  same_training("solution.bf16.local_sgd_is_ddp", kBound, on(2, ddp, nets[0][1], "--batch-size 4"),
                on(2, local_sgd, nets[0][1], "--batch-size 4 --sync-every 1"));
}

// With error feedback, everything is sent eventually, also steps that are too small for a bfloat16 or for the fewer
// bits that are sent. The losses follow those of a float run, and all replicas are equal.
TESTS(compressed) {
  const std::string options =
      "--layers 16,32,8 --activation gelu --samples 256 --batch-size 8 --epochs 3 --lr 0.05 "
      "--error-feedback --compress";
  for (const std::string kind : {"topk --ratio 0.2", "randomk --ratio 0.5", "int8", "sign"}) {
    test("solution.bf16.error_feedback." + kind.substr(0, kind.find(' ')), {.ranks = 3}, [=] {
      const Run floats = record(on(3, compressed, options, kind), "floats.jsonl");
      const Run run = record(on(3, compressed, options, kind, "--precision bf16"), "run.jsonl");
      expect_same_training(run, run, kSameBits);  // all replicas are equal
      ASSERT_EQ(run.record.losses.size(), floats.record.losses.size());
      const auto last_mean = [](const Run& of) {
        double sum = 0;
        for (std::size_t i = of.record.losses.size() / 2; i < of.record.losses.size(); ++i)
          sum += of.record.losses[i].loss;
        return sum / static_cast<double>(of.record.losses.size() - of.record.losses.size() / 2);
      };
      const double expected = last_mean(floats), found = last_mean(run);
      EXPECT_TRUE(std::fabs(found - expected) <= 0.01 * expected) << report(run, text(expected), text(found));
    });
  }
}

// A parameter, its gradient and three floats for the optimizer are 2 + 2 + 12 bytes (Rajbhandari et al., 2020, section
// 3.1). The stage decides which of these bytes, for Ψ parameters, are split among the P ranks.
TESTS(memory) {
  const long psi = 8448, n = 4, whole = 2 * psi, state = 12 * psi, unit = 2 * 1056;
  const Bytes stages[] = {
      {{"parameters", whole}, {"gradients", whole}, {"optimizer", state}, {"buckets", 0}},
      {{"parameters", whole}, {"gradients", whole}, {"optimizer", state / n}, {"buckets", 0}},
      {{"parameters", whole}, {"gradients", whole / n}, {"optimizer", state / n}, {"buckets", unit}},
      {{"parameters", whole / n}, {"gradients", whole / n}, {"optimizer", state / n}, {"buckets", 2 * unit}}};
  const std::string options = "--precision bf16 --optimizer adamw --layers 32,32,32,32,32,32,32,32,32 --max-steps 2";
  step("solution.bf16.memory.mlp", on(1, mlp, options), stages[0]);
  // decentralized: buckets for the exact weights of two neighbors. tensor_parallel_gather: a rank's part of every
  // layer.
  step("solution.bf16.memory.decentralized", on(4, decentralized, options),
       {{"parameters", whole}, {"gradients", whole}, {"optimizer", state}, {"buckets", 2 * 4 * psi}});
  step("solution.bf16.memory.local_sgd", on(4, local_sgd, options, "--outer-momentum 0.9"),
       {{"parameters", whole}, {"gradients", whole}, {"optimizer", state + 8 * psi}, {"buckets", 0}});
  step("solution.bf16.memory.tensor_parallel_gather", on(4, gather, options),
       {{"parameters", whole / n}, {"gradients", whole / n}, {"optimizer", state / n}, {"buckets", 0}});
  step("solution.bf16.memory.ddp", on(4, ddp, options), stages[0]);
  for (int stage : {0, 1, 2, 3})
    step(text("solution.bf16.memory.zero.", stage), on(4, zero, options, "--stage", stage), stages[stage]);
  step("solution.bf16.memory.fsdp", on(4, fsdp, options),
       {{"parameters", whole / n}, {"gradients", whole / n}, {"optimizer", state / n}});
}

// Half the bytes of float32, except for the losses, which are floats.
TESTS(ledger) {
  const int bytes = 2 * 38, steps = 16;
  ledger("solution.bf16.ledger.ddp", on(2, ddp, "--precision bf16"),
         {{kAll, "ncclBroadcast", 4, bytes}, {kAll, "ncclAllReduce", 4 * steps + 1, steps * (bytes + 4)}});
  // The weights that are averaged are the exact ones.
  ledger("solution.bf16.ledger.decentralized", on(2, decentralized, "--precision bf16"),
         {{kAll, "ncclBroadcast", 4, bytes},
          {kAll, "ncclSend", steps, steps * 2 * bytes},
          {kAll, "ncclRecv", steps, steps * 2 * bytes},
          {kAll, "ncclAllReduce", 2, steps * 4 + 2 * bytes}});
  ledger("solution.bf16.ledger.local_sgd", on(2, local_sgd, "--precision bf16 --sync-every 8"),
         {{kAll, "ncclBroadcast", 4, bytes}, {kAll, "ncclAllReduce", 2 + 1, 2 * 2 * bytes + steps * 4}});
  // Four of 38 values, each sent with its index.
  const Traffic parameters{kAll, "ncclBroadcast", 1, bytes}, losses{kAll, "ncclAllReduce", 1, 4 * steps};
  ledger("solution.bf16.ledger.compressed_none", on(2, compressed, "--precision bf16 --compress none"),
         {parameters, {kAll, "ncclAllReduce", steps + 1, steps * (bytes + 4)}});
  ledger("solution.bf16.ledger.compressed_topk", on(2, compressed, "--precision bf16 --compress topk --ratio 0.1"),
         {parameters, losses, {kAll, "ncclAllGather", 2 * steps, steps * 4 * (2 + 4)}});
  ledger("solution.bf16.ledger.compressed_randomk",
         on(2, compressed, "--precision bf16 --compress randomk --ratio 0.1"),
         {parameters, {kAll, "ncclAllReduce", steps + 1, steps * (4 * 2 + 4)}});
  // 43 values, then a float at the next even position: 46 times two bytes.
  ledger("solution.bf16.ledger.parameter_server", on(2, server, "--precision bf16 --layers 6,4,3"),
         {{0, "ncclSend", 33, 33 * 2 * 46},
          {0, "ncclRecv", 32, 32 * 2 * 46},
          {1, "ncclRecv", 33, 33 * 2 * 46},
          {1, "ncclSend", 32, 32 * 2 * 46}});
  ledger("solution.bf16.ledger.tensor_parallel_gather", on(2, gather, "--precision bf16"),
         {{kAll, "ncclAllGather", 32 * 2, 32 * 2 * 32 * (4 + 2) / 2},
          {kAll, "ncclReduceScatter", 32, 32 * 2 * 32 * 4 / 2}});
  // Two units of 8·9 and 8·8 values. Both passes gather every unit, except that the last one is still there in the
  // backward pass.
  ledger("solution.bf16.ledger.zero_1", on(2, zero, "--precision bf16 --stage 1 --layers 7,8,8"),
         {{kAll, "ncclAllGather", 2 * (steps + 1), (steps + 1) * 2 * (64 + 72) / 2},
          {kAll, "ncclReduceScatter", 2 * steps, steps * 2 * (64 + 72) / 2},
          {kAll, "ncclAllReduce", 1, steps * 4}});
}

// WORKSHOP_ORDER ends a run whose work is not ordered.
TESTS(order) {
  for (const auto& [net, options] : nets) {
    test("solution.bf16.in_order." + net, {.ranks = 2, .cpu_only = "only the cpu backend checks the order"},
         [options = options] {
           for (const Command& command :
                {on(2, overlap, options), on(2, compressed, options), on(2, decentralized, options),
                 on(2, fsdp, options), on(2, pipeline, options, "--micro-batches 4")})
             succeed(with(command, "--log-every 0").in("WORKSHOP_ORDER=1"));
         });
  }
}

// A checkpoint has the exact weights. A resumed run ends with the same bits, with another strategy too. In the other
// precision it starts where this one stopped, up to rounding.
TESTS(resume) {
  const std::string training = "--optimizer adamw --layers 7,16,5 --samples 96 --epochs 3 --log-every 0 --batch-size 4";
  struct {
    std::string name;
    int ranks;
    Path program;
    std::string options;
  } strategies[] = {{"mlp", 1, mlp, ""},
                    {"ddp", 2, ddp, ""},
                    {"zero_1", 2, zero, "--stage 1"},
                    {"fsdp", 2, fsdp, ""},
                    {"train_3d", 4, train_3d, "--dp 2 --tp 2 --zero 1"},
                    {"compressed", 2, compressed, "--error-feedback"},
                    {"decentralized", 3, decentralized, "--average-at-end"},
                    {"local_sgd", 2, local_sgd, "--sync-every 3 --outer-momentum 0.9"}};
  for (const auto& s : strategies) {
    test("solution.bf16.resume." + s.name, {.ranks = s.ranks}, [=] {
      const Command command = on(s.ranks, s.program, training, "--precision bf16", s.options);
      const Run expected = record(with(command, "--max-steps 12"), "expected.jsonl");
      succeed(with(command, "--max-steps 5 --checkpoints saved"));
      const Run resumed = record(with(command, "--max-steps 12 --resume saved"), "resumed.jsonl");
      expect_same_training(expected, resumed, kSameBits, /*resumed=*/true);
    });
  }
  test("solution.bf16.resume.other_strategy", {.ranks = 2}, [=] {
    const Command from = on(2, ddp, training, "--precision bf16"), to = on(2, fsdp, training, "--precision bf16");
    const Run expected = record(with(from, "--max-steps 12"), "expected.jsonl");
    succeed(with(from, "--max-steps 5 --checkpoints saved"));
    expect_same_training(expected, record(with(to, "--max-steps 12 --resume saved"), "resumed.jsonl"), kSameBits,
                         /*resumed=*/true);
  });
}

// Small steps accumulate in the exact weights. Applied to the rounded weights they would change nothing, because each
// is less than half the distance between two bfloat16s.
TESTS(small_steps) {
  test("solution.bf16.small_steps", on(1, mlp, "--precision bf16 --optimizer adamw --lr 0.00002 --epochs 8"),
       [](const Run& run) {
         const Run floats = record(on(1, mlp, "--optimizer adamw --lr 0.00002 --epochs 8"), "floats.jsonl");
         expect_same_training(floats, run, 1.0 / 256);
         const Run begin =
             record(on(1, mlp, "--precision bf16 --optimizer adamw --lr 1e-30 --max-steps 1"), "begin.jsonl");
         double moved = 0;
         for (std::size_t p = 0; p < run.record.parameters.size(); ++p) {
           const auto &from = begin.record.parameters[p].values, &to = run.record.parameters[p].values;
           for (std::size_t i = 0; i < to.size(); ++i) moved = std::max(moved, std::fabs(to[i] - from[i]));
         }
         EXPECT_TRUE(moved >= 0.003) << report(run, "weights that move by 256 steps of 0.00002 or less", text(moved));
       });
}

TESTS(refused) {
  refusals("solution.bf16.refused.", on(1, mlp), R"(
    type           | --precision fp16                      | --precision is 'fp16'; expected fp32, bf16
    gradient_check | --precision bf16 --gradient-check     | --gradient-check is for --precision fp32 alone
  )");
}

}  // namespace
}  // namespace workshop::tests
