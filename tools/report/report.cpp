// SPDX-License-Identifier: Apache-2.0
// Reports what runs did, from their records and timelines: as text or, with --json, as data for report_page.py.
//
//   report [--json] FILE...      files of --record and --timeline
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/format.h"
#include "tools/report/run_report.h"
#include "tools/report/speedup.h"
#include "tools/shared/arguments.h"

namespace {

using namespace workshop::tools;
using workshop::formatted;
using Json = nlohmann::json;

// ---- for the page --------------------------------------------------------------------------------------------------

double rounded(double value) { return std::round(value * 1e3) / 1e3; }

Json json_of(const Shares& s) {
  return {{"compute", s.compute}, {"communication", s.communication}, {"waiting", s.waiting}, {"idle", s.idle}};
}

// Stores each text once; repeated texts refer to it by number.
class Texts {
 public:
  std::size_t operator()(const std::string& text) {
    const auto [place, is_new] = places_.try_emplace(text, places_.size());
    if (is_new) all.push_back(text);
    return place->second;
  }
  Json all = Json::array();

 private:
  std::map<std::string, std::size_t> places_;
};

// One array for each property of the spans, so that 100,000 spans take only a few megabytes.
Json json_of(const Timeline& timeline, const std::pair<double, double>& view) {
  Texts names, calls;
  std::map<std::pair<int, int>, std::size_t> lanes;
  Json lane_names = Json::array();
  for (const Span& span : timeline.spans) {
    if (!lanes.try_emplace({span.rank, span.stream}, lanes.size()).second) continue;
    lane_names.push_back({{"rank", span.rank}, {"stream", span.stream}});
  }
  Json json{{"lanes", lane_names}, {"view", {rounded(view.first), rounded(view.second)}}};
  for (const Span& span : timeline.spans) {
    json["lane"].push_back(lanes.at({span.rank, span.stream}));
    json["kind"].push_back(static_cast<int>(span.kind));
    json["depth"].push_back(span.depth);
    json["name"].push_back(names(span.name));
    json["begin"].push_back(rounded(span.begin));
    json["duration"].push_back(rounded(span.end - span.begin));
    json["wait"].push_back(span.waits_for < 0 ? 0 : rounded(span.ready - span.begin));
    json["waits_for"].push_back(span.waits_for);
    json["calls"].push_back(calls(span.what()));
  }
  json["names"] = names.all;
  json["texts"] = calls.all;
  return json;
}

// Shares over time, in some 100 parts of whole steps. A single step is cut into 100 parts.
Json utilization(const Timeline& timeline) {
  constexpr std::size_t kParts = 100;
  Json ranks = Json::array();
  for (const int rank : timeline.ranks) {
    Intervals steps = counted_steps(timeline, rank), parts;
    if (steps.size() == 1) {
      const auto [begin, end] = steps[0];
      steps.clear();
      for (std::size_t i = 0; i < kParts; ++i)
        steps.emplace_back(begin + (end - begin) * static_cast<double>(i) / kParts,
                           begin + (end - begin) * static_cast<double>(i + 1) / kParts);
    }
    const std::size_t together = (steps.size() + kParts - 1) / kParts;
    for (std::size_t i = 0; i < steps.size(); i += together)
      parts.emplace_back(steps[i].first, steps[std::min(i + together, steps.size()) - 1].second);
    Json of_rank{{"rank", rank}};
    for (const auto& [begin, end] : parts) of_rank["at"].push_back(rounded((begin + end) / 2));
    for (const Shares& s : shares(activity(timeline, rank), parts)) {
      const Json kinds = json_of(s);
      for (const auto& [kind, share] : kinds.items()) of_rank[kind].push_back(rounded(share.get<double>()));
    }
    ranks.push_back(of_rank);
  }
  return ranks;
}

Json ledger(const RunRecord& run) {
  Json lines = Json::array();
  for (const Collective& c : run.collectives) {
    lines.push_back({{"rank", c.rank},
                     {"op", c.op},
                     {"communicator", c.communicator},
                     {"ranks", c.ranks},
                     {"calls", c.calls},
                     {"bytes", c.bytes},
                     {"sent", bytes_sent(c)}});
  }
  return lines;
}

// Bytes of all parameters at the end of the run.
double model_bytes(const RunRecord& run) {
  double bytes = 0;
  for (const Tensor& parameter : run.parameters) bytes += 4 * parameter.size();
  return bytes;
}

// Bytes that a rank sent per step, averaged over the steps, by the groups of the formulas.
std::map<std::string, double> sent_by_group(const RunRecord& run, int rank) {
  std::map<std::string, double> sent;
  for (const Collective& c : run.collectives) {
    const std::string name = group(c, run.chapter);
    if (c.rank == rank && !name.empty()) sent[name] += bytes_sent(c) / std::max(1, run.steps);
  }
  return sent;
}

Json formulas_json(const RunReport& run) {
  Json ranks = Json::array();
  for (const auto& [rank, formula] : run.formulas) {
    ranks.push_back({{"rank", rank}, {"memory", formula.memory}, {"sent", formula.sent}});
    if (run.record.complete) ranks.back()["measured"] = sent_by_group(run.record, rank);
  }
  return ranks;
}

// The memory of each rank, at each change. Changes at the same time are moved apart, so that each can be drawn.
Json memory_over_time(const Timeline& timeline) {
  Json all = Json::array();
  for (const auto& [place, changes] : timeline.memory) {
    Json of_rank{{"rank", place.first}, {"device", place.second}};
    if (const auto steps = timeline.steps.find(place.first); steps != timeline.steps.end() && !steps->second.empty())
      of_rank["steps"] = {rounded(steps->second.front().first), rounded(steps->second.back().second)};
    double last = -1e300;
    for (const Held& held : changes) {
      last = std::max(rounded(held.at), last + 1e-3);
      of_rank["at"].push_back(rounded(last));
      for (const auto& [kind, bytes] : held.bytes) of_rank["bytes"][kind].push_back(bytes);
    }
    all.push_back(of_rank);
  }
  return all;
}

// The share of the choices that each expert of each block got in the last epoch, [block][expert]: a mean over the ranks
// that have recorded it.
Json expert_loads(const RunRecord& record) {
  std::map<int, std::map<int, std::vector<double>>> loads;
  for (const auto& [rank_and_name, load] : record.values) {
    int expert = 0, block = 0;
    if (std::sscanf(rank_and_name.second.c_str(), "load of expert %d of block %d", &expert, &block) == 2)
      loads[block][expert].push_back(load);
  }
  Json blocks = Json::array();
  for (const auto& [block, experts] : loads) {
    Json of_block = Json::array();
    for (const auto& [expert, of_ranks] : experts)
      of_block.push_back(std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) / of_ranks.size());
    blocks.push_back(of_block);
  }
  return blocks;
}

