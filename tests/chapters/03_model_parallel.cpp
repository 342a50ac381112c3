// SPDX-License-Identifier: Apache-2.0
// Chapter 03: the ranks together compute what one process computes, in the same order, so results are bitwise equal.
#include <algorithm>
#include <cmath>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path model_parallel = solution("03_model_parallel/model_parallel");
const Path one_process = solution("03_model_parallel/one_process");

// Compares one GPU with several ranks, with the same options and hence the same batches.
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
  // One step with a learning rate so large that the parameters become -η·gradient: compares gradients bit by bit.
  for (int ranks : {2, 3, 8}) equals_mlp("gradients", ranks, deep + "--activation gelu --lr 1e9 --max-steps 1");

  for (int ranks : {1, 2}) {
    golden_test(text("golden.03.", ranks), golden("tests/golden/single_default.json"), on(ranks, model_parallel));
  }
}

// Traffic, as in the README: the activations of every sample over every boundary, and the gradients back.
TESTS(ledger) {
  const int samples = 100, batches = 4, epochs = 2;
  // The layer widths of 12,10,8,6,4 at the boundaries of 1, 2, 3 and 4 parts.
  for (const std::vector<int>& boundaries : {std::vector<int>{}, {8}, {8, 6}, {10, 8, 6}}) {
    const int last = static_cast<int>(boundaries.size());
    std::vector<Traffic> expected;
    for (int rank = 0; rank <= last; ++rank) {
      const int neighbors = (rank > 0) + (rank < last);
      const int width = (rank > 0 ? boundaries[rank - 1] : 0) + (rank < last ? boundaries[rank] : 0);
      // Once per epoch the last rank sends the losses of its batches to rank 0.
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

// Clean steps, and the README's memory.
TESTS(steps) {
  step("solution.03.step.1", on(1, model_parallel, "--epochs 2"),  // same as chapter 01's program
       {{"parameters", 152}, {"gradients", 152}, {"optimizer", 0}, {"activations", 1792}, {"buckets", 0}});
  // 12,10,8,6,4 on three ranks: layers 0 and 1, layer 2, layer 3. Activations: each output before and, except for the
  // last layer, after the activation function; two gradients of the widest output; and on the ranks that receive, the
  // input and its gradient.
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

// On a simulated machine with fast links, the stages take the same time except for the loss, the update and the
// activation function, which the last layer does not have. Each of the P ranks idles (P - 1)/P of the time, both by its
// own record and on the timeline, measured from its first idle span to its last.
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

// ---- one process with several devices ------------------------------------------------------------------------------

TESTS(one_process_equal) {
  const std::string options = "--samples 500 --epochs 2 --log-every 0 --validation-samples 60";
  const std::string deep = " --layers 16,24,9,24,17,8,8,12,3 --activation ";
  for (int devices : {1, 2, 3}) {
    for (const char* optimizer : {"sgd --weight-decay 0.1", "adamw"}) {
      for (const char* activation : {"relu", "gelu"}) {
        const std::string all = text(options, deep, activation, " --optimizer ", optimizer);
        same_training(
            text("solution.03.one_process.", activation, ".", std::string(optimizer).substr(0, 3), ".", devices),
            kSameBits, on(1, mlp, all), on(1, one_process, all, "--devices", devices));
      }
    }
  }
  const std::string gradients =
      "--layers 16,24,9,24,17,8,8,12,3 --activation gelu --lr 1e9 --max-steps 1 --log-every 0";
  same_training("solution.03.one_process.gradients", kSameBits, on(1, mlp, gradients),
                on(1, one_process, gradients, "--devices 3 --partition parameters"));
  // The sum of squares is rounded as on three ranks.
  const std::string clipped = "--layers 16,24,9,24,17,8,8,12,3 --clip-norm 0.1 --log-every 0";
  same_training("solution.03.one_process.clip_norm", 1e-6, on(3, model_parallel, clipped),
                on(1, one_process, clipped, "--devices 3"));
}

// Copies: activations and gradients over each boundary, the targets, and the loss there and back.
TESTS(one_process_ledger) {
  const int samples = 100, batches = 4, epochs = 2;
  for (const std::vector<int>& boundaries : {std::vector<int>{}, {8}, {8, 6}, {10, 8, 6}}) {
    const int devices = static_cast<int>(boundaries.size()) + 1, crossed = devices - 1;
    int width = 0;
    for (int of_boundary : boundaries) width += of_boundary;
    std::vector<Traffic> expected;
    if (devices > 1) {
      expected = {{0, "cudaMemcpyPeerAsync", epochs * batches * (2 * crossed + 3),
                   4 * epochs * (samples * (2 * width + 4) + 2 * batches)}};
    }
    ledger(text("solution.03.one_process.ledger.", devices),
           on(1, one_process, "--layers 12,10,8,6,4 --samples", samples, "--epochs", epochs, "--devices", devices),
           expected);
  }
  // The norm goes from device to device and back, one float each time.
  ledger("solution.03.one_process.ledger.norm",
         on(1, one_process, "--layers 12,8,6,4 --clip-norm 0.1 --devices 3 --samples", samples),
         {{0, "cudaMemcpyPeerAsync", batches * (2 * 2 + 3 + 2 * 2),
           4 * (samples * (2 * (8 + 6) + 4) + 2 * batches + 2 * 2 * batches)}});
}

// Each device has its own account. It holds what the rank of model_parallel holds; the last device also holds the
// targets of a batch and the loss.
TESTS(one_process_memory) {
  const std::string options = "--layers 12,10,8,6,4 --activation gelu --optimizer adamw --epochs 2";
  test("solution.03.one_process.memory", on(1, one_process, options, "--devices 3"), [=](const Run& run) {
    const long parameters[] = {13 * 10 + 11 * 8, 9 * 6, 7 * 4};
    const long columns[] = {2 * 10 + 2 * 8 + 2 * 10, 2 * 6 + 2 * 6 + 2 * 8, 4 + 2 * 4 + 2 * 6};
    // With fewer GPUs, parts share them.
    if (kCuda && run.record.other_peaks.size() < 2)
      GTEST_SKIP() << "it takes three GPUs to tell the parts' memory apart";
    ASSERT_EQ(run.record.other_peaks.size(), 2u);
    for (int device : {0, 1, 2}) {
      const auto& peaks = device == 0 ? run.record.peaks.at(0) : run.record.other_peaks.at({0, device});
      EXPECT_EQ(peaks.at("parameters"), 4 * parameters[device]) << device;
      EXPECT_EQ(peaks.at("gradients"), 4 * parameters[device]) << device;
      EXPECT_EQ(peaks.at("optimizer"), 8 * parameters[device]) << device;
      EXPECT_EQ(peaks.at("activations"), 4 * 32 * columns[device]) << device;
      if (kCuda) continue;
      const auto& held = device == 0 ? run.record.device.at(0) : run.record.other_devices.at({0, device});
      EXPECT_EQ(held.at("in_use"), held.at("accounted")) << device;
    }
    if (kCuda) return;
    const auto& found = run.record.host.at(0);
    const std::map<std::string, double> host = {
        {"allocations", 0}, {"synchronizations", 0}, {"events", found.at("events")}, {"devices", 3}, {"handles", 1}};
    EXPECT_EQ(found, host);
  });
  // A model that does not fit on one device of 12 MB.
  const std::string large =
      "--layers 512,512,512,512,512,512,512,512,512 --batch-size 64 --samples 128 --log-every 0 --devices";
  test("solution.03.one_process.limit", {.cpu_only = "WORKSHOP_DEVICE_MEMORY is a setting of the cpu backend"}, [=] {
    expect_output(run(on(1, one_process, large, 1).in("WORKSHOP_DEVICE_MEMORY=12M")), 1, {"out of memory"});
    succeed(on(1, one_process, large, 2).in("WORKSHOP_DEVICE_MEMORY=12M"));
  });
}

// On a machine where only kernels and links take time: from the first forward pass of a step to the end of its backward
// pass, no two devices work at the same time and no copy overlaps with anything. The only exception is the copy of the
// loss (four bytes) to the first device, during which the last device works.
TESTS(one_process_timeline) {
  test("solution.03.one_process.timeline", {.cpu_only = "simulates a machine"}, [] {
    succeed(on(1, one_process, "--layers 64,64,64,64,64 --activation relu --max-steps 12 --devices 3",
               "--timeline timeline.json")
                .in("WORKSHOP_SIMULATE=compute=1G,link=20us+1G/s"));
    std::vector<Span> busy;
    int copies = 0;
    const auto timeline = read_timeline("timeline.json");
    for (const Span& span : timeline.at(0)) {
      const bool copy = span.name == "cudaMemcpyPeerAsync";
      // Each part runs its update after its own backward pass, while the parts below still compute.
      if (!copy && span.name != "loss" && !span.name.starts_with("forward") && !span.name.starts_with("backward"))
        continue;
      copies += copy;
      if (copy && span.stream == 0 && span.duration < 0.0201) continue;  // 20 us and 4 bytes
      busy.push_back(span);
    }
    EXPECT_EQ(copies, 12 * (2 * 2 + 3));
    EXPECT_GT(busy.size(), 12u * (2 * 2 + 2 + 4 + 4));
    std::ranges::sort(busy, {}, &Span::begin);
    for (std::size_t i = 1; i < busy.size(); ++i) {
      const Span &before = busy[i - 1], &span = busy[i];
      // CUDA and the cpu backend return milliseconds as floats, so times of about a second have only four decimal
      // digits left.
      EXPECT_LE(before.end(), span.begin + 1e-4) << before.name << " at " << before.begin << " and " << span.name;
    }
  });
}

TESTS(one_process_bad) {
  refusals("solution.03.one_process.bad.", on(1, one_process), R"(
    devices.1 | --devices 0            | --devices is '0'; expected a whole number from 1 to 1024
    layers.1  | --devices 3            | --layers is '6,4,2', 2 layers for 3 devices; expected a layer a device or more
  )");
  refusals("solution.03.one_process.bad.", on(2, one_process),
           "ranks.2 | | one_process is one process for all devices; it was started on 2 ranks");
  const Command on_one_gpu =
      on(1, one_process, "--layers 6,6,6,4 --max-steps 3 --devices 3").in("WORKSHOP_DEVICE_COUNT=1");
  const std::string cpu_only = "WORKSHOP_DEVICE_COUNT is a setting of the cpu backend";
  refused("solution.03.one_process.bad.forbidden",
          "--devices is '3' on a node with 1 GPU, and WORKSHOP_SHARE_GPU=0 forbids",
          on_one_gpu.in("WORKSHOP_SHARE_GPU=0"), {.cpu_only = cpu_only});
  test("solution.03.one_process.shared", {.cpu_only = cpu_only}, [=] {
    expect_output(run(on_one_gpu), 0,
                  {"^note: 3 parts share 1 GPU: results are correct, memory and times are meaningless"});
  });
  test("solution.03.one_process.idle", {.cpu_only = cpu_only}, [=] {
    const Command two = on(1, one_process, "--max-steps 3");
    expect_output(run(two.in("WORKSHOP_DEVICE_COUNT=3")), 0, {"^warning: this node has 3 GPUs .* 1 stays idle"});
    const Run all = run(two.in("WORKSHOP_DEVICE_COUNT=2"));
    EXPECT_EQ(all.output.find("warning"), std::string::npos) << all.output;
  });
}

TESTS(bad) {
  refusals("solution.03.bad.", on(4, model_parallel), R"(
    partition.# | --layers 9,8,7,6,5 --partition even           | --partition is 'even'; expected uniform, parameters, time
    batch.#     | --layers 9,8,7,6,5 --batch-size 0             | --batch-size is '0'; expected a whole number of at least 1
    unknown.#   | --layers 9,8,7,6,5 --micro-batches 2          | --micro-batches
    ranks.4     | --layers 5,4,3,2 --partition parameters       | --layers is '5,4,3,2', 3 layers for 4 ranks; expected
  )");
  refusals("solution.03.bad.", on(3, model_parallel),
           "ranks.3 | | --layers is '6,4,2', 2 layers for 3 ranks; expected a layer a rank or more");
}

}  // namespace
}  // namespace workshop::tests
