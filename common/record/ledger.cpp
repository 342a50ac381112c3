// The ledger: every NCCL call of a chapter passes through here once, by NCCL's own profiling interface. The library's
// ncclX symbols are weak and each has a strong twin pncclX, as MPI has PMPI: what is defined here wins over the
// library, notes the call, and goes on to the twin. Chapters contain nothing for it.
#include <nccl.h>
#ifdef WORKSHOP_BACKEND_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/device.h"
#include "common/record.h"
#include "common/record/recorder.h"
#include "common/watchdog/watchdog.h"

namespace workshop {
namespace {

struct Calls {
  std::uint64_t calls = 0, elements = 0, bytes = 0;
};

struct Communicator {
  int ranks = 0;
  std::map<const char*, Calls> calls;  // by operation: each name is one literal of this file
};

struct Span {
  std::string name;
  cudaStream_t stream;
  Event begin, end;
};

struct Ledger {
  bool closed = false;
  std::map<std::string, Communicator> communicators;  // by name; they outlive their handles
  std::map<ncclComm_t, Communicator*> open;
  int unnamed = 0;
};
Ledger& ledger() {
  static Ledger ledger;
  return ledger;
}

struct Timeline {
  bool enabled = false;
  std::optional<Event> start;  // made once the device is chosen: an event belongs to the device that is current then
  std::vector<Span> spans;
  std::map<cudaStream_t, int> streams;  // numbered in the order they are first seen
};
// Never destroyed: its events would be when CUDA is gone.
Timeline& timeline() {
  static Timeline& timeline = *new Timeline;
  return timeline;
}

// Calls inside a group take effect together at its end, so the group is one span on each stream that it uses.
struct Group {
  int depth = 0;
  std::map<cudaStream_t, std::string> names;
  std::vector<WatchedCall> calls;
};
thread_local Group group;

std::size_t element_size(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

// Enters a call that succeeded.
void enter(const char* op, std::size_t count, ncclDataType_t type, ncclComm_t comm) {
  Ledger& l = ledger();
  auto found = l.open.find(comm);
  if (found == l.open.end()) {
    name_communicator(comm, "unnamed" + std::to_string(l.unnamed++));
    found = l.open.find(comm);
  }
  Calls& calls = found->second->calls[op];
  ++calls.calls;
  calls.elements += count;
  calls.bytes += count * element_size(type);
}

// Tells the watchdog what became of calls that take effect together.
void tell_watchdog(std::span<const WatchedCall> calls, ncclResult_t status) {
  if (status == ncclSuccess) return calls_enqueued(calls);
  for (const WatchedCall& call : calls) call_ended(call);
}

template <typename Call>
ncclResult_t noted(const char* op, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                   cudaStream_t stream, Call call) {
  const bool in_timeline = timeline().enabled && !ledger().closed;
  int span = -1;
  if (in_timeline && group.depth == 0) span = begin_span(op, stream);
  const WatchedCall watched = begin_call(op, count, type, peer, comm, stream);
  const ncclResult_t status = call();
  if (group.depth > 0) {
    group.calls.push_back(watched);
  } else {
    tell_watchdog({&watched, 1}, status);
  }
  if (status == ncclSuccess && !ledger().closed) enter(op, count, type, comm);
  if (span >= 0) end_span(span, stream);
  if (in_timeline && group.depth > 0) {
    std::string& names = group.names[stream];
    if (names.find(op) == std::string::npos) names += (names.empty() ? "" : " + ") + std::string(op);
  }
  return status;
}

}  // namespace

void name_communicator(ncclComm_t comm, const std::string& name) {
  int ranks = 0;
  NCCL_CHECK(ncclCommCount(comm, &ranks));
  Communicator& communicator = ledger().communicators[name];
  communicator.ranks = ranks;
  ledger().open[comm] = &communicator;
  rename_watched(comm, name);
}

OffTheRecord::OffTheRecord() { ledger().closed = true; }
OffTheRecord::~OffTheRecord() { ledger().closed = false; }

std::string ledger_json(int rank) {
  std::string lines;
  for (const auto& [name, communicator] : ledger().communicators) {
    for (const auto& [op, calls] : communicator.calls) {
      lines += nlohmann::ordered_json{{"type", "collective"},
                                      {"rank", rank},
                                      {"op", op},
                                      {"communicator", name},
                                      {"ranks", communicator.ranks},
                                      {"calls", calls.calls},
                                      {"elements", calls.elements},
                                      {"bytes", calls.bytes}}
                   .dump() +
               "\n";
    }
  }
  return lines;
}

// ---- timeline ------------------------------------------------------------------------------------------------------

void enable_timeline() { timeline().enabled = true; }
bool timeline_enabled() { return timeline().enabled; }

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

int begin_span(const std::string& name, cudaStream_t stream) {
  Timeline& t = timeline();
  t.streams.try_emplace(stream, static_cast<int>(t.streams.size()));
  t.spans.push_back({name, stream, Event(cudaEventDefault), Event(cudaEventDefault)});
  CUDA_CHECK(cudaEventRecord(t.spans.back().begin, stream));
  return static_cast<int>(t.spans.size()) - 1;
}

void end_span(int span, cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(timeline().spans[span].end, stream)); }

std::string timeline_json(int rank) {
  std::string events;
  const auto add = [&](const nlohmann::ordered_json& event) { events += event.dump() + ",\n"; };
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

Range::Range(const std::string& name, cudaStream_t stream) : stream_(stream) {
#ifdef WORKSHOP_BACKEND_CUDA
  nvtxRangePushA(name.c_str());
#endif
  if (timeline().enabled) span_ = begin_span(name, stream);
}

Range::~Range() {
  if (span_ >= 0) end_span(span_, stream_);
#ifdef WORKSHOP_BACKEND_CUDA
  nvtxRangePop();
#endif
}

}  // namespace workshop

// ---- the calls -----------------------------------------------------------------------------------------------------

using workshop::noted;

extern "C" {

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return noted("ncclBroadcast", count, type, root, comm, stream,
               [=] { return pncclBroadcast(send, receive, count, type, root, comm, stream); });
}

// In some libraries this calls ncclBroadcast, in others not: here always.
ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return noted("ncclReduce", count, type, root, comm, stream,
               [=] { return pncclReduce(send, receive, count, type, op, root, comm, stream); });
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return noted("ncclAllReduce", count, type, -1, comm, stream,
               [=] { return pncclAllReduce(send, receive, count, type, op, comm, stream); });
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return noted("ncclAllGather", count, type, -1, comm, stream,
               [=] { return pncclAllGather(send, receive, count, type, comm, stream); });
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return noted("ncclReduceScatter", count, type, -1, comm, stream,
               [=] { return pncclReduceScatter(send, receive, count, type, op, comm, stream); });
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return noted("ncclAlltoAll", count, type, -1, comm, stream,
               [=] { return pncclAlltoAll(send, receive, count, type, comm, stream); });
}

ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return noted("ncclGather", count, type, root, comm, stream,
               [=] { return pncclGather(send, receive, count, type, root, comm, stream); });
}

ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return noted("ncclScatter", count, type, root, comm, stream,
               [=] { return pncclScatter(send, receive, count, type, root, comm, stream); });
}
#endif

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return noted("ncclSend", count, type, peer, comm, stream,
               [=] { return pncclSend(send, count, type, peer, comm, stream); });
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return noted("ncclRecv", count, type, peer, comm, stream,
               [=] { return pncclRecv(receive, count, type, peer, comm, stream); });
}

