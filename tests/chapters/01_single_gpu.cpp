// SPDX-License-Identifier: Apache-2.0
// Chapter 01. The golden tests compare its numbers with PyTorch's; the tests here cover the rest.
#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const Path mlp = solution("01_single_gpu/mlp");
const Path gpt = solution("01_single_gpu/gpt");
const std::string text_option = " --text " + source("tests/golden/text").path + " ";

// Gradients against central differences of the loss, through every activation and at several depths.
TESTS(gradients) {
  const auto add = [](const std::string& name, const Command& command) {
    test("solution.01.gradients." + name, {}, [=] { succeed(command); });
  };
  for (const std::string activation : {"none", "relu", "gelu"}) {
    add(activation, on(1, mlp, "--gradient-check --layers 7,9,8,5 --max-steps 1 --activation", activation));
  }
  // If the stream does not wait for the copy that shifts a parameter, the loss may be computed from the old value.
  add("in_order", on(1, mlp, "--gradient-check --layers 3,2,2 --max-steps 1").in("WORKSHOP_ORDER=1"));
}

// Returns the programs of all chapters, as listed in CMakeLists.txt.
std::vector<std::string> programs() {
  std::vector<std::string> names;
  std::ifstream list(source("CMakeLists.txt").path);
  for (std::string line; std::getline(list, line);) {
    std::smatch chapter;
    if (!std::regex_match(line, chapter, std::regex(R"(workshop_chapter\((\w+) (.*)\))"))) continue;
    std::istringstream words(chapter[2]);
    for (std::string program; words >> program;) names.push_back(text(chapter[1], "/", program));
  }
  return names;
}

// Every training program must use one cuBLAS handle, and hence one workspace, per stream: with an MLP, and with the
// language model if it supports it. programs() finds new programs automatically. WORKSHOP_BLOCKING also shows that no
// program hangs where CUDA and NCCL block the host.
TESTS(handles) {
  test("solution.01.shared_handles", {}, [] { succeed(on(1, {WORKSHOP_BUILD "/tests/chapters/shared_handles"})); });
  const std::map<std::string, std::string> options = {{"03_model_parallel/one_process", "--devices 2"},
                                                      {"04_pipeline/pipeline", "--schedule interleaved"},
                                                      {"06_fsdp/fsdp", "--cpu-offload"},
                                                      {"07_3d/train_3d", "--pp 2"}};
  const std::set<std::string> own_model = {"02_ddp/long_run", "05_tensor_parallel/tensor_parallel_gather"};
  for (const std::string& name : programs()) {
    if (name.starts_with("00_") || name == "07_3d/plan") continue;
    const bool alone = name.starts_with("01_") || name.ends_with("/one_process") || name.ends_with("/moe");
    const bool only_gpt = name == "01_single_gpu/gpt" || name.starts_with("08_") || name.starts_with("09_");
    const Command command =
        on(alone ? 1 : 2, solution(name), "--max-steps 2 --log-every 0", options.contains(name) ? options.at(name) : "")
            .in("WORKSHOP_BLOCKING=1");
    test("solution.handles." + name.substr(name.find('/') + 1), {.ranks = 2}, [=] {
      const auto expect_one = [](const Run& run) {
        EXPECT_EQ(static_cast<int>(run.record.host.size()), run.record.world) << run.command;
        for (const auto& [rank, host] : run.record.host) {
          EXPECT_EQ(host.at("handles"), 1) << report(run, "a handle a stream", text(host.at("handles"), " on one"));
        }
      };
      expect_one(record(with(command, only_gpt ? "" : "--layers 6,8,4,8,2")));
      if (!only_gpt && !own_model.contains(name))
        expect_one(record(with(command, "--model gpt --blocks 4", text_option)));
    });
  }
}

// Clean steps, and the README's formulas for traffic and memory. 6,4,2 has 38 parameters. The activations of 32 rows
// are the outputs (with GELU, those of the first layer twice) and two gradients of the widest output.
TESTS(steps) {
  const long parameters = 7 * 4 + 5 * 2;
  step("solution.01.step", on(1, mlp, "--epochs 2"),
       {{"parameters", 4 * parameters},
        {"gradients", 4 * parameters},
        {"optimizer", 0},
        {"activations", 4 * 32 * (4 + 2 + 2 * 4)},
        {"buckets", 0}});
  step("solution.01.step.adamw", on(1, mlp, "--optimizer adamw --activation gelu"),
       {{"parameters", 4 * parameters},
        {"gradients", 4 * parameters},
        {"optimizer", 8 * parameters},
        {"activations", 4 * 32 * (2 * 4 + 2 + 2 * 4)},
        {"buckets", 0}});
}

