// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/order.h"

#include <workshop_cpu.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "backend_cpu/runtime.h"
#include "backend_cpu/stream.h"

namespace workshop::cpu {
namespace {

const std::thread::id main_thread = std::this_thread::get_id();

// An operation of a lane, by its number. A stream has a lane as long as it lives.
struct Time {
  std::size_t lane = 0;
  std::uint64_t number = 0;  // from 1 on
  bool operator==(const Time&) const = default;
};

// The number of operations of each lane that come before.
class Clock {
 public:
  std::uint64_t at(std::size_t lane) const { return lane < numbers_.size() ? numbers_[lane] : 0; }
  bool covers(const Time& time) const { return at(time.lane) >= time.number; }
  Time tick(std::size_t lane) {
    if (lane >= numbers_.size()) numbers_.resize(lane + 1);
    return {lane, ++numbers_[lane]};
  }
  void join(const Clock& other) {
    if (numbers_.size() < other.numbers_.size()) numbers_.resize(other.numbers_.size());
    for (std::size_t i = 0; i < other.numbers_.size(); ++i) numbers_[i] = std::max(numbers_[i], other.numbers_[i]);
  }

 private:
  std::vector<std::uint64_t> numbers_;
};

// A use of memory by an operation, with the index of the call if the operation is a group.
struct Access {
  ByteRange range;
  Time time;
  std::size_t call;
  std::size_t lane;  // of the call's own stream
  SourceCall site;
  std::uint64_t moment;
};

// An event that was recorded, or a wait for it.
struct Mark {
  Clock clock;
  Time time;  // the last operation of the lane before it
  SourceCall site{"", "", 0};
  std::uint64_t moment = 0;  // 0: never recorded
};
struct Wait {
  Mark mark;
  SourceCall site{"", "", 0};
  std::uint64_t moment = 0;
};

struct Lane {
  std::string name;
  int device = 0;
  bool legacy = false;    // the legacy default stream of its device
  bool blocking = false;  // ordered with that one
  Clock clock = {};
  // The program's last record and wait on this lane, for the message about a mistake.
  Mark recorded = {};
  Wait waited = {};
};

class Checker {
 public:
  void order(std::span<const OrderedCall> calls, const void* communicator) {
    const std::size_t leader = lane_of(calls[0].stream);
    Clock clock;
    if (communicator != nullptr) clock = communicators_[communicator];
    for (const OrderedCall& call : calls) clock.join(reach(lane_of(call.stream)));
    const Time time = clock.tick(leader);
    for (const OrderedCall& call : calls) lanes_[lane_of(call.stream)].clock = clock;
    if (communicator != nullptr) communicators_[communicator] = clock;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      for (const ByteRange& range : calls[i].ranges) {
        if (range.begin == nullptr || range.count == 0 || range.bytes == 0) continue;
        add({range, time, i, lane_of(calls[i].stream), calls[i].site, now_}, clock);
      }
    }
    ++now_;
  }

  void stream_created(cudaStream_t stream, bool blocking) {
    // Reuses the lane of a destroyed stream whose work the host has waited for.
    auto lane =
        std::find_if(free_.begin(), free_.end(), [&](std::size_t l) { return host_.at(l) >= lanes_[l].clock.at(l); });
    std::size_t index = lanes_.size();
    if (lane != free_.end()) {
      index = *lane;
      free_.erase(lane);
    } else {
      lanes_.emplace_back();
    }
    lanes_[index] = {.name = "stream " + std::to_string(++streams_),
                     .device = device_of(stream),
                     .blocking = blocking,
                     .clock = lanes_[index].clock};
    lane_of_[stream] = index;
  }

  void stream_destroyed(cudaStream_t stream) {
    free_.push_back(lane_of(stream));
    lane_of_.erase(stream);
  }

  void event_created(cudaEvent_t event) { events_.erase(event); }

  void event_recorded(cudaEvent_t event, cudaStream_t stream) {
    const std::size_t lane = lane_of(stream);
    const Clock& clock = reach(lane);
    const Mark mark = {clock, {lane, clock.at(lane)}, source_call("cudaEventRecord"), now_++};
    if (ignored(mark.site)) return;
    events_[event] = mark;
    if (of_the_program(mark.site)) lanes_[lane].recorded = mark;
  }

