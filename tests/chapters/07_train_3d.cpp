// SPDX-License-Identifier: Apache-2.0
// Chapter 07, train_3d: every mesh of ranks trains what one process trains.
#include <algorithm>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path ddp = solution("02_ddp/ddp");
const Path train_3d = solution("07_3d/train_3d");

// The d·B rows of a step and the terms of every product are those of one process, added up in a different order. A sum
// of at most k = 48 products (a step has 48 rows, the widest layer 24 inputs) has an error of at most k·u·G in any
// order, where u = 2⁻²⁴ and G is the sum of their magnitudes. Forward and backward, eight layers are 16 such sums in
// sequence, so a loss or a gradient of two runs differs by at most 2·16·k·u·G = 9.2·10⁻⁵·G. J = 4 steps of SGD with η =
// 0.1 pass 0.4 times this on to a parameter. Gradients of a mean over normal data have G ≤ 1 here. AdamW divides a
// gradient by its own size: with η = 0.001, a relative error of 2 % costs 2·10⁻⁵ per step. So the tests require 10⁻⁴; a
// wrong group costs 10⁻² and more. Measured: 1.2·10⁻⁷.
constexpr double kBound = 1e-4;
// Four pairs of layers, with inner widths divisible by 1, 2, 3, 4, 6 and 8.
const std::vector<long> widths = {6, 24, 5, 24, 4, 24, 7, 24, 3};
const std::string network = "--layers 6,24,5,24,4,24,7,24,3 --activation gelu --samples 960 --log-every 0 ";

// ---- what a rank sends to each of its groups, and what it holds, as in the README ----------------------------------

struct Mesh {
  long data, pipeline, tensor, rows, micro_batches = 4, chunks = 1;  // rows per replica and step
  bool zero = false, adamw = false, gpipe = false;

  int ranks() const { return static_cast<int>(data * pipeline * tensor); }
  Command command(const std::string& options = "") const {
    return on(ranks(), train_3d, network, "--dp", data, "--pp", pipeline, "--tp", tensor, "--batch-size", rows,
              "--micro-batches", micro_batches, "--zero", zero ? 1 : 0,
              adamw ? "--optimizer adamw --lr 0.001" : "--lr 0.1", options);
  }
};

// Expected traffic of one rank, by communicator and operation, and its memory, by kind.
struct Amount {
  long ranks, calls = 0, bytes = 0;
  bool operator==(const Amount&) const = default;
};
struct Expected {
  std::map<std::pair<std::string, std::string>, Amount> ledger;
  Bytes memory;

  void send(const std::string& communicator, const std::string& op, long ranks, long calls, long bytes) {
    Amount& amount = ledger.try_emplace({communicator, op}, Amount{ranks}).first->second;
    amount.calls += calls;
    amount.bytes += bytes;
  }
};

// Returns the layers of a part. All parts get the same number of units; a unit is a pair of layers, or a layer without
// tensor parallelism. The first parts get one unit more each if some are left over.
std::pair<long, long> layers_of(const Mesh& mesh, long part) {
  const long together = mesh.tensor > 1 ? 2 : 1, parts = mesh.pipeline * mesh.chunks;
  const long units = (static_cast<long>(widths.size()) - 1) / together;
  const auto begin = [&](long p) { return together * (p * (units / parts) + std::min(p, units % parts)); };
  return {begin(part), begin(part + 1)};
}

