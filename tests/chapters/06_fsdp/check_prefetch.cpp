// What prefetching saves: check_prefetch TIMELINE prefetch|no-prefetch
//
// Takes the spans of every rank's communication and computation from the timeline of a run of fsdp with one batch a
// step, and works out how long a step with such spans takes by the schedule: two streams, each in order; each use of a
// unit waits for its gather, and what is enqueued on the communication stream behind a use waits for that. With
// prefetching the next use's gather is enqueued before a use, without it behind. The run's steps must take as long as
// its schedule says, to within a tenth of what prefetching saves, and prefetching must save at least a tenth of the sum
// of all spans. On a busy machine a thread may wake up late, so one step of each rank is enough: what does not run
// beside anything else does so in no step.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Span {
  std::string name;
  double begin, duration;  // milliseconds
  double end() const { return begin + duration; }
};

// The spans of one step, in the order of their streams.
struct Step {
  std::vector<Span> gathers, forwards, backwards, reductions;
  double loss = 0, update = 0;  // durations
  double begin = INFINITY, end = 0;

  double serial() const {
    double sum = loss + update;
    for (const auto* spans : {&gathers, &forwards, &backwards, &reductions}) {
      for (const Span& span : *spans) sum += span.duration;
    }
    return sum;
  }
  double measured() const { return end - begin; }
  double scheduled(bool prefetch) const;
};

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// The time from the first gather to the end of the update if no stream ever waits longer than it must.
double Step::scheduled(bool prefetch) const {
  const std::size_t units = forwards.size(), uses = 2 * units;
  const bool gathered_again = gathers.size() == uses;
  std::vector<double> fetched(uses);
  double communication = 0, compute = 0;
  const auto fetch = [&](std::size_t use) {
    if (use < units || gathered_again) communication += gathers[use].duration;
    fetched[use] = communication;
  };
  for (std::size_t use = 0; use < uses; ++use) {
    if (use == 0 || !prefetch) fetch(use);
    if (prefetch && use + 1 < uses) fetch(use + 1);
    compute = std::max(compute, fetched[use]);
    compute += use < units ? forwards[use].duration : backwards[use - units].duration;
    communication = std::max(communication, compute);
    if (use >= units) communication += reductions[use - units].duration;
    if (use + 1 == units) compute += loss;
  }
  return std::max(compute, communication) + update;
}

std::vector<Step> steps_of(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::begin);
  std::vector<Step> steps(1);
  for (const Span& span : spans) {
    Step& step = steps.back();
    if (starts_with(span.name, "gather")) step.gathers.push_back(span);
    if (starts_with(span.name, "forward of")) step.forwards.push_back(span);
    if (starts_with(span.name, "backward of")) step.backwards.push_back(span);
    if (starts_with(span.name, "reduce")) step.reductions.push_back(span);
    if (span.name == "loss") step.loss = span.duration;
    if (starts_with(span.name, "gather")) step.begin = std::min(step.begin, span.begin);
    if (span.name != "update") continue;
    step.update = span.duration;
    step.end = span.end();
    const std::size_t units = step.forwards.size();
    if (units == 0 || step.backwards.size() != units || step.reductions.size() != units ||
        (step.gathers.size() != units && step.gathers.size() != 2 * units)) {
      throw std::runtime_error("the timeline has a step with spans missing");
    }
    steps.emplace_back();
  }
  steps.pop_back();
  return steps;
}

// The difference between the time of a step and what it should be, relative to what prefetching saves.
double error(const Step& step, bool prefetch) {
  return std::fabs(step.measured() - step.scheduled(prefetch)) / (step.scheduled(false) - step.scheduled(true));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string mode = argc == 3 ? argv[2] : "";
    const bool prefetch = mode == "prefetch";
    if (!prefetch && mode != "no-prefetch") {
      throw std::runtime_error("usage: check_prefetch TIMELINE prefetch|no-prefetch");
    }
    std::ifstream file(argv[1]);
    std::map<int, std::vector<Span>> ranks;
    const auto timeline = nlohmann::json::parse(file);
    for (const auto& event : timeline["traceEvents"]) {
      if (event["ph"] != "X") continue;  // a name, not a span
      ranks[event["pid"]].push_back({event["name"], event["ts"].get<double>() / 1e3, event["dur"].get<double>() / 1e3});
    }
    bool right = !ranks.empty();
    for (const auto& [rank, spans] : ranks) {
      const std::vector<Step> steps = steps_of(spans);
      if (steps.empty()) throw std::runtime_error("the timeline has no steps");
      const auto& best = *std::ranges::min_element(steps, {}, [&](const Step& step) { return error(step, prefetch); });
      const double with = best.scheduled(true), without = best.scheduled(false);
      std::printf(
          "rank %d: a step takes %.1f ms; by the schedule %.1f with prefetching, %.1f without; all spans %.1f\n", rank,
          best.measured(), with, without, best.serial());
      if (!(error(best, prefetch) <= 0.1) || !(without - with >= 0.1 * best.serial())) right = false;
    }
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
