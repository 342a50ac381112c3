// SPDX-License-Identifier: Apache-2.0
// Prints how a program scales, from runs of it on more and more ranks.
//
//   scaling [--weak] [--json FILE] RECORD TIMELINE [RECORD TIMELINE]...      of --record and --timeline
//
// Speed-up and efficiency are those of the samples a second, beside the first run. With --weak an epoch has as many
// times the samples as there are replicas.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/run_record.h"
#include "tools/timeline.h"

namespace {

using namespace workshop::tools;
using Json = nlohmann::json;

double option(const RunRecord& run, const std::string& name, double otherwise) {
  const auto found = run.options.find(name);
  return found == run.options.end() ? otherwise : found->second;
}

struct Row {
  int ranks = 0;
  double seconds_per_step = 0, samples_per_second = 0, seconds_per_epoch = 0;  // 0: no whole epoch
  double speedup = 1, efficiency = 1, exposed = 0, peak_memory = 0;            // exposed: seconds a step
};

// Of a language model a sample is a token.
double samples_per_step(const RunRecord& run) {
  std::set<int> replicas;
  for (const StepLoss& loss : run.losses) replicas.insert(loss.replica);
  return static_cast<double>(replicas.size()) * option(run, "batch-size", 1) * option(run, "accumulation-steps", 1) *
         option(run, "context", 1);
}

int steps_per_epoch(const RunRecord& run) {
  return option(run, "max-steps", 0) > 0 ? 0 : static_cast<int>(run.steps / option(run, "epochs", 1));
}

Row row(const RunRecord& run, const std::string& timeline, const RunRecord& first, bool weak) {
  Row row;
  row.ranks = run.world;
  row.seconds_per_step = run.seconds_per_step;
  row.samples_per_second = samples_per_step(run) / run.seconds_per_step;
  row.seconds_per_epoch = steps_per_epoch(weak ? first : run) * run.seconds_per_step;
  row.speedup = row.samples_per_second / (samples_per_step(first) / first.seconds_per_step);
  row.efficiency = row.speedup * first.world / run.world;
  row.exposed = read_communication(timeline).exposed / std::max(1, run.steps);
  for (const auto& [rank, bytes] : run.peak_memory) row.peak_memory = std::max(row.peak_memory, bytes);
  return row;
}

void print(const std::vector<Row>& rows, bool tokens, bool weak) {
  std::printf("ranks   time/step   %s/s  time/epoch%s  speed-up  efficiency  exposed communication  peak memory/rank\n",
              tokens ? " tokens" : "samples", weak ? " (weak)" : "");
  for (const Row& r : rows) {
    char epoch[32] = "-";
    if (r.seconds_per_epoch > 0) std::snprintf(epoch, sizeof epoch, "%.3f s", r.seconds_per_epoch);
    std::printf("%5d %8.3f ms %11.0f %11s%s %9.2f %9.0f %% %11.3f ms (%3.0f %%) %13.2f MiB\n", r.ranks,
                r.seconds_per_step * 1e3, r.samples_per_second, epoch, weak ? "       " : "", r.speedup,
                r.efficiency * 100, r.exposed * 1e3, r.exposed / r.seconds_per_step * 100, r.peak_memory / (1 << 20));
  }
}

Json json_of(const std::vector<Row>& rows) {
  Json all = Json::array();
  for (const Row& r : rows) {
    Json line = {{"ranks", r.ranks},
                 {"seconds_per_step", r.seconds_per_step},
                 {"samples_per_second", r.samples_per_second},
                 {"speedup", r.speedup},
                 {"efficiency", r.efficiency},
                 {"exposed_seconds_per_step", r.exposed},
                 {"peak_memory", r.peak_memory}};
    if (r.seconds_per_epoch > 0) line["seconds_per_epoch"] = r.seconds_per_epoch;
    all.push_back(line);
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    bool weak = false;
    std::string json;
    std::vector<std::string> files;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--weak") {
        weak = true;
      } else if (word == "--json" && i + 1 < argc) {
        json = argv[++i];
      } else {
        files.push_back(word);
      }
    }
    if (files.empty() || files.size() % 2 != 0) throw std::runtime_error("expects pairs of a record and a timeline");
    std::vector<Row> rows;
    const RunRecord first = read_run_record(files[0]);
    if (!(first.seconds_per_step > 0)) throw std::runtime_error(files[0] + " has no time of a step: too few steps?");
    for (std::size_t i = 0; i < files.size(); i += 2)
      rows.push_back(row(read_run_record(files[i]), files[i + 1], first, weak));
    print(rows, first.options.contains("context"), weak);
    if (!json.empty() && !(std::ofstream(json) << json_of(rows).dump(2) << "\n"))
      throw std::runtime_error("cannot write " + json);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scaling: %s\n", error.what());
    return 2;
  }
}