  void stream_waits(cudaStream_t stream, cudaEvent_t event) {
    if (ignored(source_call("cudaStreamWaitEvent"))) return;
    Lane& lane = lanes_[lane_of(stream)];
    reach(lane_of(stream));
    const auto recorded = events_.find(event);
    lane.waited = {recorded != events_.end() ? recorded->second : Mark{}, source_call("cudaStreamWaitEvent"), now_++};
    lane.clock.join(lane.waited.mark.clock);
  }

  void host_waits(cudaStream_t stream) {
    if (!ignored(source_call("cudaStreamSynchronize"))) host_.join(reach(lane_of(stream)));
  }

  void host_waits(cudaEvent_t event) {
    const auto recorded = events_.find(event);
    if (recorded != events_.end() && !ignored(source_call("cudaEventSynchronize"))) host_.join(recorded->second.clock);
  }

  void host_waits_for_device(int device) {
    for (const Lane& lane : lanes_) {
      if (device == kAllDevices || lane.device == device) host_.join(lane.clock);
    }
    const auto over = [&](const Access& access) { return host_.covers(access.time); };
    std::erase_if(elsewhere_, over);
    for (auto& [begin, accesses] : accesses_) std::erase_if(accesses, over);
  }

  void forget(const MemoryBlock& block) { accesses_.erase(block.begin); }

  void name(cudaStream_t stream, const char* name) {
    const std::string base = "stream '" + std::string(name);
    const auto named = [&](const auto& live) { return lanes_[live.second].name.starts_with(base); };
    const auto others = std::count_if(lane_of_.begin(), lane_of_.end(), named);
    const std::string number = others == 0 ? "" : std::to_string(others + 1);
    lanes_[lane_of(stream)].name = base + (number.empty() ? "" : " ") + number + "'";
  }

 private:
  std::size_t lane_of(cudaStream_t stream) {
    if (stream == nullptr) return legacy_lane(current_device);
    const auto lane = lane_of_.find(stream);
    return lane != lane_of_.end() ? lane->second : legacy_lane(device_of(stream));
  }

  std::size_t legacy_lane(int device) {
    const auto [lane, is_new] = legacy_.try_emplace(device, lanes_.size());
    if (is_new) lanes_.push_back({.name = "the default stream", .device = device, .legacy = true});
    return lane->second;
  }

  // Brings a lane's clock up to everything that comes before its next operation, and returns it.
  const Clock& reach(std::size_t index) {
    Lane& lane = lanes_[index];
    lane.clock.join(host_);
    for (const Lane& other : lanes_) {
      const bool ordered = (lane.blocking && other.legacy) || (lane.legacy && other.blocking);
      if (ordered && other.device == lane.device) lane.clock.join(other.clock);
    }
    return lane.clock;
  }

  // Compares an access with the earlier ones, and drops those that it makes redundant: a later operation that is not
  // ordered after a dropped access is not ordered after the new one either.
  void add(const Access& access, const Clock& clock) {
    const std::optional<MemoryBlock> block = find_block(access.range.begin);
    std::vector<Access>& before = block ? accesses_[block->begin] : elsewhere_;
    std::erase_if(before, [&](const Access& other) {
      if (other.time == access.time) {
        if (other.call != access.call && conflict(other, access)) report_group(other, access);
        return false;
      }
      if (host_.covers(other.time)) return true;
      if (!clock.covers(other.time)) {
        if (conflict(other, access)) report(other, access);
        return false;
      }
      return (access.range.writes || !other.range.writes) && covers(access.range, other.range);
    });
    before.push_back(access);
  }

  static bool conflict(const Access& a, const Access& b) {
    return (a.range.writes || b.range.writes) && overlap(a.range, b.range);
  }

  // For tests: whether to ignore the record or wait at this place, as if the program did not have it.
  static bool ignored(const SourceCall& site) {
    static const char* where = std::getenv("WORKSHOP_ORDER_IGNORE");
    return where != nullptr && place(site) == where;
  }

  // "02_ddp/ddp_overlap.h:80 (ncclAllReduce on stream 2, which writes)"
  std::string describe(const Access& access) const {
    const std::string_view text = access.site.text;
    const std::string call(text.substr(0, text.find('(')));
    const std::string where = access.site.line == 0 ? "" : place(access.site) + " ";
    return where + "(" + call + " on " + lanes_[access.lane].name +
           (access.range.writes ? ", which writes)" : ", which reads)");
  }

