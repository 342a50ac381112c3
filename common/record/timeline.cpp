// SPDX-License-Identifier: Apache-2.0
// The timeline, measured with events: spans of NCCL calls and of the program's Ranges on this rank's streams, and the
// memory that the rank holds.
#ifdef WORKSHOP_BACKEND_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/format.h"
#include "common/device/device.h"
#include "common/nccl/nccl_calls.h"
#include "common/record/json_lines.h"
#include "common/record/record.h"
#include "common/record/recorder.h"

namespace workshop {
namespace {

// Identifies an NCCL call, so that the matching calls of other ranks can be found. A communicator has the same id on
// all of its ranks.
struct Call {
  const char* operation;
  const Communicator* communicator;
  std::int64_t number;
  int peer;
  std::size_t bytes;
};

// An event belongs to the device that is current when it is created: that of the stream, here and below.
struct Span {
  std::string name;
  cudaStream_t stream;
  std::vector<Call> calls = {};  // of NCCL
  Event begin{cudaEventDefault}, end{cudaEventDefault};
};

struct Mark {
  int step;  // the step that begins; -1 if the last one ends
  cudaStream_t stream;
  Event at{cudaEventDefault};
};

// Bytes of a kind that the rank holds from this moment on.
struct Change {
  int device;
  Memory kind;
  std::size_t bytes;
  Event at{cudaEventDefault};
};

struct StreamInfo {
  int number;  // in the order in which the streams are first used
  int device;  // the current device at that time
};

// The clock of another device of this process. CUDA does not measure the time between events of two devices. So
// `beginning`, on this device, waits for `known`, on the first device, and counts as simultaneous with it.
struct DeviceClock {
  Event known{cudaEventDefault}, beginning{cudaEventDefault};
};

class Timeline final : public CallObserver {
 public:
  // Begins a span for the group on each stream that it uses.
  void enqueue_begins(std::span<const NcclCall> group) override {
    struct Named {
      std::string name;
      std::vector<Call> calls;
    };
    std::map<cudaStream_t, Named> streams;
    for (const NcclCall& call : group) {
      if (!call.on_record) continue;
      auto& [name, calls] = streams[call.stream];
      if (name.find(call.operation) == std::string::npos)
        name += (name.empty() ? "" : " + ") + std::string(call.operation);
      calls.push_back({call.operation, call.communicator, call.number, call.peer, call.bytes()});
    }
    for (auto& [stream, named] : streams) begun_.push_back(begin(named.name, stream, std::move(named.calls)));
  }
  void enqueued(std::span<const NcclCall>, ncclResult_t) override {
    for (int span : begun_) end(span);
    begun_.clear();
  }

  int begin(const std::string& name, cudaStream_t stream, std::vector<Call> calls = {}) {
    const OnDevice on_device(device_of(stream));
    spans.push_back({name, stream, std::move(calls)});
    CUDA_CHECK(cudaEventRecord(spans.back().begin, stream));
    return static_cast<int>(spans.size()) - 1;
  }
  void end(int span) { CUDA_CHECK(cudaEventRecord(spans[span].end, spans[span].stream)); }

  // Returns the device of a stream. Starts the device's clock if it has none.
  int device_of(cudaStream_t stream) {
    const int device = streams.try_emplace(stream, StreamInfo{static_cast<int>(streams.size()), current_device()})
                           .first->second.device;
    need_clock_of(device);
    return device;
  }

  // Records the event on an idle stream, which reaches it immediately. So it shows when the host made the change; on a
  // simulated machine, in simulated time.
  void change(int device, Memory kind, std::size_t bytes) {
    const OnDevice on_device(device);
    need_clock_of(device);
    const Stream& idle = idle_streams_.try_emplace(device, "memory").first->second;
    CUDA_CHECK(cudaEventRecord(changes.emplace_back(Change{device, kind, bytes}).at, idle));
  }

  bool enabled = false;
  int first_device = 0;
  std::optional<Event> start;         // created only after the device is chosen, because it belongs to that device
  std::map<int, DeviceClock> clocks;  // of the other devices
  std::vector<Span> spans;
  std::vector<Mark> marks;
  std::vector<Change> changes;
  std::map<cudaStream_t, StreamInfo> streams;

