// Idle time of equal stages: check_idle RECORD TIMELINE TOLERANCE
// Each of P ranks must have recorded an "idle share" of (P - 1) / P, and its spans "idle" must fill that share of its
// timeline, both to within TOLERANCE.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

struct Extent {
  double idle = 0, first = INFINITY, last = -INFINITY;  // microseconds
  double share() const { return idle / (last - first); }
};

// Of every rank, from its first idle span to its last.
std::map<int, Extent> read_timeline(const std::string& path) {
  std::ifstream file(path);
  std::map<int, Extent> ranks;
  const auto timeline = nlohmann::json::parse(file);
  for (const auto& event : timeline["traceEvents"]) {
    if (event["name"] != "idle") continue;
    Extent& rank = ranks[event["pid"]];
    const double begin = event["ts"], duration = event["dur"];
    rank.idle += duration;
    rank.first = std::min(rank.first, begin);
    rank.last = std::max(rank.last, begin + duration);
  }
  return ranks;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw std::runtime_error("usage: check_idle RECORD TIMELINE TOLERANCE");
    std::ifstream record(argv[1]);
    const std::map<int, Extent> timeline = read_timeline(argv[2]);
    const double tolerance = std::stod(argv[3]);
    int world = 0, ranks = 0, wrong = 0;
    for (std::string text; std::getline(record, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line["type"] == "run") world = line["world"];
      if (line["type"] != "value" || line["name"] != "idle share") continue;
      ++ranks;
      const int rank = line["rank"];
      const double ideal = (world - 1.0) / world, recorded = line["value"], seen = timeline.at(rank).share();
      const bool right = std::fabs(recorded - ideal) <= tolerance && std::fabs(seen - ideal) <= tolerance;
      std::printf("rank %d: idle share %.3f recorded, %.3f in the timeline, ideal %.3f%s\n", rank, recorded, seen,
                  ideal, right ? "" : "  WRONG");
      if (!right) ++wrong;
    }
    if (world == 0 || ranks != world) throw std::runtime_error("ranks are missing");
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