// The language model with 57 words, 16 positions of width 16, 4 heads and 2 blocks, for 8 samples. The formulas follow
// the README's list of what a block keeps. With recomputation, each block keeps its output, and all blocks share the
// buffers of one.
TESTS(gpt) {
  const long V = 57, T = 16, E = 16, H = 4, blocks = 2, samples = 8;
  const long parameters = 2 * V * E + T * E + blocks * (12 * E * E + 13 * E) + 2 * E;
  const long block = 16 * T * E + 4 * T + H * T * T, ends = 2 * T * E + 2 * T + T * V;
  const long gradients = 2 * std::max({T * V, 4 * T * E, T * E + H * T * T});
  const auto memory = [&](long of_blocks) {
    return Bytes{{"parameters", 4 * parameters},
                 {"gradients", 4 * parameters},
                 {"optimizer", 8 * parameters},
                 {"activations", 4 * samples * (of_blocks + ends + gradients)}};
  };
  step("solution.01.gpt.step", on(1, gpt, text_option, "--epochs 2 --clip-norm 0.1"), memory(blocks * block));
  // Of the scores, blocks of C keys keep only the logarithms of the rows' sums, and have room for one head at a time.
  for (const long C : {5, 16}) {
    const long kept = block - H * T * T + H * T, room = 2 * T * C + T * (E / H + 2);
    step(text("solution.01.gpt.step.attention_block.", C),
         on(1, gpt, text_option, "--dropout 0.2 --attention-block", C),
         {{"activations", 4 * samples * (blocks * (kept + room) + ends + 2 * std::max(T * V, 4 * T * E))}});
  }
  step("solution.01.gpt.step.recompute", on(1, gpt, text_option, "--recompute blocks"), memory(block + blocks * T * E));
  same_training("solution.01.gpt.recompute", kSameBits, on(1, gpt, text_option, "--dropout 0.2"),
                on(1, gpt, text_option, "--dropout 0.2 --recompute blocks"));
  // The same samples in one batch and in two, with the same dropout mask. Sums over 16 positions and 8 samples are
  // added up in a different order: some 100 roundings of 6e-8. SGD, because AdamW would scale up these rounding errors.
  same_training("solution.01.gpt.accumulation", 1e-5,
                on(1, gpt, text_option, "--optimizer sgd --lr 0.1 --dropout 0.2 --no-shuffle"),
                on(1, gpt, text_option, "--optimizer sgd --lr 0.1 --dropout 0.2 --no-shuffle --batch-size 4",
                   "--accumulation-steps 2"));
}

TESTS(bad) {
  refusals("solution.01.gpt.bad.", on(1, gpt), R"(
    heads    | --width 10 --heads 4 | --width is '10'; expected a multiple of the 4 of --heads
    dropout  | --dropout 1          | --dropout is '1'; expected a number of at least 0 and less than 1
    block    | --attention-block -1 | --attention-block is '-1'; expected
    schedule | --lr-schedule linear | --lr-schedule is 'linear'; expected constant, cosine
    text     | --text /nowhere      | /nowhere
    too_big  | --batch-size 999999999 | more than 2147483647; expected less
    stories  | --words 60000 --context 6000 --batch-size 8 | --context is '6000'; expected fewer than the 6000 words of the shortest part of the stories
    blocks   | --blocks 1025        | --blocks is '1025'; expected
  )");
  // A device that is too small for the model: one line, status 1.
  test("solution.01.out_of_memory", {}, [] {
    expect_output(run(on(1, mlp, "--layers 1024,1024,1024").in("WORKSHOP_DEVICE_MEMORY=1M")), 1,
                  {"cudaMalloc.*cudaErrorMemoryAllocation"});
  });
  // A training that leaves no memory to measure the device in ends all the same.
  test("solution.01.no_memory_for_the_peak", {.cpu_only = "WORKSHOP_DEVICE_MEMORY is a setting of the cpu backend"},
       [] {
         expect_output(run(on(1, gpt, "--words 4000 --max-steps 30 --log-every 0").in("WORKSHOP_DEVICE_MEMORY=10M")), 0,
                       {"tokens/s, [0-9.e-]+ TFLOP/s(\\n|$)"});
       });
  refusals("solution.01.bad.", on(2, mlp), "ranks | | mlp trains on one GPU; it was started on 2 ranks");
  refusals("solution.01.bad.", on(1, mlp), R"(
    layers | --layers 6                 | --layers is '6'; expected two or more
    record | --record /nowhere/run.jsonl | --record is '/nowhere/run.jsonl', which cannot be written
  )");
}

}  // namespace
}  // namespace workshop::tests
