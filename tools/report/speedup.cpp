// SPDX-License-Identifier: Apache-2.0
#include "tools/report/speedup.h"

#include <algorithm>
#include <set>

namespace workshop::tools {
namespace {

double samples_per_step(const RunRecord& run) {
  std::set<int> replicas;
  for (const StepLoss& loss : run.losses) replicas.insert(loss.replica);
  return static_cast<double>(replicas.size()) * option(run, "batch-size", 1) * option(run, "accumulation-steps", 1) *
         option(run, "context", 1);
}

int steps_per_epoch(const RunRecord& run) {
  return option(run, "max-steps", 0) > 0 ? 0 : static_cast<int>(run.steps / option(run, "epochs", 1));
}

}  // namespace

Speedup speedup(const RunRecord& run, const Timeline& timeline, const RunRecord& first, bool weak) {
  Speedup row;
  row.ranks = run.world;
  row.seconds_per_step = run.seconds_per_step;
  row.samples_per_second = samples_per_step(run) / run.seconds_per_step;
  row.seconds_per_epoch = steps_per_epoch(weak ? first : run) * run.seconds_per_step;
  row.speedup = row.samples_per_second / (samples_per_step(first) / first.seconds_per_step);
  row.efficiency = row.speedup * first.world / run.world;
  row.exposed = communication(timeline).exposed;
  for (const auto& [rank, bytes] : run.peak_memory) row.peak_memory = std::max(row.peak_memory, bytes);
  return row;
}

nlohmann::json json_of(const Speedup& r) {
  nlohmann::json line = {{"ranks", r.ranks},
                         {"seconds_per_step", r.seconds_per_step},
                         {"samples_per_second", r.samples_per_second},
                         {"speedup", r.speedup},
                         {"efficiency", r.efficiency},
                         {"exposed_seconds_per_step", r.exposed},
                         {"peak_memory", r.peak_memory}};
  if (r.seconds_per_epoch > 0) line["seconds_per_epoch"] = r.seconds_per_epoch;
  return line;
}

}  // namespace workshop::tools