ncclResult_t ncclGroupStart() {
  ++workshop::group.depth;
  return pncclGroupStart();
}

ncclResult_t ncclGroupEnd() {
  auto& group = workshop::group;
  std::vector<std::pair<int, cudaStream_t>> spans;
  if (--group.depth <= 0) {
    group.depth = 0;
    for (const auto& [stream, names] : group.names) spans.emplace_back(workshop::begin_span(names, stream), stream);
    group.names.clear();
  }
  const ncclResult_t status = pncclGroupEnd();
  if (group.depth == 0) {
    workshop::tell_watchdog(group.calls, status);
    group.calls.clear();
  }
  for (const auto& [span, stream] : spans) workshop::end_span(span, stream);
  return status;
}

// ---- communicators -------------------------------------------------------------------------------------------------

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const ncclResult_t status = pncclCommInitRank(comm, ranks, id, rank);
  const std::string_view bytes(id.internal, sizeof id.internal);
  if (status == ncclSuccess) workshop::watch_communicator(*comm, std::hash<std::string_view>()(bytes), "unnamed");
  return status;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  const workshop::WatchedCall call = workshop::begin_call("ncclCommSplit", 0, -1, -1, comm, nullptr);
  const ncclResult_t status = pncclCommSplit(comm, color, key, split, config);
  const bool made = status == ncclSuccess && workshop::group.depth == 0 && *split != nullptr;
  if (made) workshop::watch_communicator(*split, workshop::id_of_split(call, color), "unnamed");
  workshop::call_ended(call);
  return status;
}

// A handle may be reused by the library after this; its name must not be.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static constexpr workshop::CallSite site = {"ncclCommDestroy", __FILE__, __LINE__};
  std::optional<workshop::InCall> in_call;
  if (workshop::InCall::current() == nullptr) in_call.emplace(site);  // called in a destructor, without NCCL_CHECK
  workshop::ledger().open.erase(comm);
  workshop::forget_communicator(comm);
  return pncclCommDestroy(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  workshop::ledger().open.erase(comm);
  workshop::forget_communicator(comm);
  return pncclCommAbort(comm);
}

}  // extern "C"