 private:
  void need_clock_of(int device) {
    if (device != first_device && !clocks.contains(device)) start_clock_of(device);
  }
  void start_clock_of(int device) {
    const OnDevice on_first(first_device);
    const Stream there;
    Event known(cudaEventDefault);
    CUDA_CHECK(cudaEventRecord(known, there));
    const OnDevice on_this(device);
    const Stream here;
    DeviceClock clock{std::move(known), Event(cudaEventDefault)};
    CUDA_CHECK(cudaStreamWaitEvent(here, clock.known));
    CUDA_CHECK(cudaEventRecord(clock.beginning, here));
    clocks.emplace(device, std::move(clock));
  }

  std::vector<int> begun_;  // spans of the calls being enqueued
  std::map<int, Stream> idle_streams_;
};

// Never destroyed: its events would be destroyed after CUDA has shut down.
Timeline& timeline() {
  static Timeline& timeline = *new Timeline;
  return timeline;
}

}  // namespace

void start_timeline() {
  timeline().enabled = true;
  watch_memory(mark_memory);
  observe_calls(timeline());
}

void start_clock(ncclComm_t comm) {
  if (!timeline().enabled) return;
  const OffTheRecord off_the_record;
  // All ranks leave an all-reduce at the same time, to within its latency.
  Stream stream;
  DeviceBuffer<float> one(1, Memory::data);
  NCCL_CHECK(ncclAllReduce(one.data(), one.data(), 1, ncclFloat, ncclSum, comm, stream));
  timeline().first_device = current_device();
  CUDA_CHECK(cudaEventRecord(timeline().start.emplace(cudaEventDefault), stream));
  stream.synchronize();
}

void mark_step(int step, cudaStream_t stream) {
  if (!timeline().enabled) return;
  const OnDevice on_device(timeline().device_of(stream));
  CUDA_CHECK(cudaEventRecord(timeline().marks.emplace_back(Mark{step, stream}).at, stream));
}

void mark_memory(Memory kind, int device, std::size_t bytes) {
  if (timeline().start) timeline().change(device, kind, bytes);
}

namespace {

// Returns the microseconds from the clock's start to an event. CUDA measures times as floats, which are too imprecise
// for a whole run. So the clock measures from a recent event: an event more than a second after the reference becomes
// the next reference.
class Clock {
 public:
  explicit Clock(const Event& start, double at = 0) : reference_(&start), at_(at) {}
  double operator()(const Event& event) {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, *reference_, event));
    const double at = at_ + milliseconds * 1e3;
    if (milliseconds > 1000) {
      reference_ = &event;
      at_ = at;
    }
    return at;
  }

 private:
  const Event* reference_;
  double at_;
};

// Starts one clock per device.
std::map<int, Clock> start_clocks() {
  std::map<int, Clock> clocks = {{timeline().first_device, Clock(*timeline().start)}};
  for (const auto& [device, clock] : timeline().clocks) {
    CUDA_CHECK(cudaEventSynchronize(clock.beginning));
    clocks.emplace(device, Clock(clock.beginning, Clock(*timeline().start)(clock.known)));
  }
  return clocks;
}

// Writes the events as text. With Json, this would be the most expensive part of a short run's timeline.
class Events {
 public:
  explicit Events(int rank) : rank_(std::to_string(rank)) {}

  // Begins an event with the fields that all events have. The next call, or finished(), closes it.
  void add(const std::string& name, const char* phase, int stream) {
    text_ += (text_.empty() ? "{\"name\":" : "},\n{\"name\":") + quoted(name) + ",\"ph\":\"" + phase +
             "\",\"pid\":" + rank_ + ",\"tid\":" + std::to_string(stream);
  }
  void key(const char* name) { (((text_ += ",\"") += name) += "\":"); }
  void raw(const std::string& value) { text_ += value; }
  void microseconds(const char* name, double value) {
    key(name);
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.begin(), digits.end(), value, std::chars_format::fixed, 3).ptr;
    text_.append(digits.begin(), end);
  }
  void calls(const std::vector<Call>& calls) {
    key("args");
    text_ += "{\"calls\":[";
    for (const Call& call : calls) {
      text_ += (text_.back() == '[' ? "" : ",") + known(call) + std::to_string(call.number) +
               ",\"bytes\":" + std::to_string(call.bytes) +
               (call.peer < 0 ? "}" : ",\"peer\":" + std::to_string(call.peer) + "}");
    }
    text_ += "]}";
  }
  std::string finished() { return text_.empty() ? "" : text_ + "},\n"; }

 private:
  const std::string& quoted(const std::string& text) {
    const auto [place, is_new] = quoted_.try_emplace(text);
    if (is_new) place->second = Json(text).dump();
    return place->second;
  }
  // Returns the text that all calls of an operation on a communicator begin with.
  const std::string& known(const Call& call) {
    const auto [place, is_new] = known_.try_emplace({call.operation, call.communicator});
    if (is_new) {
      const Communicator& communicator = *call.communicator;
      const Json json{{"op", call.operation},
                      {"communicator", communicator.name},
                      {"id", formatted("%016llx", static_cast<unsigned long long>(communicator.id))},
                      {"rank", communicator.rank}};
      place->second = json.dump();
      place->second.pop_back();
      place->second += ",\"number\":";
    }
    return place->second;
  }

  std::string rank_, text_;
  std::unordered_map<std::string, std::string> quoted_;
  std::map<std::pair<const char*, const Communicator*>, std::string> known_;
};