// The bytes by step of the rank that sends most.
Json traffic(const RunReport& run) {
  Json most{{"bytes", Json::array()}};
  double largest = -1;
  for (const auto& [rank, s] : run.shares) {
    const std::vector<double> bytes = bytes_by_step(run, rank);
    const double sum = std::accumulate(bytes.begin(), bytes.end(), 0.0);
    if (bytes.empty() || sum <= largest) continue;
    largest = sum;
    most = {{"rank", rank}, {"bytes", bytes}};
  }
  return most;
}

Json json_of(const RunReport& run) {
  const RunRecord& record = run.record;
  const Headline says = headline(run);
  Json json{{"title", run.title},
            {"chapter", record.chapter},
            {"program", record.program},
            {"world", record.world},
            {"stages", run.stages},
            {"simulated", record.simulated},
            {"options", record.settings},
            {"steps", record.steps},
            {"seconds_per_step", run.seconds_per_step},
            {"headline", says.text},
            {"advice", says.advice},
            {"training", training_curve(record)},
            {"validation", validation_curve(record)},
            {"ledger", ledger(record)},
            {"model_bytes", model_bytes(record)},
            {"formulas", formulas_json(run)},
            {"staleness", numbered(record, "staleness of update")},
            {"workers", numbered(record, "worker of update")},
            {"expert_loads", expert_loads(record)},
            {"distance", values_by_step(record, "distance after step")}};
  for (const auto& [rank, kinds] : record.peaks) json["memory"].push_back({{"rank", rank}, {"peak", kinds}});
  for (const auto& [rank, s] : run.shares) {
    json["shares"].push_back(json_of(s));
    json["shares"].back()["rank"] = rank;
  }
  for (const Slot& slot : run.schedule)
    json["schedule"].push_back({slot.stage, slot.begin, slot.kind, slot.micro_batch, slot.chunk});
  for (const Pass& pass : run.passes)
    json["passes"].push_back({pass.rank, rounded(pass.begin - run.view.first), rounded(pass.end - pass.begin),
                              pass.kind, pass.micro_batch, pass.chunk});
  if (run.timeline) {
    json["timeline"] = json_of(*run.timeline, run.view);
    json["utilization"] = utilization(*run.timeline);
    json["memory_over_time"] = memory_over_time(*run.timeline);
    json["traffic"] = traffic(run);
  }
  return json;
}

