// SPDX-License-Identifier: Apache-2.0
// NCCL's functions: errors, groups, and the operations with their argument checks. nccl_operations.cpp runs the
// operations.
#include <mpi.h>
#include <nccl.h>
#include <workshop_cpu.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "backend_cpu/nccl_operations.h"

namespace workshop::cpu {
namespace {

// ---- errors --------------------------------------------------------------------------------------------------------

struct LastError {
  std::mutex mutex;
  char text[512] = "";
};

LastError& last_nccl_error() {
  static LastError& instance = *new LastError;
  return instance;
}

// ---- groups --------------------------------------------------------------------------------------------------------

// The group that this thread is in.
struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;  // the first error
  std::vector<GroupedOperation> operations;
};
thread_local OpenGroup open_group;

// Checks that a group sends as many messages from this rank to itself as it receives.
ncclResult_t check_self_messages(const std::vector<GroupedOperation>& group) {
  for (const GroupedOperation& member : group) {
    const ncclComm* comm = member.operation.comm;
    const auto to_self = [comm](Kind kind) {
      return [comm, kind](const GroupedOperation& m) {
        return m.operation.comm == comm && m.operation.kind == kind && m.operation.root == comm->rank;
      };
    };
    if (std::count_if(group.begin(), group.end(), to_self(Kind::send)) !=
        std::count_if(group.begin(), group.end(), to_self(Kind::receive))) {
      return error(ncclInvalidUsage, "a group sends to this rank itself what it does not receive, or the reverse");
    }
  }
  return ncclSuccess;
}

// ---- operations ----------------------------------------------------------------------------------------------------

bool uses_root(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather || kind == Kind::scatter ||
         kind == Kind::send || kind == Kind::receive;
}

ncclResult_t check_buffers(const Operation& o, const char* function) {
  const bool is_root = o.comm->rank == o.root;
  bool needs_from = o.kind != Kind::receive, needs_to = o.kind != Kind::send;
  if (o.kind == Kind::broadcast || o.kind == Kind::scatter) needs_from = is_root;
  if (o.kind == Kind::reduce || o.kind == Kind::gather) needs_to = is_root;
  if (o.count == 0) return ncclSuccess;
  if (needs_from && o.from == nullptr) return error(ncclInvalidArgument, "%s: sendbuff is NULL", function);
  if (needs_to && o.to == nullptr) return error(ncclInvalidArgument, "%s: recvbuff is NULL", function);
  return ncclSuccess;
}

ncclResult_t check_operation(const Operation& o, cudaStream_t stream, const char* function) {
  const ncclResult_t result = check_live(o.comm);
  if (result != ncclSuccess) return result;
  if (!usable(stream)) return error(ncclInvalidArgument, "%s: the stream was destroyed", function);
  if (element_size(o.type) == 0) return error(ncclInvalidArgument, "%s: invalid datatype %d", function, o.type);
  if (o.op < ncclSum || o.op >= ncclNumOps) return error(ncclInvalidArgument, "%s: invalid op %d", function, o.op);
  if (uses_root(o.kind) && (o.root < 0 || o.root >= o.comm->size)) {
    return error(ncclInvalidArgument, "%s: root or peer is %d; expected 0 to %d", function, o.root, o.comm->size - 1);
  }
  if (o.count > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return error(ncclInvalidArgument, "%s: %zu elements in one call; MPI takes 2147483647", function, o.count);
  }
  return check_buffers(o, function);
}

// Refuses a message of this rank to itself outside a group: no other rank could ever complete it.
ncclResult_t check_peer(const Operation& o, const char* function) {
  const bool is_message = o.kind == Kind::send || o.kind == Kind::receive;
  if (!is_message || o.root != o.comm->rank) return ncclSuccess;
  return error(ncclInvalidUsage, "%s to or from this rank itself outside a group", function);
}

ncclResult_t submit(const Operation& operation, cudaStream_t stream, const char* function) {
  ncclResult_t result = check_operation(operation, stream, function);
  if (result == ncclSuccess) {
    check_bounds(function, ranges_of(operation));
    check_in_place(operation, function);
  }
  if (result == ncclSuccess && open_group.depth == 0) result = check_peer(operation, function);
  if (open_group.depth > 0) {
    if (open_group.error == ncclSuccess) open_group.error = result;
    if (result == ncclSuccess) open_group.operations.push_back({operation, stream, source_call(function)});
  } else if (result == ncclSuccess) {
    issue({operation, stream, source_call(function)});
  }
  return result;
}

}  // namespace

