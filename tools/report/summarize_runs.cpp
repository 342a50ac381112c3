// SPDX-License-Identifier: Apache-2.0
// Prints a table of runs of one model: what each strategy gains and costs, compared with a run in one process.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/format.h"
#include "tools/shared/arguments.h"
#include "tools/shared/run_record.h"

namespace {

using namespace workshop::tools;
using workshop::formatted;

double most_sent(const RunRecord& run) {
  std::map<int, double> by_rank;
  for (const Collective& c : run.collectives) by_rank[c.rank] += bytes_sent(c);
  double most = 0;
  for (const auto& [rank, bytes] : by_rank) most = std::max(most, bytes);
  return most;
}

double peak_memory(const RunRecord& run) {
  double most = 0;
  for (const auto& [rank, bytes] : run.peak_memory) most = std::max(most, bytes);
  return most;
}

// The largest relative difference of the global losses of all steps and of the parameters; infinite if one is missing.
double difference(const RunRecord& run, const RunRecord& baseline) {
  std::map<int, double> losses;
  std::map<std::string, const Tensor*> parameters;
  for (const StepLoss& loss : run.losses) losses[loss.step] = loss.global_loss;
  for (const Tensor& parameter : run.parameters) parameters[parameter.name] = &parameter;
  double largest = 0;
  for (const StepLoss& loss : baseline.losses) {
    const auto mine = losses.find(loss.step);
    largest = std::max(largest, mine == losses.end() ? INFINITY : relative_error(mine->second, loss.global_loss));
  }
  for (const Tensor& parameter : baseline.parameters) {
    const auto mine = parameters.find(parameter.name);
    if (mine == parameters.end() || mine->second->values.size() != parameter.values.size()) return INFINITY;
    for (std::size_t i = 0; i < parameter.values.size(); ++i) {
      largest = std::max(largest, relative_error(mine->second->values[i], parameter.values[i], parameter.rms()));
    }
  }
  return largest;
}

// Formats a value with three significant digits and a unit.
std::string with_unit(double value, double base, const std::vector<std::string>& units) {
  std::size_t unit = 0;
  for (; value >= base && unit + 1 < units.size(); ++unit) value /= base;
  return formatted("%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit].c_str());
}
std::string bytes_text(double bytes) { return bytes == 0 ? "0" : with_unit(bytes, 1024, {"B", "KiB", "MiB", "GiB"}); }
std::string time_text(double seconds) { return with_unit(seconds * 1e6, 1000, {"us", "ms", "s"}); }

using Row = std::array<std::string, 7>;

Row row(const RunRecord& run, const RunRecord& baseline) {
  if (run.losses.empty()) throw std::runtime_error(run.program + " has no losses to compare");
  const std::string apart = &run == &baseline ? "-" : formatted("%.1e", difference(run, baseline));
  return {run.chapter + " " + run.program + (run.variant.empty() ? "" : " " + run.variant),
          std::to_string(run.world),
          formatted("%.6f", run.losses.back().global_loss),
          apart,
          time_text(run.seconds_per_step),
          bytes_text(peak_memory(run)),
          bytes_text(most_sent(run))};
}

void print(const std::vector<Row>& table) {
  std::array<int, 7> widths{};
  for (const Row& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], static_cast<int>(row[i].size()));
  }
  for (const Row& row : table) {
    std::printf("%-*s", widths[0], row[0].c_str());
    for (std::size_t i = 1; i < row.size(); ++i) std::printf("  %*s", widths[i], row[i].c_str());
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> records;
  Arguments arguments("summarize_runs", "Prints a table of runs of one model.");
  arguments.require("RECORD", records, "the record of each run; the others are compared with the first");
  return arguments.run(argc, argv, [&] {
    std::vector<RunRecord> runs;
    for (const std::string& record : records) runs.push_back(read_run_record(record));
    std::vector<Row> table{
        {"strategy", "ranks", "final loss", "largest difference", "time/step", "peak memory/rank", "sent/rank"}};
    for (const RunRecord& run : runs) table.push_back(row(run, runs.front()));
    print(table);
    return 0;
  });
}
