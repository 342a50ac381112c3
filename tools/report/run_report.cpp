// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_report.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <stdexcept>

#include "common/base/format.h"

namespace workshop::tools {
namespace {

// A record is a JSON object per line; a timeline is one object.
bool is_record(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) throw std::runtime_error("cannot read " + path);
  return line.find("\"otherData\"") == std::string::npos && line.find("\"traceEvents\"") == std::string::npos;
}

std::string ranks(int n) { return formatted("%d rank%s", n, n == 1 ? "" : "s"); }

std::string first_title(const RunReport& run) {
  const RunRecord& r = run.record;
  if (r.program.empty()) return "timeline of " + ranks(static_cast<int>(run.timeline->ranks.size()));
  return r.chapter + " " + r.program + (r.variant.empty() ? "" : " " + r.variant) + ", " + ranks(r.world);
}

// Adds the options in which they differ to runs with the same title.
void tell_apart(std::vector<RunReport>& runs) {
  std::map<std::string, std::vector<RunReport*>> by_title;
  for (RunReport& run : runs) by_title[run.title].push_back(&run);
  for (auto& [title, same] : by_title) {
    if (same.size() == 1) continue;
    std::set<std::string> names;
    for (const RunReport* run : same) {
      for (const auto& [name, value] : run->record.settings) {
        const auto& first = same[0]->record.settings;
        if (!first.contains(name) || first.at(name) != value) names.insert(name);
      }
    }
    for (std::size_t i = 0; i < same.size(); ++i) {
      if (names.empty()) same[i]->title += " (" + std::to_string(i + 1) + ")";
      for (const std::string& name : names) {
        const auto found = same[i]->record.settings.find(name);
        if (found != same[i]->record.settings.end()) same[i]->title += " --" + name + " " + found->second;
      }
    }
  }
}

// The step of median length, so that the report does not show a pause of the machine.
std::pair<double, double> typical_step(Intervals steps) {
  if (steps.empty()) return {0, 0};
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle, {}, [](const auto& step) { return step.second - step.first; });
  return *middle;
}

// Joins steps that are not alike into rounds: in a round of local SGD, only the last step communicates.
Intervals rounds(const Intervals& steps, std::size_t together) {
  if (together == 1 || steps.size() < together) return steps;
  Intervals rounds;
  for (std::size_t i = 0; i + together <= steps.size(); i += together)
    rounds.emplace_back(steps[i].first, steps[i + together - 1].second);
  return rounds;
}

// Adds the passes of a rank in one of its steps. A stage goes forward through the chunks of a micro-batch in order, and
// backward in reverse order, in which their weights come, too.
void add_passes(std::vector<Pass>& passes, const Timeline& timeline, int rank, std::size_t step, int chunks) {
  const auto found = timeline.steps.find(rank);
  if (found == timeline.steps.end() || step >= found->second.size()) return;
  const auto [begin, end] = found->second[step];
  static const std::string kNames[] = {"forward ", "backward ", "weights "};
  std::map<std::pair<int, int>, int> made;
  for (const Span& span : timeline.spans) {
    // Spans of layers may have such names too, but lie within others.
    if (span.rank != rank || span.depth > 0 || span.begin < begin || span.begin >= end) continue;
    for (int kind = 0; kind < 3; ++kind) {
      const std::size_t digits = kNames[kind].size();
      if (!span.name.starts_with(kNames[kind]) || span.name.find_first_of("0123456789") != digits) continue;
      const int micro_batch = std::atoi(span.name.c_str() + digits), before = made[{kind, micro_batch}]++;
      passes.push_back({rank, span.begin, span.end, kind, micro_batch, kind == 0 ? before : chunks - 1 - before});
    }
  }
}

void complete_pipeline(RunReport& run) {
  const auto number = [&](const char* name) { return static_cast<int>(option(run.record, name, 0)); };
  if (run.record.chapter == "04_pipeline") run.stages = run.record.world;
  if (run.record.program == "train_3d" && number("pp") > 1) run.stages = number("pp");
  if (run.stages == 0) return;
  run.schedule = schedule_chart(run.record.settings["schedule"], run.stages, number("micro-batches"), number("chunks"));
  if (run.schedule.empty() || !run.timeline || run.timeline->steps.empty()) return;
  const Intervals& steps = run.timeline->steps.begin()->second;
  const auto step = static_cast<std::size_t>(std::ranges::find(steps, run.view) - steps.begin());
  for (const int rank : run.timeline->ranks) add_passes(run.passes, *run.timeline, rank, step, number("chunks"));
}

void complete(RunReport& run) {
  run.seconds_per_step = run.record.seconds_per_step;
  if (run.timeline && !run.timeline->ranks.empty()) {
    const int together = std::max(1, static_cast<int>(option(run.record, "sync-every", 1)));
    const auto steps = [&](int rank) { return rounds(counted_steps(*run.timeline, rank), together); };
    for (const int rank : run.timeline->ranks)
      run.shares[rank] = typical_shares(shares(activity(*run.timeline, rank), steps(rank)));
    run.view = typical_step(steps(*run.timeline->ranks.begin()));
    if (!(run.seconds_per_step > 0) && !run.timeline->steps.empty())
      run.seconds_per_step = (run.view.second - run.view.first) / together / 1e6;
  }
  complete_pipeline(run);
  run.formulas = formulas(run.record);
  run.title = first_title(run);
}

}  // namespace

