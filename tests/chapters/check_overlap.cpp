// Communication goes on behind computation: check_overlap TIMELINE [NAME]. On every rank some span whose name contains
// NAME (all-reduces by default), on its stream, must run at the same time as some backward or forward span on another.
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

struct Span {
  std::string name;
  int stream;
  double begin, end;
};

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : "");
  const auto timeline = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (timeline.is_discarded()) {
    std::printf("usage: check_overlap TIMELINE [NAME] (Chrome's trace format)\n");
    return 2;
  }
  const std::string communication = argc > 2 ? argv[2] : "ncclAllReduce";
  std::map<int, std::vector<Span>> ranks;
  for (const auto& event : timeline["traceEvents"]) {
    if (event["ph"] != "X") continue;  // a name, not a span
    const double begin = event["ts"], duration = event["dur"];
    ranks[event["pid"]].push_back({event["name"], event["tid"], begin, begin + duration});
  }
  int without = ranks.empty() ? 1 : 0;
  for (const auto& [rank, spans] : ranks) {
    double overlap = 0;
    for (const Span& a : spans) {
      for (const Span& b : spans) {
        if (a.name.find(communication) == std::string::npos || b.name.find("ward") == std::string::npos ||
            a.stream == b.stream)
          continue;
        overlap += std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
      }
    }
    std::printf("rank %d: %.1f us of communication behind computation\n", rank, overlap);
    if (!(overlap > 0)) ++without;
  }
  return without == 0 ? 0 : 1;
}
