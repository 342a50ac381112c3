// SPDX-License-Identifier: Apache-2.0
#include "tools/report/timeline.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "common/base/format.h"
#include "tools/shared/json.h"

namespace workshop::tools {
namespace {

using Json = nlohmann::json;

constexpr int kWarmUp = 3;  // the steps with probes; they do not count if there are more

Span::Kind kind_of(const std::string& name) {
  if (name.starts_with("nccl")) return Span::communication;
  for (const char* what : {"forward", "backward", "weights", "update", "loss"}) {
    if (name.starts_with(what)) return Span::computation;
  }
  return Span::other;
}

// ---- reading -------------------------------------------------------------------------------------------------------

// Identifies the calls that belong together: both calls of a message, or one call per rank of a collective.
using Key = std::tuple<std::string, int, int, std::int64_t>;
Key key(const Call& call) {
  if (call.operation == "ncclSend") return {call.id, call.rank, call.peer, call.number};
  if (call.operation == "ncclRecv") return {call.id, call.peer, call.rank, call.number};
  return {call.id, -1, -1, call.number};
}

std::vector<Call> read_calls(const Json& event) {
  std::vector<Call> calls;
  if (!event.contains("args") || !event["args"].contains("calls")) return calls;
  for (const Json& call : event["args"]["calls"]) {
    calls.push_back({call.at("op"), call.at("communicator"), call.at("id"), call.at("rank"), call.value("peer", -1),
                     call.at("number"), call.at("bytes")});
  }
  return calls;
}

// Finds, for each call, which of the calls that belong together began last: none can proceed before that.
void find_waits(std::vector<Span>& spans) {
  struct Last {
    double begin = 0;
    int rank = -1;
  };
  std::map<Key, Last> last;
  for (const Span& span : spans) {
    for (const Call& call : span.calls) {
      Last& so_far = last[key(call)];
      if (so_far.rank < 0 || span.begin > so_far.begin) so_far = {span.begin, span.rank};
    }
  }
  const std::string unknown(16, '0');  // the id of communicators that cannot be told apart
  for (Span& span : spans) {
    span.ready = span.begin;
    for (const Call& call : span.calls) {
      const Last& other = last.at(key(call));
      if (call.id == unknown || other.begin <= span.ready) continue;
      span.ready = std::min(other.begin, span.end);
      span.waits_for = other.rank;
      span.waits_in = call.operation;
      span.on = call.communicator;
    }
  }
}

void find_depths(std::vector<Span>& spans) {
  constexpr double kRounding = 0.1;  // microseconds: the times were floats
  std::vector<double> ends;          // ends of the computations that may contain the next span
  for (std::size_t i = 0; i < spans.size(); ++i) {
    Span& span = spans[i];
    if (i > 0 && (span.rank != spans[i - 1].rank || span.stream != spans[i - 1].stream)) ends.clear();
    const bool is_short = span.end - span.begin <= kRounding;  // a layer that has nothing to do
    const auto lies_in = [&](double end) {
      return span.begin < end - (is_short ? 0 : kRounding) && span.end <= end + kRounding;
    };
    while (!ends.empty() && !lies_in(ends.back())) ends.pop_back();
    span.depth = static_cast<int>(ends.size());
    if (span.kind == Span::computation) ends.push_back(span.end);
  }
}

Span read_span(const Json& event) {
  Span span;
  span.name = event.at("name");
  span.kind = kind_of(span.name);
  span.rank = event.at("pid");
  span.stream = event.at("tid");
  span.begin = event.at("ts");
  span.end = span.begin + event.at("dur").get<double>();
  span.calls = read_calls(event);
  return span;
}

Timeline read(const Json& json) {
  Timeline timeline;
  if (json.contains("otherData") && json["otherData"].value("type", "") == "run")
    timeline.run = json["otherData"].dump();
  std::map<int, std::optional<double>> begun;  // rank -> begin of its current step
  for (const Json& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph"), name = event.at("name");
    if (phase == "X") {
      timeline.spans.push_back(read_span(event));
    } else if (phase == "M" && name == "thread_name") {
      timeline.streams[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    } else if (phase == "C" && name == "memory") {
      timeline.memory[{event.at("pid"), event.value("id", 0)}].push_back({event.at("ts"), event.at("args")});
    } else if (phase == "i") {
      const int rank = event.at("pid");
      const double at = event.at("ts");
      if (begun[rank]) timeline.steps[rank].emplace_back(*begun[rank], at);
      begun[rank] = event.contains("args") ? std::optional(at) : std::nullopt;
    }
  }
  std::ranges::stable_sort(timeline.spans, {},
                           [](const Span& span) { return std::tuple(span.rank, span.stream, span.begin, -span.end); });
  for (const Span& span : timeline.spans) timeline.ranks.insert(span.rank);
  find_waits(timeline.spans);
  find_depths(timeline.spans);
  return timeline;
}

}  // namespace

std::string Span::what() const {
  std::string text;
  for (const Call& call : calls) {
    std::string peer;
    if (call.operation == "ncclSend") peer = " to " + std::to_string(call.peer);
    if (call.operation == "ncclRecv") peer = " from " + std::to_string(call.peer);
    text += (text.empty() ? "" : "; ") + formatted("%s: %.0f bytes%s on %s", call.operation.c_str(), call.bytes,
                                                   peer.c_str(), call.communicator.c_str());
  }
  return text;
}

Timeline read_timeline(const std::string& path) {
  try {
    return read(read_json(path));
  } catch (const Json::exception& error) {
    throw std::runtime_error(path + ": not a timeline: " + error.what());
  }
}

// ---- intervals -----------------------------------------------------------------------------------------------------

namespace {

// Sorts the intervals and merges those that overlap.
Intervals merged(Intervals intervals) {
  std::ranges::sort(intervals);
  Intervals result;
  for (const auto& [begin, end] : intervals) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else if (end > begin) {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

Intervals without(const Intervals& a, const Intervals& b) {
  Intervals result;
  auto next = b.begin();
  for (auto [begin, end] : a) {
    while (next != b.end() && next->second <= begin) ++next;
    for (auto cut = next; cut != b.end() && cut->first < end; ++cut) {
      if (cut->first > begin) result.emplace_back(begin, cut->first);
      begin = std::max(begin, cut->second);
    }
    if (end > begin) result.emplace_back(begin, end);
  }
  return result;
}

Intervals both(Intervals a, const Intervals& b) {
  a.insert(a.end(), b.begin(), b.end());
  return merged(std::move(a));
}

double length(const Intervals& intervals) {
  double sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

// The length of the intervals within each part.
std::vector<double> lengths(const Intervals& intervals, const Intervals& parts) {
  std::vector<double> result;
  auto next = intervals.begin();
  for (const auto& [begin, end] : parts) {
    while (next != intervals.end() && next->second <= begin) ++next;
    double sum = 0;
    for (auto one = next; one != intervals.end() && one->first < end; ++one)
      sum += std::min(one->second, end) - std::max(one->first, begin);
    result.push_back(sum);
  }
  return result;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

// ---- how the time was spent ----------------------------------------------------------------------------------------

// A stream does one thing at a time, so the time of an NCCL call inside a computation counts only as communication.
Activity activity(const Timeline& timeline, int rank, int stream) {
  struct Stream {
    Intervals computation, communication;
  };
  std::map<int, Stream> streams;
  Activity all;
  for (const Span& span : timeline.spans) {
    if (span.rank != rank || (stream >= 0 && span.stream != stream)) continue;
    if (span.kind == Span::computation) streams[span.stream].computation.emplace_back(span.begin, span.end);
    if (span.kind != Span::communication) continue;
    streams[span.stream].communication.emplace_back(span.begin, span.end);
    all.waiting.emplace_back(span.begin, span.ready);
    all.transfer.emplace_back(span.ready, span.end);
  }
  for (auto& [number, work] : streams) {
    const Intervals alone = without(merged(std::move(work.computation)), merged(std::move(work.communication)));
    all.computation.insert(all.computation.end(), alone.begin(), alone.end());
  }
  return {merged(std::move(all.computation)), merged(std::move(all.waiting)), merged(std::move(all.transfer))};
}

std::vector<Shares> shares(const Activity& activity, const Intervals& parts) {
  const Intervals transfer = without(activity.transfer, activity.computation);
  const std::vector<double> compute = lengths(activity.computation, parts), communication = lengths(transfer, parts),
                            waiting = lengths(without(activity.waiting, both(activity.computation, transfer)), parts);
  std::vector<Shares> result;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double all = parts[i].second - parts[i].first;
    if (!(all > 0)) continue;
    Shares part{compute[i] / all, communication[i] / all, waiting[i] / all};
    part.idle = std::max(0.0, 1 - part.compute - part.communication - part.waiting);
    result.push_back(part);
  }
  return result;
}

Intervals counted_steps(const Timeline& timeline, int rank) {
  if (const auto found = timeline.steps.find(rank); found != timeline.steps.end()) {
    const Intervals& steps = found->second;
    return steps.size() > kWarmUp ? Intervals(steps.begin() + kWarmUp, steps.end()) : steps;
  }
  const Activity of_rank = activity(timeline, rank);
  const Intervals all = both(both(of_rank.computation, of_rank.waiting), of_rank.transfer);
  return all.empty() ? all : Intervals{{all.front().first, all.back().second}};
}

Shares typical_shares(const std::vector<Shares>& steps) {
  if (steps.empty()) return {};
  const auto median_of = [&](double Shares::*kind) {
    std::vector<double> values;
    for (const Shares& step : steps) values.push_back(step.*kind);
    return median(std::move(values));
  };
  Shares typical{median_of(&Shares::compute), median_of(&Shares::communication), median_of(&Shares::waiting)};
  const double rest = 1 - typical.compute, others = typical.communication + typical.waiting;
  if (others > rest) {  // medians need not add up to 1
    typical.communication *= rest / others;
    typical.waiting *= rest / others;
  }
  typical.idle = std::max(0.0, rest - typical.communication - typical.waiting);
  return typical;
}

std::vector<Wait> waits(const Timeline& timeline, int rank) {
  const Intervals steps = counted_steps(timeline, rank);
  const Activity of_rank = activity(timeline, rank);
  const Intervals busy = both(of_rank.computation, of_rank.transfer);
  std::map<std::tuple<int, std::string, std::string>, Intervals> by_cause;
  for (const Span& span : timeline.spans) {
    if (span.rank == rank && span.waits_for >= 0)
      by_cause[{span.waits_for, span.waits_in, span.on}].emplace_back(span.begin, span.ready);
  }
  std::vector<Wait> waits;
  for (auto& [cause, intervals] : by_cause) {
    double sum = 0;
    for (const double one : lengths(without(merged(std::move(intervals)), busy), steps)) sum += one;
    waits.push_back({std::get<0>(cause), std::get<1>(cause), std::get<2>(cause), sum / length(steps)});
  }
  std::ranges::sort(waits, std::ranges::greater(), &Wait::share);
  return waits;
}

Communication communication(const Timeline& timeline) {
  const auto ranks = static_cast<double>(timeline.ranks.size());
  Communication mean;
  for (const int rank : timeline.ranks) {
    const Intervals steps = counted_steps(timeline, rank);
    const Activity of_rank = activity(timeline, rank);
    const Intervals calls = both(of_rank.waiting, of_rank.transfer);
    const auto seconds_a_step = [&](const Intervals& intervals) {
      double sum = 0;
      for (const double one : lengths(intervals, steps)) sum += one;
      return steps.empty() ? 0 : sum / 1e6 / static_cast<double>(steps.size());
    };
    mean.seconds += seconds_a_step(calls) / ranks;
    mean.exposed += seconds_a_step(without(calls, of_rank.computation)) / ranks;
  }
  return mean;
}

}  // namespace workshop::tools