// Adds what one part of the model contributes in `steps` steps with full batches and one gradient bucket per part.
void add_part(const Mesh& mesh, long stage, long part, long steps, Expected& expected) {
  const auto [first, last] = layers_of(mesh, part);
  const long D = mesh.data, P = mesh.pipeline, T = mesh.tensor, M = mesh.micro_batches;
  const bool bottom = part == 0, top = part == P * mesh.chunks - 1;
  const long rows = steps * mesh.rows, messages = steps * M, in = widths[first], out = widths[last];
  long parameters = 0, outputs = 0, widest = 0;
  for (long i = first; i < last; ++i) {
    const bool column = T > 1 && i % 2 == 0, row = T > 1 && i % 2 == 1;
    const long width_in = widths[i] / (row ? T : 1), width_out = widths[i + 1] / (column ? T : 1);
    const bool activated = i + 2 < static_cast<long>(widths.size());  // GELU after all layers except the last
    parameters += width_in * width_out + width_out;
    outputs += width_out * (activated ? 2 : 1);
    widest = std::max({widest, width_out, T > 1 ? width_in : 0});
    // Megatron-LM's g after the row-parallel layer, f before the column-parallel one.
    if (T > 1) expected.send("tensor", "ncclAllReduce", T, messages, 4 * rows * (column ? width_in : width_out));
  }

  const bool zero = mesh.zero && D > 1;
  const long shard = zero ? (parameters + D - 1) / D : parameters, held = zero ? D * shard : parameters;
  if (zero) {
    expected.send("data", "ncclReduceScatter", D, steps, 4 * steps * shard);
    expected.send("data", "ncclAllGather", D, steps, 4 * steps * shard);
  } else if (D > 1) {
    expected.send("data", "ncclAllReduce", D, steps, 4 * steps * parameters);
  }
  if (!bottom) {
    expected.send("pipeline", "ncclRecv", P, messages, 4 * rows * in);
    expected.send("gradients", "ncclSend", P, messages, 4 * rows * in);
  }
  if (!top) {
    expected.send("pipeline", "ncclSend", P, messages, 4 * rows * out);
    expected.send("gradients", "ncclRecv", P, messages, 4 * rows * out);
  }

  expected.memory["parameters"] += 4 * held;
  expected.memory["gradients"] += 4 * held;
  expected.memory["optimizer"] += mesh.adamw ? 8 * shard : 0;
  if (mesh.chunks > 1) return;  // the chunks share one pool, whose size depends on their order
  const long in_flight = mesh.gpipe ? M : std::min(M, P - stage);
  const long inputs = bottom ? 0 : mesh.gpipe ? M : std::min(M, P - stage + 1);
  const long gradients = top ? 0 : mesh.gpipe ? std::min(2L, M) : 1;
  expected.memory["activations"] = 4 * (mesh.rows / M) * (in_flight * outputs + inputs * in + 2 * widest);
  expected.memory["buckets"] = 4 * (mesh.rows / M) * (gradients * out + (bottom ? 0 : 2 * in));
}

void expect_mesh(const Run& run, const Mesh& mesh, long epochs) {
  EXPECT_EQ(run.record.world, mesh.ranks()) << run.command;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const long stage = rank / (mesh.data * mesh.tensor), steps = run.record.steps;
    Expected expected;
    for (long chunk = 0; chunk < mesh.chunks; ++chunk)
      add_part(mesh, stage, chunk * mesh.pipeline + stage, steps, expected);
    // Once per epoch, the last stage sends the losses to the first, which averages them over the replicas.
    if (mesh.pipeline > 1 && stage == mesh.pipeline - 1)
      expected.send("pipeline", "ncclSend", mesh.pipeline, epochs, 4 * steps);
    if (mesh.pipeline > 1 && stage == 0) expected.send("pipeline", "ncclRecv", mesh.pipeline, epochs, 4 * steps);
    if (mesh.data > 1 && stage == 0) expected.send("data", "ncclAllReduce", mesh.data, epochs, 4 * steps);

    decltype(expected.ledger) found;
    for (const auto& line : run.record.collectives) {
      if (line.rank != rank) continue;
      found[{line.communicator, line.op}] = {line.ranks, static_cast<long>(line.calls), static_cast<long>(line.bytes)};
    }
    const auto printed = [](const auto& ledger) {
      std::string lines;
      for (const auto& [key, amount] : ledger) {
        lines += text("\n  ", key.second, " on '", key.first, "': ", amount.calls, " calls, ", amount.bytes, " bytes, ",
                      amount.ranks, " ranks");
      }
      return lines;
    };
    EXPECT_TRUE(found == expected.ledger) << report(run, text("rank ", rank, printed(expected.ledger)), printed(found));
    expect_memory(run, rank, expected.memory);
  }
  expect_clean_steps(run);
}