// Speed-up and efficiency of the runs of one program, relative to the run on the fewest ranks.
Json scaling(const std::vector<RunReport>& runs) {
  std::map<std::string, std::vector<const RunReport*>> by_program;
  for (const RunReport& run : runs) {
    if (run.timeline && run.record.seconds_per_step > 0)
      by_program[run.record.chapter + " " + run.record.program].push_back(&run);
  }
  Json all = Json::array();
  for (auto& [program, of_it] : by_program) {
    std::ranges::stable_sort(of_it, {}, [](const RunReport* run) { return run->record.world; });
    if (of_it.front()->record.world == of_it.back()->record.world) continue;
    Json rows = Json::array();
    for (const RunReport* run : of_it) {
      rows.push_back(json_of(speedup(run->record, *run->timeline, of_it.front()->record)));
      rows.back()["title"] = run->title;
    }
    all.push_back({{"program", program}, {"rows", rows}});
  }
  return all;
}

// ---- as text -------------------------------------------------------------------------------------------------------

constexpr int kWidth = 64;
constexpr char kCompute = '#', kCommunication = '=', kWaiting = '~', kNothing = ' ';

std::string bar(const Shares& s) {
  std::string text;
  const auto up_to = [&](double share, char sign) {
    text.resize(std::max(text.size(), static_cast<std::size_t>(std::lround(share * 40))), sign);
  };
  up_to(s.compute, kCompute);
  up_to(s.compute + s.communication, kCommunication);
  up_to(s.compute + s.communication + s.waiting, kWaiting);
  up_to(1, '.');
  return text;
}

// One line per stream that does anything in the view. Each of its kWidth characters shows what takes most of that time.
std::string chart(const Timeline& timeline, const std::pair<double, double>& view) {
  const double width = (view.second - view.first) / kWidth;
  Intervals parts;
  for (int i = 0; i < kWidth; ++i) parts.emplace_back(view.first + i * width, view.first + (i + 1) * width);
  std::string text;
  for (const auto& [stream, name] : timeline.streams) {
    std::string line;
    for (const Shares& s : shares(activity(timeline, stream.first, stream.second), parts)) {
      const double most = std::max({s.compute, s.communication, s.waiting});
      line += most < 0.25 ? kNothing : most == s.compute ? kCompute : most == s.waiting ? kWaiting : kCommunication;
    }
    if (line.find_first_not_of(kNothing) == std::string::npos) continue;
    text += formatted("  rank %d %-13s |%s|\n", stream.first, name.c_str(), line.c_str());
  }
  return text;
}

std::string bytes_text(double bytes) {
  int unit = 0;
  for (; bytes >= 1024 && unit < 3; ++unit) bytes /= 1024;
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  return formatted("%.4g %s", bytes, kUnits[unit]);
}

