// SPDX-License-Identifier: Apache-2.0
#include "common/nccl/nccl_calls.h"

#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace workshop {
namespace {

std::vector<CallObserver*>& observers() {
  static auto& observers = *new std::vector<CallObserver*>;  // never destroyed, like the communicators
  return observers;
}

bool on_record = true;
int unnamed = 0;  // how many communicators have been named by a number so far

// The calls between this thread's outermost ncclGroupStart() and ncclGroupEnd().
struct OpenGroup {
  int depth = 0;
  const CallSite* site = nullptr;  // of its ncclGroupStart()
  std::vector<NcclCall> calls;
  std::vector<std::function<void()>> then;
};
thread_local OpenGroup group;

// The caller of the next two functions must hold the mutex of the communicators. They return null if the handle is not
// a communicator.
Communicator* open_communicator(ncclComm_t comm, std::uint64_t id) {
  int rank = 0, ranks = 0;
  if (pncclCommUserRank(comm, &rank) != ncclSuccess || pncclCommCount(comm, &ranks) != ncclSuccess) return nullptr;
  return communicators().open[comm] = &communicators().all.emplace_back(Communicator{id, rank, ranks});
}

Communicator* find_communicator(ncclComm_t comm) {
  const auto found = communicators().open.find(comm);
  return found != communicators().open.end() ? found->second
                                             : open_communicator(comm, 0);  // made in a group, or without a wrapper
}

// The library may reuse the handle of a closed communicator, so its entry must go.
void close_communicator(ncclComm_t comm) {
  const std::lock_guard lock(communicators().mutex);
  communicators().open.erase(comm);
}

NcclCall begin(const char* operation, std::size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) {
  NcclCall call{operation, count, type, peer, stream, InCall::current()};
  if (observers().empty()) return call;
  {
    const std::lock_guard lock(communicators().mutex);
    Communicator* c = call.communicator = find_communicator(comm);
    if (c == nullptr) return call;
    call.on_record = on_record && type >= 0;
    if (call.on_record && c->name == "unnamed") c->name += std::to_string(unnamed++);
    const std::string_view name = operation;
    const bool sends = name == "ncclSend", receives = name == "ncclRecv";
    call.number = ++(sends || receives ? c->messages[{sends, peer}] : c->collectives);
  }
  for (CallObserver* observer : observers()) observer->call_begins(call);
  return call;
}

template <typename Enqueue>
ncclResult_t enqueue(std::span<const NcclCall> calls, Enqueue enqueue) {
  for (CallObserver* observer : observers()) observer->enqueue_begins(calls);
  const ncclResult_t status = enqueue();
  for (CallObserver* observer : observers()) observer->enqueued(calls, status);
  return status;
}

template <typename Make>
ncclResult_t observed(const char* operation, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream, std::array<const void*, 2> buffers, Make make, int reduction = -1) {
  NcclCall call = begin(operation, count, type, peer, comm, stream);
  call.buffers = buffers;
  call.reduction = reduction;
  if (group.depth == 0) return enqueue({&call, 1}, make);
  group.calls.push_back(call);
  return make();
}

}  // namespace

Communicators& communicators() {
  static Communicators& communicators = *new Communicators;  // never destroyed: the watchdog may outlive static objects
  return communicators;
}

std::size_t NcclCall::bytes() const {
  static constexpr std::array kBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of ncclInt8 … ncclFloat8e5m2
  return count * kBytes.at(type);
}

void after_group(std::function<void()> action) {
  if (group.depth == 0) return action();
  group.then.push_back(std::move(action));
}

std::string open_group() {
  if (group.depth == 0) return "";
  return group.site == nullptr ? "somewhere" : group.site->file + (":" + std::to_string(group.site->line));
}

void observe_calls(CallObserver& observer) { observers().push_back(&observer); }

OffTheRecord::OffTheRecord() : before_(std::exchange(on_record, false)) {}
OffTheRecord::~OffTheRecord() { on_record = before_; }

void name_communicator(ncclComm_t comm, const std::string& name) {
  const std::lock_guard lock(communicators().mutex);
  if (Communicator* communicator = find_communicator(comm)) communicator->name = name;
}