// Every factorization into data, pipeline and tensor parallelism: with SGD without ZeRO, with AdamW with ZeRO.
TESTS(meshes) {
  for (int ranks : {1, 2, 4, 6, 8}) {
    test(text("solution.07.every_mesh.", ranks), {.ranks = ranks, .timeout = 180}, [=] {
      const long rows = 48;
      for (bool zero : {false, true}) {
        const Command one_process =
            on(1, ddp, network, "--max-steps 4 --batch-size", rows, zero ? "--optimizer adamw --lr 0.001" : "--lr 0.1");
        const Run expected = record(one_process, text("one_process_", zero, ".jsonl"));
        for (long data = zero ? 2 : 1; data <= ranks; ++data) {
          for (long pipeline = 1; pipeline <= ranks; ++pipeline) {
            if (ranks % (data * pipeline) != 0) continue;
            const Mesh mesh{.data = data,
                            .pipeline = pipeline,
                            .tensor = ranks / data / pipeline,
                            .rows = rows / data,
                            .micro_batches = 2,
                            .zero = zero,
                            .adamw = zero};
            const Run run = record(mesh.command("--max-steps 4"), "mesh.jsonl");
            expect_same_training(expected, run, kBound);
            expect_mesh(run, mesh, 1);
          }
        }
      }
    });
  }
  // The other schedules, twice as many parts as stages, several epochs.
  for (const std::string schedule : {"gpipe", "interleaved"}) {
    const Command cube =
        on(8, train_3d, network, "--dp 2 --pp 2 --tp 2 --batch-size 24 --epochs 2 --schedule", schedule);
    same_training("solution.07." + schedule, kBound, on(1, ddp, network, "--batch-size 48 --epochs 2"), cube);
    test("solution.07.mesh." + schedule, with(cube, "--zero 1"), [=](const Run& run) {
      expect_mesh(run,
                  {.data = 2,
                   .pipeline = 2,
                   .tensor = 2,
                   .rows = 24,
                   .chunks = schedule == "interleaved" ? 2 : 1,
                   .zero = true,
                   .gpipe = schedule == "gpipe"},
                  2);
    });
  }
  // ZB-H1 has the sums of 1F1B, in the same order.
  const Command cube = on(8, train_3d, network, "--dp 2 --pp 2 --tp 2 --batch-size 24 --epochs 2");
  same_training("solution.07.zb-h1", kBound, on(1, ddp, network, "--batch-size 48 --epochs 2"),
                with(cube, "--schedule zb-h1"));
  for (const auto& [name, options] : {std::pair("buckets", "--bucket-mb 0.0001"), std::pair("zero", "--zero 1"),
                                      std::pair("clip", "--clip-norm 0.1")}) {
    same_training(text("solution.07.zb-h1.is_1f1b.", name), kSameBits, with(cube, options),
                  with(cube, text(options, " --schedule zb-h1")));
  }
  for (const auto& [name, options] : {std::pair("plain", ""), std::pair("buckets", "--bucket-mb 0.0001"),
                                      std::pair("zero", "--zero 1"), std::pair("clip", "--clip-norm 0.1")}) {
    // The clipping norm sums the squares of the stages, which have other layers in a V.
    same_training(text("solution.07.zb-v.is_1f1b.", name), name == std::string("clip") ? kBound : kSameBits,
                  with(cube, options), with(cube, text(options, " --schedule zb-v")));
  }
  same_training("solution.07.zb-h1.without_tensor", kSameBits,
                on(4, train_3d, network, "--dp 2 --pp 2 --bucket-mb 0.0001 --batch-size 24"),
                on(4, train_3d, network, "--dp 2 --pp 2 --bucket-mb 0.0001 --batch-size 24 --schedule zb-h1"));
  // 190 samples: 95 per replica. The last batch has 3 rows for 4 micro-batches, so one of them is empty.
  const std::string rest =
      "--layers 6,24,5,24,3 --activation relu --samples 190 --epochs 2 --lr 0.1 --log-every 0 --batch-size 92";
  same_training("solution.07.empty_micro_batch", kBound, on(2, ddp, rest), on(8, train_3d, rest, "--pp 2 --tp 2"));
}

