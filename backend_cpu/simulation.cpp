// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/simulation.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <vector>

#include "backend_cpu/order.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/source_calls.h"
#include "backend_cpu/stream.h"

namespace workshop::cpu {
namespace {

thread_local Moment now_simulated;

// ---- reading a description -----------------------------------------------------------------------------------------

// Parses a number with a unit: "20us" with the units of time, "500G" with those of a rate.
std::optional<double> number_with_unit(const std::string& text, const std::map<std::string, double>& units) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const auto unit = units.find(end);
  if (end == text.c_str() || unit == units.end() || !(number >= 0) || !std::isfinite(number)) return std::nullopt;
  return number * unit->second;
}

std::optional<double> rate(const std::string& text, const std::string& suffix) {
  const std::map<std::string, double> units = {
      {suffix, 1}, {"K" + suffix, 1e3}, {"M" + suffix, 1e6}, {"G" + suffix, 1e9}, {"T" + suffix, 1e12}};
  const auto value = number_with_unit(text, units);
  return value && *value > 0 ? value : std::nullopt;
}

std::optional<double> seconds_of(const std::string& text) {
  return number_with_unit(text, {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}});
}

std::optional<LinkSpeed> link_speed(const std::string& text) {
  const std::size_t plus = text.find('+');
  if (plus == std::string::npos) return std::nullopt;
  const auto latency = seconds_of(text.substr(0, plus));
  const auto bandwidth = rate(text.substr(plus + 1), "/s");
  if (!latency || !bandwidth) return std::nullopt;
  return LinkSpeed{*latency, 1 / *bandwidth};
}

// Sets the part that "name=value" describes. Returns false if it makes no sense.
bool set_part(const std::string& name, const std::string& value, SimulatedMachine& machine) {
  if (name == "compute") {
    const auto speed = rate(value, "");
    if (speed) machine.seconds_per_operation = 1 / *speed;
    return speed.has_value();
  }
  if (name == "node") {
    const auto ranks = rate(value, "");
    if (!ranks || *ranks != std::floor(*ranks) || *ranks > 1e6) return false;
    machine.node = static_cast<int>(*ranks);
    return true;
  }
  if (name == "call") {
    const auto seconds = seconds_of(value);
    machine.call = seconds.value_or(0);
    return seconds.has_value();
  }
  LinkSpeed* link = nullptr;
  if (name == "link") link = &machine.link;
  if (name == "between") link = &machine.between;
  if (name == "host") link = &machine.host;
  const auto speed = link_speed(value);
  if (link == nullptr || !speed) return false;
  *link = *speed;
  return true;
}

// ---- resources with one user at a time -----------------------------------------------------------------------------

std::atomic<bool> watches_overlaps = false;

// The device, or one direction of a link. The first to ask here need not be the first on the simulated machine, so each
// gets the first gap that is long enough.
class Resource {
 public:
  // `first`: when this use begins, for counting overlaps.
  Moment use(Moment first, Moment earliest, double seconds) {
    const std::lock_guard lock(mutex_);
    if (watches_overlaps) note_use(first, later(earliest, seconds));
    Moment begin = earliest;
    for (const auto& [end, from] : busy_) {  // by their ends
      if (end <= begin) continue;
      if (later(begin, seconds) <= from) break;
      begin = end;
    }
    const Moment end = later(begin, seconds);
    if (end > begin) busy_.emplace(end, begin);
    if (busy_.size() > kRemembered) busy_.erase(busy_.begin());
    return end;
  }

  void forget_overlaps() {
    const std::lock_guard lock(mutex_);
    uses_.clear();
    overlaps_ = 0;
  }
  int overlaps() {
    const std::lock_guard lock(mutex_);
    return overlaps_;
  }

 private:
  void note_use(Moment from, Moment to) {
    if (to <= from) return;
    const auto next = uses_.upper_bound(from);  // the first that ends later
    if (next != uses_.end() && next->second < to) ++overlaps_;
    uses_.emplace(to, from);
  }

  static constexpr std::size_t kRemembered = 256;
  std::mutex mutex_;
  std::map<Moment, Moment> busy_;  // begins, by their ends
  std::map<Moment, Moment> uses_;  // the same for all uses since watch_overlaps(), as if none had to wait
  int overlaps_ = 0;
};

// Never destroyed: the streams' threads run until the process ends.
Resource& device(int number) {
  static auto* devices = new Resource[kMaxDevices];
  return devices[number];
}

Resource& link(Direction direction, bool between) {
  static auto* links = new Resource[4];
  return links[(between ? 2 : 0) + (direction == Direction::in ? 1 : 0)];
}

// ---- what holds streams up -----------------------------------------------------------------------------------------

struct Stalls {
  std::mutex mutex;
  std::vector<SourceCall> calls;
  using Key = std::tuple<int, const CUstream_st*, const CUstream_st*>;  // call, on, behind
  struct Total {
    double seconds = 0;
    int times = 0;
  };
  std::map<Key, Total> totals;
};
Stalls& all_stalls() {
  static auto& instance = *new Stalls;
  return instance;
}

std::string name_of(const CUstream_st* stream) {
  const char* name = stream->name.load();
  return name == nullptr ? "unnamed" : name;
}

}  // namespace

int number_of(const SourceCall& call) {
  Stalls& all = all_stalls();
  const std::lock_guard lock(all.mutex);
  const auto found = std::ranges::find_if(all.calls, [&](const SourceCall& c) {
    return c.line == call.line && c.file == call.file && c.text == call.text;
  });
  const auto number = static_cast<int>(found - all.calls.begin());
  if (found == all.calls.end()) all.calls.push_back(call);
  return number;
}