int RunReport::seen_rank() const {
  const bool serves = record.program == "parameter_server";  // its rank 0 does not compute
  int seen = -1;
  for (const auto& [rank, s] : shares) {
    if (serves && rank == 0 && shares.size() > 1) continue;
    if (seen < 0 || s.compute < shares.at(seen).compute) seen = rank;
  }
  return seen;
}

std::vector<RunReport> read_runs(const std::vector<std::string>& files) {
  if (files.empty()) throw std::runtime_error("expects records and timelines, the files of --record and --timeline");
  std::vector<RunReport> runs;
  std::vector<Timeline> timelines;
  for (const std::string& path : files) {
    if (is_record(path)) {
      runs.emplace_back().record = read_run_record(path);
    } else {
      timelines.push_back(read_timeline(path));
    }
  }
  for (Timeline& timeline : timelines) {
    auto run =
        std::ranges::find_if(runs, [&](const RunReport& r) { return !r.timeline && r.record.line == timeline.run; });
    if (run == runs.end()) {
      run = runs.emplace(runs.end());
      if (!timeline.run.empty()) run->record = read_run_line(timeline.run);
    }
    run->timeline = std::move(timeline);
  }
  for (RunReport& run : runs) complete(run);
  tell_apart(runs);
  return runs;
}

Curve training_curve(const RunRecord& run) {
  std::map<int, double> losses;
  for (const StepLoss& loss : run.losses) losses[loss.step] = loss.global_loss;
  return {losses.begin(), losses.end()};
}

Curve validation_curve(const RunRecord& run) {
  std::map<int, int> last;  // epoch -> its last step
  for (const StepLoss& loss : run.losses) last[loss.epoch] = std::max(last[loss.epoch], loss.step);
  Curve curve;
  for (const auto& [epoch, step] : last) {
    const auto found = run.values.find({0, "validation loss of epoch " + std::to_string(epoch)});
    if (found != run.values.end()) curve.emplace_back(step, found->second);
  }
  return curve;
}

std::vector<double> numbered(const RunRecord& run, const std::string& name) {
  std::vector<double> values;
  for (auto next = run.values.find({0, name + " 0"}); next != run.values.end();
       next = run.values.find({0, name + " " + std::to_string(values.size())}))
    values.push_back(next->second);
  return values;
}

Curve values_by_step(const RunRecord& run, const std::string& name) {
  std::map<int, double> values;
  for (auto next = run.values.lower_bound({0, name + " "});
       next != run.values.end() && next->first.first == 0 && next->first.second.starts_with(name + " "); ++next)
    values[std::atoi(next->first.second.c_str() + name.size())] = next->second;
  return {values.begin(), values.end()};
}

std::vector<double> bytes_by_step(const RunReport& run, int rank) {
  std::vector<double> bytes;
  if (!run.timeline || run.record.collectives.empty()) return bytes;
  const auto found = run.timeline->steps.find(rank);
  if (found == run.timeline->steps.end()) return bytes;
  const Intervals& steps = found->second;
  bytes.resize(steps.size());
  std::map<std::string, int> ranks;  // of each communicator
  for (const Collective& c : run.record.collectives) ranks[c.communicator] = c.ranks;
  for (const Span& span : run.timeline->spans) {
    if (span.rank != rank || span.kind != Span::communication) continue;
    const auto after = std::ranges::upper_bound(steps, span.begin, {}, &std::pair<double, double>::first);
    if (after == steps.begin() || span.begin >= (after - 1)->second) continue;
    for (const Call& call : span.calls)
      bytes[after - 1 - steps.begin()] +=
          bytes_sent({rank, call.operation, call.communicator, ranks[call.communicator], 1, 0, call.bytes});
  }
  return bytes;
}

// ---- headline ------------------------------------------------------------------------------------------------------