// With only one dimension, the program must be bitwise equal to the program of the corresponding chapter.
TESTS(equal) {
  const std::string in_order = network + "--no-shuffle --max-steps 12 --batch-size 24";
  same_training("solution.07.is_ddp", kSameBits, on(2, solution("02_ddp/ddp_overlap"), network),
                on(2, train_3d, network));
  same_training("solution.07.is_pipeline", kSameBits, on(4, solution("04_pipeline/pipeline"), in_order),
                on(4, train_3d, in_order, "--pp 4"));
  same_training("solution.07.is_tensor_parallel", kSameBits,
                on(3, solution("05_tensor_parallel/tensor_parallel"), in_order), on(3, train_3d, in_order, "--tp 3"));
  same_training("solution.07.is_one_process", kSameBits, on(1, ddp, network),
                on(3, train_3d, network, "--pp 3 --micro-batches 1"));
  // A sum over two replicas has only one order, whichever rank forms it, so ZeRO changes nothing.
  for (const std::string optimizer : {"sgd", "adamw"}) {
    const Command run = on(8, train_3d, network, "--dp 2 --pp 2 --tp 2 --batch-size 24 --optimizer", optimizer);
    same_training("solution.07.zero." + optimizer, kSameBits, run, with(run, "--zero 1"));
  }
}

TESTS(golden) {
  const auto add = [](const std::string& name, const std::string& file, int ranks, const std::string& options = "") {
    const Golden run = golden("tests/golden/" + file + ".json");
    golden_test("golden.07." + name, run, on(ranks, train_3d, run.options, options));
  };
  add("data", "ddp2_default", 2);
  add("pipeline", "ddp1_default", 2, "--pp 2");
  add("tensor", "ddp1_default", 2, "--tp 2");
  add("data_pipeline", "ddp2_default", 4, "--pp 2");
  add("data_tensor", "ddp2_default", 4, "--tp 2 --zero 1");
}

// On every rank, a bucket is averaged while the last backward pass still works on the layers below.
TESTS(overlap) {
  const Command run = on(4, train_3d, "--layers 6,5,4,3,2 --pp 2 --micro-batches 2 --bucket-mb 0.00003 --max-steps 3");
  overlaps("solution.07.overlap_is_real", run.in("WORKSHOP_SIMULATE=compute=1M,link=10us+1G/s"));
  overlaps("solution.07.overlap_is_real.zb-h1",
           with(run, "--schedule zb-h1").in("WORKSHOP_SIMULATE=compute=1M,link=10us+1G/s"));
}

// A host that waits for each call, and a host that waits wherever CUDA and NCCL may make it wait. The latter must not
// hang.
TESTS(blocking) {
  const std::string cube = network + "--dp 2 --pp 2 --tp 2 --micro-batches 8 --batch-size 24 --max-steps 3 --schedule ";
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    const Command command = on(8, train_3d, cube + schedule), launching = command.in("CUDA_LAUNCH_BLOCKING=1");
    same_training("solution.07.blocking." + schedule, 0, command, command.in("WORKSHOP_BLOCKING=1"));
    same_training("solution.07.blocking.zero." + schedule, 0, with(command, "--zero 1 --clip-norm 0.5"),
                  with(command, "--zero 1 --clip-norm 0.5").in("WORKSHOP_BLOCKING=1"));
    const std::string name = "solution.07.launch_blocking." + schedule;
    if (schedule == "gpipe") {
      same_training(name, 0, command, launching);
    } else {
      test(name, {.ranks = 8}, [=] {  // the mesh is printed first
        expect_output(run(launching), 2, {"^error: CUDA_LAUNCH_BLOCKING is '1'.* because --schedule " + schedule});
      });
    }
  }
}

