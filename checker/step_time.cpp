// SPDX-License-Identifier: Apache-2.0
#include "checker/step_time.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "common/base/format.h"

namespace workshop::tools {
namespace {

constexpr double kLonger = 1.02;  // a step may be this much longer: a kernel more is no lost overlap

// Whether the host waits in Stream::synchronize(). The record does not say who called it.
bool is_in_synchronize(const Stall& stall) {
  return stall.call == "cudaStreamSynchronize(stream_)" && stall.place.starts_with("device/device.h:");
}

// What held up a stream in a step of mine for longer than in one of the solution's.
struct Excess {
  std::string on, behind, todo;
  const Stall* stall = nullptr;  // of mine, the longest that counts here
  double mine = 0, expected = 0;
  int more_often = 0;
  double seconds() const { return mine - expected; }
};

// By rank. Lines differ between the two sources, so stalls count for the TODO that contains the call or, where none
// does, for the file.
std::vector<Excess> excesses(const RunRecord& expected, const RunRecord& mine, const Todos& todos, int rank) {
  std::map<std::tuple<std::string, std::string, std::string>, Excess> found;
  for (const bool is_mine : {false, true}) {
    const RunRecord& run = is_mine ? mine : expected;
    for (const Stall& stall : run.stalls) {
      if (stall.rank != rank) continue;
      std::string todo, file;
      for (const Place& place : places(stall.place)) {
        todo = is_mine ? todos.at(place) : todos.at_in_solution(place);
        file = place.file;
      }
      Excess& excess = found[{stall.on, stall.behind, todo.empty() ? file : todo}];
      const double seconds = stall.seconds / std::max(run.steps, 1);
      (is_mine ? excess.mine : excess.expected) += seconds;
      excess.more_often += is_mine ? stall.times : -stall.times;
      excess.on = stall.on;
      excess.behind = stall.behind;
      excess.todo = todo;
      if (is_mine && (excess.stall == nullptr || excess.stall->seconds < stall.seconds)) excess.stall = &stall;
    }
  }
  // A host that reads the losses at the end of an epoch is late in any case, and later if the epoch takes longer.
  const bool host_waits = std::ranges::any_of(found, [](const auto& entry) {
    const Excess& excess = entry.second;
    return excess.on == "host" && !excess.todo.empty() && excess.seconds() > 0;
  });
  std::vector<Excess> list;
  for (const auto& [key, excess] : found) {
    const bool late_host = excess.stall != nullptr && excess.stall->call.empty();
    // A host that waits for each call by itself may wait as long as the solution's waits once for all of them.
    const bool more = excess.seconds() > 0 || (excess.on == "host" && excess.more_often > 0);
    if (excess.stall != nullptr && more && (host_waits || !late_host)) list.push_back(excess);
  }
  std::ranges::sort(list, std::greater<>(), &Excess::seconds);
  return list;
}

// The stream that computes holds up the step. What holds it up may be held up itself: follows the waits from there, as
// long as they explain most of it.
std::vector<Excess> chain(const std::vector<Excess>& all) {
  std::vector<Excess> links;
  std::string stream = "compute";
  while (links.size() < 5) {
    const auto next = std::ranges::find_if(all, [&](const Excess& e) { return e.on == stream; });
    if (next == all.end() || (!links.empty() && next->seconds() < links.back().seconds() / 2)) break;
    links.push_back(*next);
    const std::string behind = next->stall->call.empty() ? "host" : next->behind;
    const bool seen = std::ranges::any_of(links, [&](const Excess& e) { return e.on == behind; });
    if (behind.empty() || seen) break;
    stream = behind;
  }
  return links;
}

std::string milliseconds(double seconds, int digits = 4) { return formatted("%.*g ms", digits, seconds * 1e3); }

std::string described(const Excess& excess, bool has_steps) {
  const Stall& stall = *excess.stall;
  const std::string who = excess.on == "host" ? "The host" : "Stream '" + excess.on + "'";
  const int digits = milliseconds(excess.mine) == milliseconds(excess.expected) ? 8 : 4;
  const std::string times = milliseconds(excess.mine, digits) + (has_steps ? " per step, including evaluations" : "") +
                            ", expected " + milliseconds(excess.expected, digits) + "\n";
  if (stall.call.empty()) return "  " + who + " is idle because the host enqueues its work late: " + times;
  const std::string call = is_in_synchronize(stall) ? "Stream::synchronize()"
                                                    : stall.call + (stall.place.empty() ? "" : " at " + stall.place);
  if (excess.behind.empty()) return "  " + who + " is busy with " + call + ": " + times;
  return "  " + who + " waits for stream '" + excess.behind + "' in " + call + ": " + times;
}

// "compute, cudaStreamWaitEvent, communication".
std::string kind_of(const Excess& excess) {
  const std::string call = excess.stall->call.substr(0, excess.stall->call.find('('));
  return excess.on + ", " + (call.empty() ? "late host" : call) + (excess.behind.empty() ? "" : ", " + excess.behind);
}

double waits_of_host(const RunRecord& run, int rank) {
  const auto host = run.host.find(rank);
  return host == run.host.end() ? 0 : host->second.at("synchronizations");
}

}  // namespace

TimeVerdict compare_time(const RunRecord& expected, const RunRecord& mine, const Todos& todos) {
  if (expected.simulated.empty() || expected.simulated != mine.simulated) return {};
  const double theirs = expected.seconds_per_step, yours = mine.seconds_per_step;
  const bool longer = theirs > 0 && yours > theirs * kLonger;
  std::vector<Excess> links;
  double waits = 0;  // of the host, in all steps
  // A host that takes no time waits for the device as long as this computes, wherever the program lets it.
  const bool host_takes_time = expected.simulated.find("call=") != std::string::npos;
  for (int rank = 0; rank < mine.world; ++rank) {
    const double more = waits_of_host(mine, rank) - waits_of_host(expected, rank);
    std::vector<Excess> of_rank = excesses(expected, mine, todos, rank);
    const bool waits_longer = host_takes_time && std::ranges::any_of(of_rank, [&](const Excess& e) {
                                return e.on == "host" && !e.todo.empty() && e.seconds() > theirs * (kLonger - 1);
                              });
    if (longer) {
      of_rank = chain(of_rank);
    } else if (more > waits || waits_longer) {
      std::erase_if(of_rank,
                    [](const Excess& e) { return e.on != "host" || (e.todo.empty() && !is_in_synchronize(*e.stall)); });
    } else {
      continue;
    }
    waits = std::max(waits, more);
    if (!of_rank.empty() && (links.empty() || of_rank[0].seconds() > links[0].seconds())) links = of_rank;
  }
  if (!longer && links.empty()) return {};
  if (!longer) links.resize(1);
  TimeVerdict verdict;
  verdict.headline = longer ? "a step takes longer than it needs to." : "the host waits where it should run ahead.";
  bool is_new = false;  // the TODO's wait has none like it in the solution
  for (const Excess& excess : links) {
    if (!excess.todo.empty() && (excess.expected == 0 || !is_new)) {
      verdict.todo = excess.todo;
      is_new = excess.expected == 0;
      verdict.host_waits_in_todo = is_new && excess.on == "host";
    }
    verdict.where += (verdict.where.empty() ? "" : "; ") + kind_of(excess);
  }
  verdict.text = longer ? "  On the simulated machine " + expected.simulated + ": yours " + milliseconds(yours) +
                              ", the solution's " + milliseconds(theirs) + "\n"
                        : "";
  for (auto link = links.rbegin(); link != links.rend(); ++link) verdict.text += described(*link, expected.steps > 0);
  if (!longer) {
    if (waits > 0) {
      verdict.text += "  It waits " + (waits == 1 ? "one more time" : formatted("%.0f more times", waits)) +
                      (expected.steps > 0 ? " during the steps" : "") + " than the solution's.";
    }
    verdict.text += std::string(waits > 0 ? "" : " ") + " A host that runs ahead hides the time that its calls take.\n";
  }
  return verdict;
}

std::string notes_on_waits(const RunRecord& expected, const RunRecord& mine, const Todos& todos) {
  if (!mine.simulated.empty()) return "";  // compare_time() tells of them
  struct Waits {
    int mine = 0, expected = 0;
    const Stall* first = nullptr;
  };
  std::string notes;
  TodoIds noted;
  for (int rank = 0; rank < mine.world; ++rank) {
    std::map<std::string, Waits> by_todo;
    for (const bool is_mine : {false, true}) {
      for (const Stall& stall : (is_mine ? mine : expected).stalls) {
        if (stall.rank != rank || stall.on != "host" || stall.call.empty()) continue;
        for (const Place& place : places(stall.place)) {
          Waits& waits = by_todo[is_mine ? todos.at(place) : todos.at_in_solution(place)];
          (is_mine ? waits.mine : waits.expected) += stall.times;
          if (is_mine && waits.first == nullptr) waits.first = &stall;
        }
      }
    }
    for (const auto& [todo, waits] : by_todo) {
      if (todo.empty() || waits.mine <= waits.expected || !noted.insert(todo).second) continue;
      const auto times = [](int count) { return formatted(count == 1 ? "%d time" : "%d times", count); };
      notes += "Note: " + called(todo) + " lets the host wait " + times(waits.mine) + " on rank " +
               std::to_string(rank) + ", the solution " + (waits.expected == 0 ? "never" : times(waits.expected)) +
               ": " + waits.first->call + " at " + waits.first->place +
               ". The numbers are right, but while the host waits, it enqueues nothing, and the device runs out of "
               "work.\n";
    }
  }
  return notes;
}

}  // namespace workshop::tools
