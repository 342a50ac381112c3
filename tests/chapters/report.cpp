// SPDX-License-Identifier: Apache-2.0
// ./workshop report: times, memory and traffic of the ranks, and a pipeline's schedule.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/harness/expect.h"
#include "tools/report/timeline.h"
#include "tools/shared/json.h"

namespace workshop::tests {
namespace {

nlohmann::json report_of(const std::vector<std::string>& files) {
  std::vector<std::string> arguments{"--json"};
  arguments.insert(arguments.end(), files.begin(), files.end());
  return tools::parse_json(script(Path{WORKSHOP_BUILD "/tools/report"}, arguments).output).at("runs").at(0);
}

// From the timeline, the report must find the same busy and idle times per rank as the program's own clocks.
TESTS(report) {
  test("solution.report.idle", {.ranks = 2, .cpu_only = "the machine is simulated"}, [] {
    const Run run = record(
        on(2, solution("04_pipeline/pipeline"), "--layers 64,64,64,64,16 --max-steps 12", "--timeline timeline.json")
            .in("WORKSHOP_SIMULATE=compute=100G,link=2us+10G/s"));
    const tools::Timeline timeline = tools::read_timeline("timeline.json");
    for (const int rank : {0, 1}) {
      const double recorded = run.record.values.at({rank, "idle share"});
      const tools::Shares seen =
          tools::typical_shares(tools::shares(tools::activity(timeline, rank), tools::counted_steps(timeline, rank)));
      EXPECT_TRUE(std::fabs(1 - seen.compute - recorded) <= 0.01)
          << tests::report(run, text("rank ", rank, " idles ", recorded), text(1 - seen.compute, " in the timeline"));
      const std::vector<tools::Wait> waits = tools::waits(timeline, rank);
      EXPECT_TRUE(!waits.empty() && waits[0].rank == 1 - rank && waits[0].operation == "ncclRecv")
          << tests::report(run, text("rank ", rank, " waits for the other one"), text(waits.size(), " causes"));
    }
    EXPECT_EQ(timeline.run, run.record.line);
  });
}

// ---- the formulas --------------------------------------------------------------------------------------------------

// Every rank must hold and send what the report's formulas say, within 2 % or 64 bytes. The formulas omit the padding
// of shards, and what is sent only once in a run or once in an epoch of 100 steps.
void held_and_sent(const std::string& name, int ranks, const Path& program, const std::string& options,
                   std::size_t kinds = 5) {
  test("solution.report.formulas." + name, {.ranks = ranks}, [=] {
    const Run run = record(on(ranks, program, options, "--log-every 0"), "run.jsonl");
    const auto report = report_of({"run.jsonl"});
    ASSERT_EQ(report.at("formulas").size(), ranks) << run.command;
    for (const auto& formula : report.at("formulas")) {
      const int rank = formula.at("rank");
      EXPECT_GE(formula.at("memory").size(), kinds) << run.command;
      const auto compare = [&](const std::string& what, double found, double expected) {
        EXPECT_TRUE(std::fabs(found - expected) <= std::max(0.02 * expected, 64.0))
            << tests::report(run, text("rank ", rank, ", ", what, ": ", expected), text(found));
      };
      for (const auto& [kind, bytes] : formula.at("memory").items())
        compare(kind, run.record.peaks.at(rank).at(kind), bytes);
      for (const auto& [group, bytes] : formula.at("sent").items())
        compare("sent, " + group, formula.at("measured").value(group, 0.0), bytes);
      // No formula predicts how many updates each worker of a parameter server makes.
      if (program.path.ends_with("parameter_server") && rank > 0) continue;
      for (const auto& [group, bytes] : formula.at("measured").items())
        compare("sent, " + group, bytes, formula.at("sent").value(group, 0.0));
    }
  });
}

// 800 samples per replica: 100 steps of 8.
const std::string deep = "--layers 24,32,16,32,16,32,24,32,8 --activation gelu --optimizer adamw --batch-size 8 ";
const std::string of_one = deep + "--samples 800 ", of_three = deep + "--samples 2400 ";

TESTS(formulas) {
  held_and_sent("mlp", 1, solution("01_single_gpu/mlp"), of_one);
  held_and_sent("gpt", 1, solution("01_single_gpu/gpt"), "--words 2000 --max-steps 3");
  held_and_sent("gpt.recompute", 1, solution("01_single_gpu/gpt"), "--words 2000 --max-steps 3 --recompute blocks");
  held_and_sent("ddp", 3, solution("02_ddp/ddp"), of_three);
  held_and_sent("ddp_overlap", 3, solution("02_ddp/ddp_overlap"), of_three + "--accumulation-steps 2");
  held_and_sent("ddp_overlap.gpt", 2, solution("02_ddp/ddp_overlap"), "--model gpt --words 4000 --max-steps 20");
  for (const std::string kind : {"none", "topk", "randomk", "int8", "sign"}) {
    held_and_sent("compressed." + kind, 3, solution("10_less_communication/ddp_compressed"),
                  of_three + "--compress " + kind, 4);
  }
  held_and_sent("decentralized", 3, solution("10_less_communication/decentralized"), of_three);
  held_and_sent("local_sgd", 3, solution("10_less_communication/local_sgd"), of_three + "--sync-every 5");
  held_and_sent("local_sgd.outer", 3, solution("10_less_communication/local_sgd"),
                of_three + "--sync-every 5 --outer-lr 0.7 --outer-momentum 0.9");
  held_and_sent("parameter_server", 3, solution("10_less_communication/parameter_server"), deep + "--samples 1600", 4);
  held_and_sent("model_parallel", 3, solution("03_model_parallel/model_parallel"), of_one);
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    held_and_sent("pipeline." + schedule, 4, solution("04_pipeline/pipeline"),
                  of_one + "--micro-batches 8 --schedule " + schedule);
  }
  held_and_sent("tensor_parallel", 4, solution("05_tensor_parallel/tensor_parallel"), of_one);
  for (int stage : {0, 1, 2, 3}) {
    held_and_sent(text("zero.", stage), 3, solution("06_fsdp/zero"), text(of_three, "--stage ", stage), 4);
  }
  held_and_sent("fsdp", 3, solution("06_fsdp/fsdp"), of_three, 4);
  held_and_sent("train_3d", 8, solution("07_3d/train_3d"),
                deep + "--samples 1600 --dp 2 --pp 2 --tp 2 --zero 1 --micro-batches 4");
  // No formula if a rank holds something that the formulas do not cover.
  test("solution.report.formulas.unknown", {.ranks = 2}, [] {
    for (const auto& [program, options] :
         {std::pair("04_pipeline/pipeline", "--schedule interleaved --layers 8,8,8,8,8"),
          {"04_pipeline/pipeline", "--recompute stages"},
          {"06_fsdp/fsdp", "--hybrid 1"},
          {"06_fsdp/fsdp", "--no-prefetch"},
          {"05_tensor_parallel/tensor_parallel_gather", ""},
          {"02_ddp/ddp", "--precision bf16"},
          {"02_ddp/ddp", "--clip-norm 1"}}) {
      record(on(2, solution(program), options, "--max-steps 2"), "run.jsonl");
      EXPECT_EQ(report_of({"run.jsonl"}).at("formulas").size(), 0) << program << " " << options;
    }
  });
}

// ---- over time -----------------------------------------------------------------------------------------------------

// The accounts' changes start and end at nothing and lead to the peaks of the record. Nothing changes between the first
// step of an epoch and its last.
TESTS(memory) {
  test("solution.report.memory", {.ranks = 2}, [] {
    const Run run = record(on(2, solution("06_fsdp/fsdp"), "--layers 12,16,8,4 --epochs 3 --validation-samples 64",
                              "--timeline timeline.json"));
    const tools::Timeline timeline = tools::read_timeline("timeline.json");
    ASSERT_EQ(timeline.memory.size(), 2);
    for (const auto& [place, changes] : timeline.memory) {
      std::map<std::string, double> peaks;
      for (const tools::Held& held : changes) {
        for (const auto& [kind, bytes] : held.bytes) peaks[kind] = std::max(peaks[kind], bytes);
      }
      EXPECT_EQ(peaks, run.record.peaks.at(place.first)) << run.command;
      for (const auto& [kind, bytes] : changes.back().bytes) EXPECT_EQ(bytes, 0) << kind << " of " << run.command;
      EXPECT_TRUE(std::ranges::is_sorted(changes, {}, &tools::Held::at)) << run.command;
      const auto& steps = timeline.steps.at(place.first);
      const auto of_training = [&](const tools::Held& held) {
        return held.at > steps.front().second && held.at < steps.back().first;
      };
      // Two epochs end between them: each evaluation allocates one float of `data` and frees it.
      EXPECT_EQ(std::ranges::count_if(changes, of_training), 2 * 2) << run.command;
    }
  });
  test("solution.report.memory.devices", {}, [] {
    const Run run = record(
        on(1, solution("03_model_parallel/one_process"), "--layers 12,16,8,4 --devices 3", "--timeline timeline.json"));
    const tools::Timeline timeline = tools::read_timeline("timeline.json");
    if (kCuda && timeline.memory.size() < 3) GTEST_SKIP() << "it takes three GPUs to tell the parts' memory apart";
    ASSERT_EQ(timeline.memory.size(), 3) << run.command;
    for (int device : {0, 1, 2}) {
      double most = 0;
      for (const tools::Held& held : timeline.memory.at({0, device}))
        most = std::max(most, held.bytes.at("parameters"));
      const auto& peaks = device == 0 ? run.record.peaks.at(0) : run.record.other_peaks.at({0, device});
      EXPECT_EQ(most, peaks.at("parameters")) << "device " << device << " of " << run.command;
    }
  });
}

// The report must find what each stage did in a step, in the order of its schedule, on all ranks of the stage.
void passes_as_planned(const std::string& name, int ranks, const Path& program, const std::string& options) {
  test("solution.report.passes." + name, {.ranks = ranks}, [=] {
    const std::string layers = "--layers 8,8,8,8,8,8,8,8,8 --max-steps 8 --timeline timeline.json";
    const Run run = record(on(ranks, program, layers, options), "run.jsonl");
    const auto report = report_of({"run.jsonl", "timeline.json"});
    const int stages = report.at("stages");
    using Key = std::tuple<double, int, int, int>;  // begin, kind and numbers of a pass
    std::map<int, std::vector<Key>> planned, made;  // by stage; by rank
    for (const auto& slot : report.at("schedule")) planned[slot[0]].push_back({slot[1], slot[2], slot[3], slot[4]});
    for (const auto& pass : report.at("passes")) made[pass[0]].push_back({pass[1], pass[3], pass[4], pass[5]});
    ASSERT_EQ(made.size(), ranks) << run.command;
    for (auto* all : {&planned, &made}) {
      for (auto& [of, keys] : *all) {
        std::ranges::sort(keys);
        for (Key& key : keys) std::get<0>(key) = 0;
      }
    }
    for (const auto& [rank, keys] : made) EXPECT_EQ(keys, planned.at(rank / (ranks / stages))) << "rank " << rank;
  });
}

TESTS(passes) {
  const Path pipeline = solution("04_pipeline/pipeline"), train_3d = solution("07_3d/train_3d");
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    passes_as_planned(schedule, 2, pipeline, "--micro-batches 4 --schedule " + schedule);
    passes_as_planned("train_3d." + schedule, 4, train_3d, "--dp 2 --pp 2 --micro-batches 4 --schedule " + schedule);
  }
}

}  // namespace
}  // namespace workshop::tests