// Simulates nodes with `per_node` ranks each.
TESTS(nodes) {
  const auto on_nodes = [](int ranks, int per_node, const std::string& options) {
    const std::string script =
        "export RANK=${OMPI_COMM_WORLD_RANK-0} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE-1} LOCAL_WORLD_SIZE=$0\n"
        "export LOCAL_RANK=$((RANK % LOCAL_WORLD_SIZE))\n"
        "exec \"$@\"";
    return on(ranks, Path{"bash"}, "-c", Path{script}, per_node, train_3d, options);
  };
  const std::string one_machine = "ranks of nodes that are one machine would meet on its GPUs unawares";
  refused("solution.07.nodes.refused", "^error: --tp is '4', which puts ranks 0 to 3, a tensor group, on several nodes",
          on_nodes(4, 2, "--tp 4 --layers 6,4,2"), {.cpu_only = one_machine});
  // Rank 0's own group is within its node; the group of ranks 2 and 3 is not.
  refused("solution.07.nodes.refused_elsewhere",
          "^error: --tp is '2', which puts ranks 2 to 3, a tensor group, on several", on_nodes(6, 3, "--tp 2"),
          {.cpu_only = one_machine});
  test("solution.07.nodes.allowed", {.ranks = 4, .cpu_only = one_machine},
       [=] { succeed(on_nodes(4, 2, "--tp 4 --layers 6,4,2 --allow-tp-across-nodes")); });
  test("solution.07.nodes.within", {.ranks = 4, .cpu_only = one_machine},
       [=] { succeed(on_nodes(4, 2, "--tp 2 --pp 2 --layers 6,4,2,4,2")); });
}

TESTS(bad) {
  refusals("solution.07.bad.", on(4, train_3d, "--layers 8,8,8,8,8"), R"(
    #.product       | --dp 3 --tp 2       | --dp is '3', --pp is '1' and --tp is '2'; expected a product of # rank
    #.divisor       | --pp 3              | --pp is '3' and --tp is '1', which makes 3 ranks a replica; expected a divisor of the #
    #.dp            | --dp 0              | --dp is '0'; expected a whole number of at least 1
    #.large         | --pp 1000000 --tp 1000000 | --pp is '1000000' and --tp is '1000000', which makes 1000000000000 ranks
    #.zero          | --zero 2            | --zero is '2'; expected a whole number from 0 to 1
    #.micro_batches | --micro-batches 5   | --micro-batches is '5'; expected a divisor of --batch-size, 32
    #.chunks        | --chunks 2          | --chunks is '2'; expected 1 unless --schedule is interleaved or zb-v
    #.parts         | --schedule interleaved --chunks 8 | --pp is '1', for stages of 8 out of 4 layers in --layers; expected at least 8 layers
    #.schedule      | --schedule zb       | --schedule is 'zb'; expected gpipe, 1f1b, interleaved, zb-h1, zb-v or a file: zb: cannot be read
  )");
  refusals("solution.07.bad.", on(4, train_3d), R"(
    layers          | --pp 4                                 | --pp is '4', for stages of 1 out of 2 layers in --layers; expected at least 4 layers
    pairs           | --pp 2 --tp 2                          | --pp is '2', for stages of 1 out of 1 pairs of layers in --layers; expected at least 2 p
    odd             | --layers 8,8,8,8 --tp 2                | --layers has 3 layers; expected an even number, in pairs
    width           | --layers 8,6,8 --tp 4                  | --layers has a width of 6 inside a pair; expected a multiple of the 4 ranks
    interleaved     | --pp 4 --layers 4,4,4,4,4,4,4,4,4 --schedule interleaved --micro-batches 2 | --micro-batches is '2'; expected a multiple of the 4 stages
  )");
}

}  // namespace
}  // namespace workshop::tests
