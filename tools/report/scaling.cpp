// SPDX-License-Identifier: Apache-2.0
// Prints how a program scales, from its runs on more and more ranks.
//
//   scaling [--weak] [--json FILE] RECORD TIMELINE [RECORD TIMELINE]...      files of --record and --timeline
//
// Speed-up and efficiency are relative to the first run. With --weak, the samples of an epoch grow in proportion to the
// number of replicas.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/report/speedup.h"
#include "tools/report/timeline.h"
#include "tools/shared/arguments.h"
#include "tools/shared/run_record.h"

namespace {

using namespace workshop::tools;
using Json = nlohmann::json;

void print(const std::vector<Speedup>& rows, bool tokens, bool weak) {
  std::printf("ranks   time/step   %s/s  time/epoch%s  speed-up  efficiency  exposed communication  peak memory/rank\n",
              tokens ? " tokens" : "samples", weak ? " (weak)" : "");
  for (const Speedup& r : rows) {
    char epoch[32] = "-";
    if (r.seconds_per_epoch > 0) std::snprintf(epoch, sizeof epoch, "%.3f s", r.seconds_per_epoch);
    std::printf("%5d %8.3f ms %11.0f %11s%s %9.2f %9.0f %% %11.3f ms (%3.0f %%) %13.2f MiB\n", r.ranks,
                r.seconds_per_step * 1e3, r.samples_per_second, epoch, weak ? "       " : "", r.speedup,
                r.efficiency * 100, r.exposed * 1e3, r.exposed / r.seconds_per_step * 100, r.peak_memory / (1 << 20));
  }
}

void scaling(const std::vector<std::string>& files, bool weak, const std::string& json) {
  if (files.size() % 2 != 0) throw std::runtime_error("expects pairs of a record and a timeline");
  std::vector<Speedup> rows;
  const RunRecord first = read_run_record(files[0]);
  if (!(first.seconds_per_step > 0)) throw std::runtime_error(files[0] + " has no time per step: too few steps?");
  for (std::size_t i = 0; i < files.size(); i += 2)
    rows.push_back(speedup(read_run_record(files[i]), read_timeline(files[i + 1]), first, weak));
  print(rows, first.options.contains("context"), weak);
  if (json.empty()) return;
  Json all = Json::array();
  for (const Speedup& row : rows) all.push_back(json_of(row));
  if (!(std::ofstream(json) << all.dump(2) << "\n")) throw std::runtime_error("cannot write " + json);
}

}  // namespace

int main(int argc, char** argv) {
  bool weak = false;
  std::string json;
  std::vector<std::string> files;
  Arguments arguments("scaling", "Prints how a program scales, from its runs on more and more ranks.");
  arguments.add("--weak", weak, "the samples of an epoch grow in proportion to the number of replicas");
  arguments.add("--json", json, "file to write the numbers to");
  arguments.require("FILE", files, "the record and the timeline of each run");
  return arguments.run(argc, argv, [&] {
    scaling(files, weak, json);
    return 0;
  });
}