  static std::string place_of(const SourceCall& site) { return site.line == 0 ? site.text : place(site); }

  std::string advice(const Access& first, const Access& second) const {
    const Lane &from = lanes_[first.lane], &to = lanes_[second.lane];
    const bool waits_after = to.waited.moment > first.moment;
    // A record after that wait, at another place, is there for another wait: it says nothing about this pair.
    const Mark& early = to.waited.mark;
    const bool recorded_early = waits_after && to.waited.moment < from.recorded.moment && early.moment > 0 &&
                                early.moment < first.moment && early.time.lane == first.lane &&
                                place_of(early.site) != place_of(from.recorded.site);
    if (from.recorded.moment > first.moment && !recorded_early) {
      std::string advice = "the event recorded on " + from.name + " at " + place_of(from.recorded.site) +
                           " comes after the first, but " + to.name + " does not wait for it before " +
                           place_of(second.site);
      const std::string wait = "the wait of " + to.name + " at " + place_of(to.waited.site);
      const Mark& awaited = to.waited.mark;
      if (!waits_after) return advice;
      if (to.waited.moment < from.recorded.moment) return advice + "; " + wait + " came before that event was recorded";
      if (awaited.moment == 0) return advice + "; " + wait + " is for an event that had not been recorded yet";
      if (awaited.time.lane != first.lane) {
        advice += "; " + wait + " is for the event recorded on " + lanes_[awaited.time.lane].name + " at " +
                  place_of(awaited.site);
      } else if (awaited.moment < first.moment) {
        advice += "; " + wait + " is for the event recorded before the first, at " + place_of(awaited.site);
      }
      return advice;
    }
    if (waits_after && to.waited.mark.moment == 0) {
      return "the event that " + to.name + " waits for at " + place_of(to.waited.site) +
             " had not been recorded yet, so this wait has no effect";
    }
    std::string advice;
    if (from.legacy != to.legacy) {  // most likely, the stream argument was forgotten
      advice = "should " + place_of((from.legacy ? first : second).site) + " be on " + (from.legacy ? to : from).name +
               ", not on the default stream? Otherwise ";
    }
    advice += "record an event on " + from.name + " after " + place_of(first.site) + ", and have " + to.name +
              " wait for it before " + place_of(second.site);
    if (waits_after && to.waited.mark.time.lane == first.lane) {
      advice += "; the one that it waits for at " + place_of(to.waited.site) + " was recorded too early, at " +
                place_of(to.waited.mark.site);
    }
    return advice;
  }

  [[noreturn]] void report(const Access& first, const Access& second) const {
    end_with_mistake("order: " + describe(first) + " and " + describe(second) +
                     " use the same memory, and nothing says that the first is done: " + advice(first, second));
  }

  [[noreturn]] void report_group(const Access& first, const Access& second) const {
    end_with_mistake(
        "order: " + describe(first) + " and " + describe(second) +
        " use the same memory in one group, whose calls run at the same time: one needs a buffer of its own");
  }

  Clock host_;
  std::vector<Lane> lanes_;
  std::map<int, std::size_t> legacy_;  // lanes of the legacy default streams, by device
  std::vector<std::size_t> free_;      // lanes of streams that were destroyed
  std::unordered_map<cudaStream_t, std::size_t> lane_of_;
  std::unordered_map<cudaEvent_t, Mark> events_;
  std::unordered_map<const void*, Clock> communicators_;      // the clock of each one's last operation
  std::map<const std::byte*, std::vector<Access>> accesses_;  // by block
  std::vector<Access> elsewhere_;                             // to other memory of the host
  std::uint64_t now_ = 1;
  int streams_ = 0;
};

// Never destroyed, like the streams.
struct LockedChecker {
  std::mutex mutex;
  Checker checker;
};

LockedChecker& locked_checker() {
  static LockedChecker& instance = *new LockedChecker;
  return instance;
}

// Calls `use` with the checker, if it is on.
template <typename Use>
void with_checker(Use use) {
  if (!checks_order()) return;
  const std::lock_guard lock(locked_checker().mutex);
  use(locked_checker().checker);
}

// A kernel that uses an address without memory ends the process, often long after its launch. Says which kernel it was.
thread_local SourceCall running_kernel = {};
thread_local std::vector<const void*> written_arrays = {};  // that this kernel was given
struct sigaction other_handler = {};                        // that of MPI, or of a sanitizer

void name_kernel(int signal, siginfo_t* info, void*) {
  if (running_kernel.line > 0) {
    const bool is_near_null = reinterpret_cast<std::uintptr_t>(info->si_addr) < (1 << 20);
    std::fprintf(stderr, "bounds: the kernel at %s uses an address without memory%s\n", place(running_kernel).c_str(),
                 is_near_null ? ": was it given a null pointer?" : "");
  }
  sigaction(signal, &other_handler, nullptr);  // the kernel's instruction runs again, and ends the process
}

void name_kernels_that_crash() {
  struct sigaction action = {};
  action.sa_sigaction = name_kernel;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &other_handler);
}

}  // namespace