std::string schedule_text(const RunReport& run) {
  std::string text;
  const int slots = run.schedule.empty() ? 0 : 1 + std::ranges::max(run.schedule, {}, &Slot::begin).begin;
  if (slots == 0 || slots > 100) return "";
  for (int stage = 0; stage < run.stages; ++stage) {
    std::string line(slots, '.');
    for (const Slot& slot : run.schedule) {
      if (slot.stage == stage) line[slot.begin] = "FBW"[slot.kind];
    }
    text += formatted("  stage %-14d |%s|\n", stage, line.c_str());
  }
  const bool splits = std::ranges::any_of(run.schedule, [](const Slot& slot) { return slot.kind == 2; });
  return std::string("The schedule, with one slot per forward") +
         (splits ? ", per backward and per gradients of the weights:\n" : " or backward:\n") + text;
}

// A rank's memory and traffic by the formulas; memory only if all kinds have one.
std::string by_formula(const RunReport& run, int rank) {
  const auto found = run.formulas.find(rank);
  if (found == run.formulas.end()) return "";
  constexpr std::size_t kKinds = 5;
  std::string text;
  const auto add = [&](const std::map<std::string, double>& parts, const char* per) {
    double sum = 0;
    for (const auto& [name, bytes] : parts) sum += bytes;
    text += (text.empty() ? "; by the formulas " : " and ") + bytes_text(sum) + per;
  };
  if (found->second.memory.size() == kKinds) add(found->second.memory, "");
  if (!found->second.sent.empty()) add(found->second.sent, " per step");
  return text;
}

void print(const RunReport& run) {
  const RunRecord& record = run.record;
  const Headline says = headline(run);
  std::printf("%s\n", run.title.c_str());
  if (!record.simulated.empty()) std::printf("On a simulated machine: %s\n", record.simulated.c_str());
  std::printf("%s\n%s\n", says.text.c_str(), says.advice.c_str());
  const Curve training = training_curve(record), validation = validation_curve(record);
  if (!training.empty())
    std::printf("loss %.6g -> %.6g in %zu steps", training.front().second, training.back().second, training.size());
  if (!validation.empty()) std::printf(", validation %.6g", validation.back().second);
  if (run.seconds_per_step > 0)
    std::printf("%s%.4g ms per step", training.empty() ? "" : "; ", run.seconds_per_step * 1e3);
  if (!training.empty() || run.seconds_per_step > 0) std::printf("\n");
  if (run.timeline) {
    std::printf("rank  compute  communication  waiting   idle   # compute  = communication  ~ waiting  . idle\n");
    for (const auto& [rank, s] : run.shares)
      std::printf("%4d %6.1f %% %12.1f %% %6.1f %% %4.1f %%   %s\n", rank, 100 * s.compute, 100 * s.communication,
                  100 * s.waiting, 100 * s.idle, bar(s).c_str());
    std::printf("%s", schedule_text(run).c_str());
    std::printf("%s, %.4g ms:\n%s", run.timeline->steps.empty() ? "The whole run" : "A step",
                (run.view.second - run.view.first) / 1e3, chart(*run.timeline, run.view).c_str());
  }
  for (const auto& [rank, bytes] : record.peak_memory) {
    double sent = 0;
    for (const Collective& c : record.collectives) sent += c.rank == rank ? bytes_sent(c) : 0;
    std::printf("rank %d held at most %s and sent %s per step%s\n", rank, bytes_text(bytes).c_str(),
                bytes_text(sent / std::max(1, record.steps)).c_str(), by_formula(run, rank).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::vector<std::string> files;
  Arguments arguments("report", "Reports what runs did.");
  arguments.add("--json", json, "print data for report_page.py");
  arguments.require("FILE", files, "the records and timelines of the runs");
  return arguments.run(argc, argv, [&] {
    const std::vector<RunReport> runs = read_runs(files);
    if (json) {
      Json all{{"runs", Json::array()}, {"scaling", scaling(runs)}};
      for (const RunReport& run : runs) all["runs"].push_back(json_of(run));
      std::printf("%s\n", all.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
      return 0;
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (i > 0) std::printf("\n");
      print(runs[i]);
    }
    return 0;
  });
}
