// SPDX-License-Identifier: Apache-2.0
// Combines the parts of ./workshop bench and prints the times per step, next to PyTorch's if those were measured.
//
//   bench_report [--json FILE] PART...
//
// A part is a JSON object that a measurement wrote (bench, bench_torch.py), the run record of a training program
// (*.jsonl) or a timeline (*.timeline.json). The first record must be that of one process.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/report/timeline.h"
#include "tools/shared/arguments.h"
#include "tools/shared/run_record.h"

namespace {

using workshop::tools::Arguments;
using Json = nlohmann::ordered_json;

// Adds a training program's name, its number of ranks, its microseconds per step and, if its ranks measured it, the
// mean share of time that they idle.
void add_record(const std::string& path, std::ifstream& file, Json& report) {
  Json entry;
  double idle = 0;
  int measured = 0;
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text);
    if (line["type"] == "run") {
      const std::string variant = workshop::tools::read_run_record(path).variant;
      entry["program"] = line["program"].get<std::string>() + (variant.empty() ? "" : " " + variant);
      entry["ranks"] = line["world"];
      report["backend"] = line["backend"];
    } else if (line["type"] == "value" && line["name"] == "idle share") {
      idle += line["value"].get<double>();
      ++measured;
    } else if (line["type"] == "end") {
      if (line["status"] != "complete") throw std::runtime_error(path + ": the run did not finish");
      entry["step_us"] = line["seconds_per_step"].get<double>() * 1e6;
      if (measured > 0) entry["idle_share"] = idle / measured;
      report["steps"].push_back(entry);
      return;
    }
  }
  throw std::runtime_error(path + ": not a complete run record");
}

// Adds the share of communication that computation hides, from a timeline.
void add_timeline(const std::string& path, Json& report) {
  const workshop::tools::Communication of_run = workshop::tools::communication(workshop::tools::read_timeline(path));
  report["overlap_share"] = of_run.seconds > 0 ? 1 - of_run.exposed / of_run.seconds : 0;
}

void add_part(const std::string& path, Json& report) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  if (path.ends_with(".jsonl")) return add_record(path, file, report);
  if (path.ends_with(".timeline.json")) return add_timeline(path, report);
  const Json part = Json::parse(file);
  if (part.contains("torch")) {
    report["torch"] = {{"version", part["torch"]},
                       {"mlp", part["mlp_us_per_step"]},
                       {"ddp", part["ddp2_us_per_step"]},
                       {"large", part["large"]}};
  } else if (part.contains("op")) {  // from 00_collectives/bandwidth
    report["bandwidth"] = part;
  } else {
    report.update(part);
  }
}

void print_steps(const Json& report) {
  const bool with_torch = report.contains("torch");
  const double one_process = report["steps"][0]["step_us"];
  std::printf("%-26s %5s %12s %10s %6s", "6-4-2, --batch-size 32", "ranks", "time/step", "to mlp's", "idle");
  if (with_torch) std::printf(" %12s %8s", "PyTorch", "ratio");
  std::printf("\n");
  for (const Json& step : report["steps"]) {
    const std::string program = step["program"];
    const double time = step["step_us"];
    std::printf("%-26s %5d %9.2f us %10.2f ", program.c_str(), step["ranks"].get<int>(), time, time / one_process);
    if (step.contains("idle_share")) {
      std::printf("%4.0f %%", step["idle_share"].get<double>() * 100);
    } else {
      std::printf("%6s", "-");
    }
    if (with_torch && report["torch"].contains(program)) {
      const double torch = report["torch"][program];
      std::printf(" %9.1f us %8.1f", torch, torch / time);
    }
    std::printf("\n");
  }
  if (report.contains("overlap_share")) {
    std::printf("ddp_overlap, 4 layers of 256, one per bucket, 2 ranks%s: %.0f %% of the communication is hidden\n",
                report["backend"] == "cpu" ? ", slow kernels" : "", report["overlap_share"].get<double>() * 100);
  }
}

// Prints the times of a model that keeps the processor busy, ours and PyTorch's, and the ratio of the best ones.
void print_large(const Json& model, const std::string& torch) {
  std::printf("%s; PyTorch %s with fused AdamW\n", model["title"].get<std::string>().c_str(), torch.c_str());
  for (const Json& line : model["lines"]) {
    std::printf("  ranks %d:", line["ranks"].get<int>());
    double ours = std::numeric_limits<double>::infinity(), theirs = ours;
    for (const auto& [name, value] : line["ms"].items()) {
      const double time = value.get<double>();
      std::printf(" %s %.1f ms,", name.c_str(), time);
      double& best = name.starts_with("PyTorch") ? theirs : ours;
      best = std::min(best, time);
    }
    std::printf(" ratio of the best %.2f\n", ours / theirs);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string out;
  std::vector<std::string> parts;
  Arguments arguments("bench_report", "Combines the parts of ./workshop bench.");
  arguments.add("--json", out, "file to write the numbers to");
  arguments.require("PART", parts, "the JSON of a measurement, a run record (*.jsonl) or a timeline (*.timeline.json)");
  return arguments.run(argc, argv, [&] {
    Json report;
    for (const std::string& part : parts) add_part(part, report);
    if (report.contains("steps")) print_steps(report);
    if (report.contains("torch")) {
      for (const Json& model : report["torch"]["large"]) print_large(model, report["torch"]["version"]);
    }
    if (!out.empty() && !(std::ofstream(out) << report.dump(2) << "\n")) {
      throw std::runtime_error("cannot write " + out);
    }
    return 0;
  });
}