void note_stall(int call, Moment begin, const CUstream_st* on, const CUstream_st* behind) {
  const double seconds = std::chrono::duration<double>(moment() - begin).count();
  if (seconds <= 0) return;
  Stalls& all = all_stalls();
  const std::lock_guard lock(all.mutex);
  auto& total = all.totals[{call, on, behind}];
  total.seconds += seconds;
  ++total.times;
}

void note_wait_of_host() {
  if (simulates() || !on_main_thread()) return;
  const SourceCall call = source_call("");
  if (call.line == 0 || !of_the_program(call)) return;
  const int number = number_of(call);
  Stalls& all = all_stalls();
  const std::lock_guard lock(all.mutex);
  ++all.totals[{number, nullptr, nullptr}].times;
}

std::vector<Stall> stalls() {
  Stalls& all = all_stalls();
  const std::lock_guard lock(all.mutex);
  std::vector<Stall> list;
  for (const auto& [key, total] : all.totals) {
    const auto& [call, on, behind] = key;
    Stall& stall = list.emplace_back();
    stall.on = on == nullptr ? "host" : name_of(on);
    if (call != kLateHost) {
      stall.call = all.calls[static_cast<std::size_t>(call)].text;
      stall.place = place(all.calls[static_cast<std::size_t>(call)]);
    }
    if (behind != nullptr) stall.behind = name_of(behind);
    stall.seconds = total.seconds;
    stall.times = total.times;
  }
  return list;
}

ParsedMachine parse_machine(const std::string& text) {
  SimulatedMachine machine;
  bool between = false;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
    if (!set_part(name, value, machine)) return {std::nullopt, part};
    between = between || name == "between";
  }
  if (!between) machine.between = machine.link;
  return {machine, ""};
}

const SimulatedMachine* read_machine() {
  const char* value = std::getenv("WORKSHOP_SIMULATE");
  if (value == nullptr || *value == '\0') return nullptr;
  const ParsedMachine parsed = parse_machine(value);
  if (!parsed.machine) {
    std::fprintf(stderr,
                 "WORKSHOP_SIMULATE has '%s'; expected compute=OPERATIONS, link=TIME+BYTES/s, node=RANKS, "
                 "between=TIME+BYTES/s, host=TIME+BYTES/s or call=TIME, as in "
                 "compute=500G,link=5us+1G/s,node=4,between=20us+100M/s,host=2us+10G/s,call=2us\n",
                 parsed.error.c_str());
    std::_Exit(2);
  }
  return new SimulatedMachine(*parsed.machine);
}

Duration collective_time(Pattern pattern, int ranks, std::size_t bytes, const LinkSpeed& link) {
  if (ranks < 2) return {};
  const double others = ranks - 1, all = ranks;
  const double message = static_cast<double>(bytes) * link.seconds_per_byte;
  const double levels = std::bit_width(static_cast<unsigned>(ranks - 1));  // of a tree
  switch (pattern) {
    case Pattern::all_reduce: {
      const Duration ring = {2 * others * link.latency, 2 * others / all * message};
      const Duration tree = {2 * levels * link.latency, 2 * message};
      return ring.latency + ring.transfer <= tree.latency + tree.transfer ? ring : tree;
    }
    case Pattern::part_per_rank:
      return {others * link.latency, others / all * message};
    case Pattern::tree:
      return {levels * link.latency, message};
    case Pattern::through_root:
      return {link.latency, others / all * message};
  }
  return {};
}

Moment moment() { return now_simulated; }

Moment simulate_call() {
  now_simulated = later(now_simulated, simulated_machine()->call);
  return now_simulated;
}

void wait_until(Moment end) { now_simulated = std::max(now_simulated, end); }

void simulate_kernel(double operations, int number) {
  now_simulated =
      device(number).use(now_simulated, now_simulated, operations * simulated_machine()->seconds_per_operation);
}

void simulate_copy(std::size_t bytes) {
  const Duration time = message_time(bytes, simulated_machine()->link);
  const Moment end = use_link(Direction::out, /*between=*/false, now_simulated, now_simulated, time.transfer);
  now_simulated = later(end, time.latency);
}

void simulate_host_copy(std::size_t bytes) {
  const Duration time = message_time(bytes, simulated_machine()->host);
  now_simulated = later(now_simulated, time.latency + time.transfer);
}

Moment use_link(Direction direction, bool between, Moment first, Moment earliest, double seconds) {
  return link(direction, between).use(first, earliest, seconds);
}

void watch_overlaps() {
  for (int number = 0; number < kMaxDevices; ++number) device(number).forget_overlaps();
  for (const bool between : {false, true}) {
    for (const Direction direction : {Direction::out, Direction::in}) link(direction, between).forget_overlaps();
  }
  watches_overlaps = true;
}

std::vector<Overlap> overlaps() {
  std::vector<Overlap> found;
  const auto add = [&](const char* resource, Resource& used) {
    if (const int times = used.overlaps(); times > 0) found.push_back({resource, times});
  };
  for (int number = 0; number < kMaxDevices; ++number) add("the device", device(number));
  add("the outgoing link within the node", link(Direction::out, false));
  add("the incoming link within the node", link(Direction::in, false));
  add("the outgoing link between nodes", link(Direction::out, true));
  add("the incoming link between nodes", link(Direction::in, true));
  return found;
}

}  // namespace workshop::cpu
