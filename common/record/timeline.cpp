// SPDX-License-Identifier: Apache-2.0
// The timeline: spans of work on the streams of this rank, of NCCL calls and of the program's own Ranges, measured with
// events.
#ifdef WORKSHOP_BACKEND_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

#include <map>
#include <optional>
#include <vector>

#include "common/device.h"
#include "common/record.h"
#include "common/record/recorder.h"
#include "common/run/nccl_calls.h"

namespace workshop {
namespace {

struct Span {
  std::string name;
  cudaStream_t stream;
  Event begin{cudaEventDefault}, end{cudaEventDefault};
};

class Timeline : public CallObserver {
 public:
  // A group is one span on each stream that it uses.
  void enqueue_begins(std::span<const NcclCall> group) override {
    std::map<cudaStream_t, std::string> names;
    for (const NcclCall& call : group) {
      if (!call.on_record) continue;
      std::string& name = names[call.stream];
      if (name.find(call.operation) == std::string::npos)
        name += (name.empty() ? "" : " + ") + std::string(call.operation);
    }
    for (const auto& [stream, name] : names) begun_.push_back(begin(name, stream));
  }
  void enqueued(std::span<const NcclCall>, ncclResult_t) override {
    for (int span : begun_) end(span);
    begun_.clear();
  }

  int begin(const std::string& name, cudaStream_t stream) {
    streams.try_emplace(stream, static_cast<int>(streams.size()));
    spans.push_back({name, stream});
    CUDA_CHECK(cudaEventRecord(spans.back().begin, stream));
    return static_cast<int>(spans.size()) - 1;
  }
  void end(int span) { CUDA_CHECK(cudaEventRecord(spans[span].end, spans[span].stream)); }

  bool enabled = false;
  std::optional<Event> start;  // made once the device is chosen: an event belongs to the device that is current then
  std::vector<Span> spans;
  std::map<cudaStream_t, int> streams;  // numbered in the order they are first seen

 private:
  std::vector<int> begun_;  // spans of the calls that are being enqueued
};

// Never destroyed: its events would be when CUDA is gone.
Timeline& timeline() {
  static Timeline& timeline = *new Timeline;
  return timeline;
}

}  // namespace

void start_timeline() {
  timeline().enabled = true;
  observe_calls(timeline());
}

void start_clock(ncclComm_t comm) {
  if (!timeline().enabled) return;
  const OffTheRecord off_the_record;
  // All ranks leave an all-reduce at about the same time, to within its latency.
  Stream stream;
  DeviceBuffer<float> one(1, Memory::data);
  NCCL_CHECK(ncclAllReduce(one.data(), one.data(), 1, ncclFloat, ncclSum, comm, stream));
  CUDA_CHECK(cudaEventRecord(timeline().start.emplace(cudaEventDefault), stream));
  stream.synchronize();
}

std::string timeline_json(int rank) {
  std::string events;
  const auto add = [&](const Json& event) { events += event.dump() + ",\n"; };
  const auto name = [&](const char* what, int stream, const std::string& name) {
    add({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", stream}, {"args", {{"name", name}}}});
  };
  name("process_name", 0, "rank " + std::to_string(rank));
  for (const auto& [handle, stream] : timeline().streams)
    name("thread_name", stream, "stream " + std::to_string(stream));
  for (const Span& span : timeline().spans) {
    float begin = 0, duration = 0;  // milliseconds
    CUDA_CHECK(cudaEventElapsedTime(&begin, *timeline().start, span.begin));
    CUDA_CHECK(cudaEventElapsedTime(&duration, span.begin, span.end));
    add({{"name", span.name},
         {"ph", "X"},
         {"pid", rank},
         {"tid", timeline().streams[span.stream]},
         {"ts", begin * 1e3},
         {"dur", duration * 1e3}});
  }
  return events;
}

Range::Range(const std::string& name, cudaStream_t stream) {
#ifdef WORKSHOP_BACKEND_CUDA
  nvtxRangePushA(name.c_str());
#endif
  if (timeline().enabled) span_ = timeline().begin(name, stream);
}

Range::~Range() {
  if (span_ >= 0) timeline().end(span_);
#ifdef WORKSHOP_BACKEND_CUDA
  nvtxRangePop();
#endif
}

}  // namespace workshop