namespace {

std::string percent(double share) { return formatted("%.0f %%", 100 * share); }

// Names what a rank waits for in the words of the chapters.
std::string awaited(const RunRecord& run, int rank, const Wait& wait) {
  const std::string other = "rank " + std::to_string(wait.rank);
  if (wait.operation != "ncclRecv" && wait.operation != "ncclSend")
    return formatted("%s, which is the last to call %s on '%s'", other.c_str(), wait.operation.c_str(),
                     wait.communicator.c_str());
  const bool receives = wait.operation == "ncclRecv";
  const std::string verb = receives ? other + "'s " : other + " to receive its ";
  if (run.chapter == "03_model_parallel" || run.chapter == "04_pipeline" || run.chapter == "07_3d") {
    const bool gradients =
        wait.communicator == "gradients" || (run.chapter == "03_model_parallel" && (wait.rank > rank) == receives);
    return verb + (gradients ? "gradients" : "activations");
  }
  return verb + "message";
}

constexpr const char* kAdviceOnServer =
    "All messages pass through one rank, the server. Larger batches make them rarer (chapter 10, parameter_server.md), "
    "and ddp_overlap needs no server.";

// Advice on ranks that wait, and on communication that nothing hides.
std::string advice_on_waiting(const RunRecord& run) {
  if (run.chapter == "03_model_parallel")
    return "Chapter 04 fills this time with other parts of the batch: micro-batches.";
  if (run.chapter == "04_pipeline" || run.chapter == "07_3d")
    return "Chapter 04: more micro-batches make the bubble smaller, and --schedule interleaved divides it by the "
           "chunks.";
  if (run.program == "parameter_server") return kAdviceOnServer;
  if (run.chapter == "08_context_parallel")
    return "Chapter 08: --balance zigzag gives all ranks the same work in each step of the ring.";
  if (run.chapter == "02_ddp" || run.chapter == "10_less_communication")
    return "The ranks have different work, or different machines. In chapter 10's parameter_server, none waits for "
           "another.";
  return "Distribute the work evenly (chapter 03, --partition; chapter 07, plan), or look for the slow machine.";
}
std::string advice_on_communication(const RunRecord& run) {
  if (run.program == "ddp" || run.program == "zero")
    return run.program == "ddp" ? "Chapter 02's ddp_overlap communicates while the backward pass computes."
                                : "Chapter 06's fsdp gathers the next unit while one computes.";
  if (run.program == "parameter_server") return kAdviceOnServer;
  if (run.program == "ddp_compressed")
    return "Chapter 10: larger batches or --accumulation-steps make messages rarer, a smaller --ratio or a different "
           "--compress makes them smaller.";
  if (run.program == "local_sgd") return "Chapter 10: a larger --sync-every makes messages rarer.";
  if (run.chapter == "02_ddp" || run.chapter == "10_less_communication")
    return "Larger batches or --accumulation-steps make messages rarer (chapter 02), ddp_compressed makes them smaller "
           "(chapter 10).";
  if (run.chapter == "05_tensor_parallel")
    return "Each layer waits for its messages, so nothing can hide them: keep tensor groups on the fastest links "
           "(chapter 07).";
  if (run.chapter == "06_fsdp")
    return "Chapter 06: larger batches compute longer for the same gathers; --no-reshard-after-forward saves gathers.";
  if (run.program == "ring_attention")
    return "Chapter 08: with more positions per rank, attention hides the ring; math.md says from how many on.";
  if (run.chapter == "08_context_parallel")
    return "Chapter 08's ring_attention sends keys and values while it computes.";
  if (run.chapter == "07_3d") return "Chapter 07's plan says which mesh sends the least over the slow links.";
  if (run.chapter == "03_model_parallel" || run.chapter == "04_pipeline")
    return "Chapter 04: with enough micro-batches, messages travel while the ranks compute.";
  return "Chapter 02 hides communication behind computation.";
}

std::string bubble(const RunReport& run) {
  if (run.schedule.empty()) return "";
  const double slots = 1 + std::ranges::max(run.schedule, {}, &Slot::begin).begin,
               busy = static_cast<double>(run.schedule.size()) / run.stages;
  return " The schedule alone leaves " + percent(1 - busy / slots) + " idle.";
}

}  // namespace

Headline headline(const RunReport& run) {
  const int rank = run.seen_rank();
  if (rank < 0) return {"There is no timeline to show what the ranks did when.", "--timeline FILE writes one."};
  const Shares& s = run.shares.at(rank);
  const double lost = 1 - s.compute;
  const std::string who = run.shares.size() == 1 ? "The rank" : "Rank " + std::to_string(rank);
  if (lost < 0.1)
    return {(run.shares.size() == 1 ? "The rank computes for " : "Every rank computes for at least ") +
                percent(s.compute) + " of a step." + bubble(run),
            "There is little to hide: only faster computation or more ranks help (./workshop scaling)."};
  const std::string idles = who + " does not compute for " + percent(lost) + " of a step: ";
  if (s.waiting >= std::max(s.communication, s.idle)) {
    const std::vector<Wait> causes = waits(*run.timeline, rank);
    std::string text = idles;
    if (!causes.empty())
      text += "for " + percent(causes[0].share) + " it waits for " + awaited(run.record, rank, causes[0]) + ".";
    return {text + bubble(run), advice_on_waiting(run.record)};
  }
  if (s.communication >= s.idle)
    return {
        idles + "for " + percent(s.communication) + " it communicates, and no computation hides that." + bubble(run),
        advice_on_communication(run.record)};
  return {idles + "for " + percent(s.idle) + " its streams have nothing to do." + bubble(run),
          "Kernels this small finish before the next one is enqueued: use larger batches or layers (chapter 01)."};
}

}  // namespace workshop::tools