bool order_is_asked_for() {
  const char* value = std::getenv("WORKSHOP_ORDER");
  const std::string_view text = value == nullptr ? "" : value;
  if (!text.empty() && text != "0" && text != "1") bad_environment("WORKSHOP_ORDER", value, "0 or 1");
  return text == "1";
}

bool on_main_thread() { return std::this_thread::get_id() == main_thread; }

void order_calls(std::span<const OrderedCall> calls, const void* communicator) {
  with_checker([&](Checker& c) { c.order(calls, communicator); });
}
void order_kernel(cudaStream_t stream, const SourceCall& site, std::span<const KernelArgument> arguments) {
  [[maybe_unused]] static const bool once = (name_kernels_that_crash(), true);
  // A kernel that writes beyond an array is found when the stream reaches the next kernel, before anything else uses
  // what it has overwritten.
  enqueue(stream, [site] {
    for (const void* array : written_arrays) check_guards(array, running_kernel);
    written_arrays.clear();
    running_kernel = site;
  });
  for (const KernelArgument& argument : arguments) {
    const void* array = argument.begin;
    if (argument.writes && array != nullptr) enqueue(stream, [array] { written_arrays.push_back(array); });
  }
  OrderedCall call{stream, site, {}};
  for (const KernelArgument& argument : arguments) {
    call.ranges.push_back({"", argument.begin, argument.bytes, argument.writes});
    const std::optional<MemoryBlock> block = argument.begin == nullptr ? std::nullopt : find_block(argument.begin);
    const int device = device_of(stream);
    if (!block || block->is_on(device)) continue;
    end_with_mistake("bounds: the kernel at " + place(site) + " works on device " + std::to_string(device) +
                     " and gets memory of device " + std::to_string(block->device) +
                     ": a device reads and writes its own memory only");
  }
  order_call(call);
}
void order_stream_created(cudaStream_t stream, bool blocking) {
  with_checker([&](Checker& c) { c.stream_created(stream, blocking); });
}
void order_stream_destroyed(cudaStream_t stream) {
  with_checker([&](Checker& c) { c.stream_destroyed(stream); });
}
void order_event_created(cudaEvent_t event) {
  with_checker([&](Checker& c) { c.event_created(event); });
}
void order_event_recorded(cudaEvent_t event, cudaStream_t stream) {
  with_checker([&](Checker& c) { c.event_recorded(event, stream); });
}
void order_stream_waits(cudaStream_t stream, cudaEvent_t event) {
  with_checker([&](Checker& c) { c.stream_waits(stream, event); });
}
void order_host_waits(cudaStream_t stream) {
  with_checker([&](Checker& c) { c.host_waits(stream); });
}
void order_host_waits(cudaEvent_t event) {
  with_checker([&](Checker& c) { c.host_waits(event); });
}
void order_host_waits_for_device(int device) {
  with_checker([&](Checker& c) { c.host_waits_for_device(device); });
}
void order_forget(const MemoryBlock& block) {
  with_checker([&](Checker& c) { c.forget(block); });
}
void name_stream(cudaStream_t stream, const char* name) {
  if (stream != nullptr) stream->name = name;
  with_checker([&](Checker& c) { c.name(stream, name); });
}

}  // namespace workshop::cpu