// Adds a counter per device: the bytes of each kind that the rank holds there after each change.
void add_memory(Events& events) {
  std::map<int, Clock> clocks = start_clocks();
  std::map<int, std::array<std::size_t, kMemoryKinds.size()>> held;
  for (const Change& change : timeline().changes) {
    auto& kinds = held[change.device];
    kinds[static_cast<std::size_t>(change.kind)] = change.bytes;
    CUDA_CHECK(cudaEventSynchronize(change.at));
    events.add("memory", "C", 0);
    events.key("id");
    events.raw(std::to_string(change.device));
    events.microseconds("ts", clocks.at(change.device)(change.at));
    events.key("args");
    std::string bytes;
    for (std::size_t kind = 0; kind < kinds.size(); ++kind)
      bytes += (kind == 0 ? "{\"" : ",\"") + std::string(kMemoryKinds[kind]) + "\":" + std::to_string(kinds[kind]);
    events.raw(bytes + "}");
  }
}

void add_spans(Events& events) {
  std::map<int, Clock> clocks = start_clocks();
  for (const Span& span : timeline().spans) {
    const StreamInfo& stream = timeline().streams.at(span.stream);
    events.add(span.name, "X", stream.number);
    events.microseconds("ts", clocks.at(stream.device)(span.begin));
    events.microseconds("dur", Clock(span.begin)(span.end));
    if (!span.calls.empty()) events.calls(span.calls);
  }
}

void add_marks(Events& events) {
  std::map<int, Clock> clocks = start_clocks();
  for (const Mark& mark : timeline().marks) {
    const StreamInfo& stream = timeline().streams.at(mark.stream);
    events.add(mark.step < 0 ? "end of the epoch" : "step " + std::to_string(mark.step), "i", stream.number);
    events.key("s");
    events.raw("\"t\"");
    events.microseconds("ts", clocks.at(stream.device)(mark.at));
    if (mark.step < 0) continue;
    events.key("args");
    events.raw("{\"step\":" + std::to_string(mark.step) + "}");
  }
}

// Adds the names that viewers show for the rank and its streams.
void add_names(Events& events, int rank) {
  const auto add = [&](const char* what, int stream, const std::string& name) {
    events.add(what, "M", stream);
    events.key("args");
    events.raw(Json{{"name", name}}.dump());
  };
  add("process_name", 0, "rank " + std::to_string(rank));
  for (const auto& [handle, stream] : timeline().streams) {
    const std::string of = timeline().clocks.empty() ? "" : " of device " + std::to_string(stream.device);
    add("thread_name", stream.number, "stream " + std::to_string(stream.number) + of);
  }
}

}  // namespace

std::string timeline_json(int rank) {
  Events events(rank);
  add_names(events, rank);
  add_spans(events);
  add_marks(events);
  add_memory(events);
  timeline().start.reset();  // memory freed from here on is not recorded
  return events.finished();
}

Range::Range(Label name, cudaStream_t stream) {
#ifdef WORKSHOP_BACKEND_CUDA
  nvtxRangePushA(name.text().c_str());
#endif
  if (timeline().enabled) span_ = timeline().begin(name.text(), stream);
}

Range::~Range() {
  if (span_ >= 0) timeline().end(span_);
#ifdef WORKSHOP_BACKEND_CUDA
  nvtxRangePop();
#endif
}

}  // namespace workshop