void runs_beside_others(ncclComm_t comm) {
  const std::lock_guard lock(communicators().mutex);
  if (Communicator* communicator = find_communicator(comm)) communicator->runs_beside_others = true;
}

}  // namespace workshop

// ---- the calls -----------------------------------------------------------------------------------------------------

using namespace workshop;

extern "C" {

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return observed("ncclBroadcast", count, type, root, comm, stream, {send, receive},
                  [=] { return pncclBroadcast(send, receive, count, type, root, comm, stream); });
}

// Some NCCL libraries implement ncclBcast by calling ncclBroadcast, and some do not. Here, it always calls it.
ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return observed(
      "ncclReduce", count, type, root, comm, stream, {send, receive},
      [=] { return pncclReduce(send, receive, count, type, op, root, comm, stream); }, op);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return observed(
      "ncclAllReduce", count, type, -1, comm, stream, {send, receive},
      [=] { return pncclAllReduce(send, receive, count, type, op, comm, stream); }, op);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return observed("ncclAllGather", count, type, -1, comm, stream, {send, receive},
                  [=] { return pncclAllGather(send, receive, count, type, comm, stream); });
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return observed(
      "ncclReduceScatter", count, type, -1, comm, stream, {send, receive},
      [=] { return pncclReduceScatter(send, receive, count, type, op, comm, stream); }, op);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return observed("ncclAlltoAll", count, type, -1, comm, stream, {send, receive},
                  [=] { return pncclAlltoAll(send, receive, count, type, comm, stream); });
}

ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return observed("ncclGather", count, type, root, comm, stream, {send, receive},
                  [=] { return pncclGather(send, receive, count, type, root, comm, stream); });
}

ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return observed("ncclScatter", count, type, root, comm, stream, {send, receive},
                  [=] { return pncclScatter(send, receive, count, type, root, comm, stream); });
}
#endif

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return observed("ncclSend", count, type, peer, comm, stream, {send, nullptr},
                  [=] { return pncclSend(send, count, type, peer, comm, stream); });
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return observed("ncclRecv", count, type, peer, comm, stream, {nullptr, receive},
                  [=] { return pncclRecv(receive, count, type, peer, comm, stream); });
}

ncclResult_t ncclGroupStart() {
  if (++group.depth == 1) group.site = InCall::current();
  return pncclGroupStart();
}

// Enqueues all calls of the group together when the outermost group ends.
ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0) return pncclGroupEnd();
  group.depth = 0;
  const ncclResult_t status = enqueue(group.calls, pncclGroupEnd);
  group.calls.clear();
  for (const auto& action : std::exchange(group.then, {})) action();
  return status;
}

// ---- communicators -------------------------------------------------------------------------------------------------

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const ncclResult_t status = pncclCommInitRank(comm, ranks, id, rank);
  const std::string_view bytes(id.internal, sizeof id.internal);
  if (status != ncclSuccess || group.depth > 0) return status;
  const std::lock_guard lock(communicators().mutex);
  open_communicator(*comm, std::hash<std::string_view>()(bytes));
  return status;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* split, ncclConfig_t* config) {
  const NcclCall call = begin("ncclCommSplit", 0, -1, -1, comm, nullptr);
  return enqueue({&call, 1}, [&] {
    const ncclResult_t status = pncclCommSplit(comm, color, key, split, config);
    if (status != ncclSuccess || group.depth > 0 || *split == nullptr) return status;
    std::uint64_t id = 0;
    if (call.communicator != nullptr && call.communicator->id != 0) {
      id = std::hash<std::string>()(std::to_string(call.communicator->id) + " " + std::to_string(call.number) + " " +
                                    std::to_string(color));
    }
    const std::lock_guard lock(communicators().mutex);
    open_communicator(*split, id);
    return status;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static constexpr CallSite site = {"ncclCommDestroy", __FILE__, __LINE__};
  std::optional<InCall> in_call;
  if (InCall::current() == nullptr) in_call.emplace(site);  // called in a destructor, without NCCL_CHECK
  close_communicator(comm);
  return pncclCommDestroy(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  close_communicator(comm);
  return pncclCommAbort(comm);
}

}  // extern "C"
