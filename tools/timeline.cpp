// SPDX-License-Identifier: Apache-2.0
#include "tools/timeline.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

namespace workshop::tools {
namespace {

using Json = nlohmann::json;
using Spans = std::vector<std::pair<double, double>>;  // begin and end

// The same time without overlaps, in order.
Spans merged(Spans spans) {
  std::ranges::sort(spans);
  Spans result;
  for (const auto& [begin, end] : spans) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

double length(const Spans& spans) {
  double sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

double length_of_both(const Spans& a, const Spans& b) {
  Spans all = a;
  all.insert(all.end(), b.begin(), b.end());
  return length(a) + length(b) - length(merged(all));
}

bool is_computation(const std::string& name) {
  return name.starts_with("forward") || name.starts_with("backward") || name.starts_with("update");
}

}  // namespace

Communication read_communication(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  struct Rank {
    Spans communication, computation;
  };
  std::map<int, Rank> ranks;
  const Json timeline = Json::parse(file);
  for (const Json& event : timeline.at("traceEvents")) {
    if (event.at("ph") != "X") continue;  // a name, not a span
    const std::string name = event.at("name");
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    Rank& rank = ranks[event.at("pid")];
    if (is_computation(name)) rank.computation.emplace_back(begin, end);
    if (name.starts_with("nccl")) rank.communication.emplace_back(begin, end);
  }
  Communication mean;
  for (auto& [number, rank] : ranks) {
    const Spans computation = merged(rank.computation);
    if (computation.empty()) continue;
    const double first = computation.front().first;  // what comes before is no step
    std::erase_if(rank.communication, [first](const auto& span) { return span.first < first; });
    const Spans communication = merged(rank.communication);
    const double seconds = length(communication) / 1e6 / static_cast<double>(ranks.size());
    const double hidden = length_of_both(communication, computation) / 1e6 / static_cast<double>(ranks.size());
    mean.seconds += seconds;
    mean.exposed += seconds - hidden;
  }
  return mean;
}

}  // namespace workshop::tools