ncclResult_t refuse_in_group(const char* function) {
  if (open_group.depth == 0) return ncclSuccess;
  return error(ncclInvalidUsage, "%s is not supported inside a group on the CPU", function);
}

ncclResult_t check_pointer(const void* pointer, const char* name) {
  return pointer != nullptr ? ncclSuccess : error(ncclInvalidArgument, "%s is NULL", name);
}

ncclResult_t error(ncclResult_t result, const char* format, ...) {
  LastError& last = last_nccl_error();
  const std::lock_guard lock(last.mutex);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last.text, sizeof last.text, format, arguments);
  va_end(arguments);
  return result;
}

ncclResult_t mpi_error(int status, const char* what) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  return error(ncclSystemError, "%s: %s", what, text);
}

}  // namespace workshop::cpu

using namespace workshop::cpu;

const char* pncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclNumResults:
      break;
  }
  return "unknown result code";
}

// The text is valid until the calling thread's next call.
const char* pncclGetLastError(ncclComm_t) {
  thread_local char copy[sizeof(LastError::text)];
  LastError& last = last_nccl_error();
  const std::lock_guard lock(last.mutex);
  std::memcpy(copy, last.text, sizeof copy);
  return copy;
}

ncclResult_t pncclGetVersion(int* version) {
  const ncclResult_t result = check_pointer(version, "version");
  if (result == ncclSuccess) *version = NCCL_VERSION_CODE;
  return result;
}

ncclResult_t pncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd() {
  if (open_group.depth == 0) return error(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open_group.depth > 0) return ncclSuccess;
  OpenGroup group = std::exchange(open_group, {});
  if (group.error == ncclSuccess) group.error = check_self_messages(group.operations);
  if (group.error == ncclSuccess && !group.operations.empty()) issue_group(group.operations);
  return group.error;
}

ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                            ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::broadcast, datatype, ncclSum, root, count, sendbuff, recvbuff, comm}, stream, "ncclBroadcast");
}

ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return submit({Kind::broadcast, datatype, ncclSum, root, count, buff, buff, comm}, stream, "ncclBcast");
}

ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::reduce, datatype, op, root, count, sendbuff, recvbuff, comm}, stream, "ncclReduce");
}

ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::all_reduce, datatype, op, 0, count, sendbuff, recvbuff, comm}, stream, "ncclAllReduce");
}

ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::reduce_scatter, datatype, op, 0, recvcount, sendbuff, recvbuff, comm}, stream,
                "ncclReduceScatter");
}

ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::all_gather, datatype, ncclSum, 0, sendcount, sendbuff, recvbuff, comm}, stream, "ncclAllGather");
}

ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({Kind::all_to_all, datatype, ncclSum, 0, count, sendbuff, recvbuff, comm}, stream, "ncclAlltoAll");
}

ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::gather, datatype, ncclSum, root, count, sendbuff, recvbuff, comm}, stream, "ncclGather");
}

ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                          ncclComm_t comm, cudaStream_t stream) {
  return submit({Kind::scatter, datatype, ncclSum, root, count, sendbuff, recvbuff, comm}, stream, "ncclScatter");
}

ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return submit({Kind::send, datatype, ncclSum, peer, count, sendbuff, nullptr, comm}, stream, "ncclSend");
}

ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return submit({Kind::receive, datatype, ncclSum, peer, count, nullptr, recvbuff, comm}, stream, "ncclRecv");
}

// The nccl* names, for a program that does not define them itself.
WORKSHOP_NCCL_CALLS(WORKSHOP_WEAK_TWIN)
