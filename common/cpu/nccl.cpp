// The functions of NCCL: communicators, groups, and the checks of arguments. What the operations do is in
// nccl_operations.cpp.
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

#include "common/cpu/nccl_operations.h"

namespace workshop::cpu {
namespace {

std::atomic<bool> usable_mpi = true;

// ---- errors --------------------------------------------------------------------------------------------------------

struct LastError {
  std::mutex mutex;
  char text[512] = "";
};

LastError& last_error() {
  static LastError& instance = *new LastError;
  return instance;
}

// ---- communicators -------------------------------------------------------------------------------------------------

// All communicators that ever were: keeps their memory reachable.
ncclComm* new_communicator(MPI_Comm mpi) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::vector<ncclComm*>;
  auto* comm = new ncclComm;
  comm->mpi = mpi;
  MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
  MPI_Comm_rank(mpi, &comm->rank);
  MPI_Comm_size(mpi, &comm->size);
  cudaGetDevice(&comm->device);
  const std::lock_guard lock(mutex);
  return all.emplace_back(comm);
}

ncclResult_t check_communicator(const ncclComm* comm) {
  if (comm == nullptr || comm->magic != ncclComm::kMagic) return error(ncclInvalidArgument, "not a communicator");
  if (comm->state == ncclComm::destroyed)
    return error(ncclInvalidArgument, "the communicator was destroyed or aborted");
  return ncclSuccess;
}

ncclResult_t check_pointer(const void* pointer, const char* name) {
  return pointer != nullptr ? ncclSuccess : error(ncclInvalidArgument, "%s is NULL", name);
}

// A communicator that can take operations.
ncclResult_t check_live(const ncclComm* comm) {
  const ncclResult_t result = check_communicator(comm);
  if (result != ncclSuccess) return result;
  if (comm->state == ncclComm::finalized) return error(ncclInvalidUsage, "the communicator was finalized");
  return comm->async_error;  // its text is kept already
}

ncclResult_t check_mpi() {
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) return ncclSuccess;
  return error(ncclInvalidUsage, "MPI must be initialized with MPI_THREAD_MULTIPLE first, and not be finalized");
}

ncclResult_t check_config(const ncclConfig_t* config) {
  if (config == nullptr) return ncclSuccess;
  if (config->magic != 0xcafebeef) return error(ncclInvalidArgument, "config is not NCCL_CONFIG_INITIALIZER");
  if (config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking == 1) return ncclSuccess;
  return error(ncclInvalidArgument, "config.blocking is %d; communicators on the CPU are blocking", config->blocking);
}

// Waits until all operations issued so far have run.
void drain(const ncclComm& comm) {
  while (comm.called != comm.issued && !comm.aborted) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// The beginning of ncclUniqueId: which rank of the world brings the ranks of the communicator together.
struct Id {
  std::uint64_t magic;
  int root;
  int number;  // of the ids that the root has made
};
constexpr std::uint64_t kIdMagic = 0x776f726b73686f70;

// A rank of the new communicator, and the rank of the world that has it.
struct Member {
  int rank;
  int world;
};

// On the root: the ranks of the world in the order of the new communicator, -1 in place of them if that makes no sense.
std::vector<int> collect_members(const Member& self, int nranks, int tag, std::vector<int>& senders) {
  std::vector<int> order(nranks, -1);
  bool unique = true;
  const auto add = [&](const Member& member) {
    unique = unique && order[member.rank] == -1;
    order[member.rank] = member.world;
  };
  add(self);
  for (int i = 1; i < nranks; ++i) {
    Member member;
    MPI_Recv(&member, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    senders.push_back(member.world);
    add(member);
  }
  if (!unique) order.assign(nranks, -1);
  return order;
}

// The ranks of the world that make the new communicator, in its order.
std::vector<int> meet(const Id& id, int nranks, const Member& self, int tag) {
  std::vector<int> order(nranks, -1);
  if (self.world == id.root) {
    std::vector<int> senders;
    order = collect_members(self, nranks, tag, senders);
    for (int sender : senders) MPI_Send(order.data(), nranks, MPI_INT, sender, tag + 1, MPI_COMM_WORLD);
  } else {
    MPI_Send(&self, 2, MPI_INT, id.root, tag, MPI_COMM_WORLD);
    MPI_Recv(order.data(), nranks, MPI_INT, id.root, tag + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  return order;
}

// A communicator of part of the world: its ranks meet at the one that made the id.
ncclResult_t create_from_members(const Id& id, int nranks, int rank, MPI_Comm* created) {
  constexpr int kFirstTag = 1 << 10, kTags = 1 << 12;
  const int tag = kFirstTag + 2 * (id.number % kTags);
  Member self = {rank, 0};
  MPI_Comm_rank(MPI_COMM_WORLD, &self.world);
  const std::vector<int> order = meet(id, nranks, self, tag);
  if (order[0] == -1) return error(ncclInvalidArgument, "two processes came with the same rank");
  MPI_Group world, members;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, nranks, order.data(), &members);
  const int status = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, created);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  return status == MPI_SUCCESS ? ncclSuccess : mpi_error(status, "MPI_Comm_create_group");
}

ncclResult_t create_communicator(const Id& id, int nranks, int rank, MPI_Comm* created) {
  int world = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (nranks > world) return error(ncclInvalidArgument, "%d ranks in a job of %d processes", nranks, world);
  if (nranks < world && nranks > 1) return create_from_members(id, nranks, rank, created);
  const int status =
      nranks == 1 ? MPI_Comm_dup(MPI_COMM_SELF, created) : MPI_Comm_split(MPI_COMM_WORLD, /*color=*/0, rank, created);
  return status == MPI_SUCCESS ? ncclSuccess : mpi_error(status, "creation of a communicator");
}

// ---- groups --------------------------------------------------------------------------------------------------------

// The group that this thread is in.
struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;  // the first one
  std::vector<GroupedOperation> operations;
};
thread_local OpenGroup open_group;

ncclResult_t refuse_in_group(const char* function) {
  if (open_group.depth == 0) return ncclSuccess;
  return error(ncclInvalidUsage, "%s is not supported inside a group on the CPU", function);
}

// As many messages from this rank to itself must be sent as are received.
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

// A message to oneself needs its other half in the same group: nobody else could ever complete it.
ncclResult_t check_peer(const Operation& o, const char* function) {
  const bool is_message = o.kind == Kind::send || o.kind == Kind::receive;
  if (!is_message || o.root != o.comm->rank) return ncclSuccess;
  return error(ncclInvalidUsage, "%s to or from this rank itself outside a group", function);
}

ncclResult_t submit(const Operation& operation, cudaStream_t stream, const char* function) {
  ncclResult_t result = check_operation(operation, stream, function);
  if (result == ncclSuccess && open_group.depth == 0) result = check_peer(operation, function);
  if (open_group.depth > 0) {
    if (open_group.error == ncclSuccess) open_group.error = result;
    if (result == ncclSuccess) open_group.operations.push_back({operation, stream});
  } else if (result == ncclSuccess) {
    issue(operation, stream);
  }
  return result;
}

}  // namespace

ncclResult_t error(ncclResult_t result, const char* format, ...) {
  LastError& last = last_error();
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

void asynchronous_error(ncclComm& comm, ncclResult_t result) {
  ncclResult_t none = ncclSuccess;
  comm.async_error.compare_exchange_strong(none, result);
}

void mpi_unusable() { usable_mpi = false; }

bool mpi_usable() { return usable_mpi; }

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

// The text belongs to the calling thread until its next call.
const char* pncclGetLastError(ncclComm_t) {
  thread_local char copy[sizeof(LastError::text)];
  LastError& last = last_error();
  const std::lock_guard lock(last.mutex);
  std::memcpy(copy, last.text, sizeof copy);
  return copy;
}

ncclResult_t pncclGetVersion(int* version) {
  const ncclResult_t result = check_pointer(version, "version");
  if (result == ncclSuccess) *version = NCCL_VERSION_CODE;
  return result;
}

ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
  ncclResult_t result = check_pointer(id, "id");
  if (result == ncclSuccess) result = check_mpi();
  if (result != ncclSuccess) return result;
  static std::atomic<int> made = 0;
  Id content = {kIdMagic, 0, made++};
  MPI_Comm_rank(MPI_COMM_WORLD, &content.root);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &content, sizeof content);
  return ncclSuccess;
}

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return pncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  ncclResult_t result = check_pointer(comm, "comm");
  if (result == ncclSuccess) result = check_config(config);
  if (result == ncclSuccess) result = check_mpi();
  if (result == ncclSuccess) result = refuse_in_group("ncclCommInitRank");
  if (result != ncclSuccess) return result;
  Id content;
  std::memcpy(&content, &id, sizeof content);
  if (content.magic != kIdMagic) return error(ncclInvalidArgument, "the id does not come from ncclGetUniqueId");
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return error(ncclInvalidArgument, "rank %d of %d ranks", rank, nranks);
  }
  MPI_Comm created = MPI_COMM_NULL;
  result = create_communicator(content, nranks, rank, &created);
  if (result == ncclSuccess) *comm = new_communicator(created);
  return result;
}

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  ncclResult_t result = check_live(comm);
  if (result == ncclSuccess) result = check_pointer(newcomm, "newcomm");
  if (result == ncclSuccess) result = check_config(config);
  if (result == ncclSuccess) result = refuse_in_group("ncclCommSplit");
  if (result != ncclSuccess) return result;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return error(ncclInvalidArgument, "color is %d", color);
  drain(*comm);
  MPI_Comm created = MPI_COMM_NULL;
  const int status = MPI_Comm_split(comm->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &created);
  if (status != MPI_SUCCESS) return mpi_error(status, "MPI_Comm_split");
  *newcomm = created == MPI_COMM_NULL ? nullptr : new_communicator(created);
  return ncclSuccess;
}

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  const ncclResult_t result = check_live(comm);
  if (result != ncclSuccess) return result;
  drain(*comm);
  comm->state = ncclComm::finalized;
  return ncclSuccess;
}

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  const ncclResult_t result = check_communicator(comm);
  if (result != ncclSuccess) return result;
  drain(*comm);
  comm->state = ncclComm::destroyed;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Comm_free(&comm->mpi);
  return ncclSuccess;
}

// Ends the operation under way, if any, and drops those still in a queue. The communicator of MPI stays as it is:
// others may still be using it.
ncclResult_t pncclCommAbort(ncclComm_t comm) {
  const ncclResult_t result = check_communicator(comm);
  if (result != ncclSuccess) return result;
  comm->state = ncclComm::destroyed;
  if (comm->called != comm->issued) mpi_unusable();
  comm->aborted = true;
  // An operation that polls sees that by itself. One inside a blocking call of MPI loses its worker.
  while (comm->running) {
    Worker* worker = comm->collective;
    if (worker != nullptr && abandon(*worker)) break;
    std::this_thread::yield();
  }
  return ncclSuccess;
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  ncclResult_t result = check_communicator(comm);
  if (result == ncclSuccess) result = check_pointer(error, "error");
  if (result == ncclSuccess) *error = comm->async_error;
  return result;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  ncclResult_t result = check_communicator(comm);
  if (result == ncclSuccess) result = check_pointer(count, "count");
  if (result == ncclSuccess) *count = comm->size;
  return result;
}

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  ncclResult_t result = check_communicator(comm);
  if (result == ncclSuccess) result = check_pointer(rank, "rank");
  if (result == ncclSuccess) *rank = comm->rank;
  return result;
}

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  ncclResult_t result = check_communicator(comm);
  if (result == ncclSuccess) result = check_pointer(device, "device");
  if (result == ncclSuccess) *device = comm->device;
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

// The nccl* names, for a program that puts nothing of its own in their place.
#define WORKSHOP_WEAK_TWIN(name) extern "C" [[gnu::weak, gnu::alias("pnccl" #name)]] decltype(pnccl##name) nccl##name
WORKSHOP_WEAK_TWIN(GetErrorString);
WORKSHOP_WEAK_TWIN(GetLastError);
WORKSHOP_WEAK_TWIN(GetVersion);
WORKSHOP_WEAK_TWIN(GetUniqueId);
WORKSHOP_WEAK_TWIN(CommInitRank);
WORKSHOP_WEAK_TWIN(CommInitRankConfig);
WORKSHOP_WEAK_TWIN(CommSplit);
WORKSHOP_WEAK_TWIN(CommFinalize);
WORKSHOP_WEAK_TWIN(CommDestroy);
WORKSHOP_WEAK_TWIN(CommAbort);
WORKSHOP_WEAK_TWIN(CommGetAsyncError);
WORKSHOP_WEAK_TWIN(CommCount);
WORKSHOP_WEAK_TWIN(CommUserRank);
WORKSHOP_WEAK_TWIN(CommCuDevice);
WORKSHOP_WEAK_TWIN(GroupStart);
WORKSHOP_WEAK_TWIN(GroupEnd);
WORKSHOP_WEAK_TWIN(Broadcast);
WORKSHOP_WEAK_TWIN(Bcast);
WORKSHOP_WEAK_TWIN(Reduce);
WORKSHOP_WEAK_TWIN(AllReduce);
WORKSHOP_WEAK_TWIN(ReduceScatter);
WORKSHOP_WEAK_TWIN(AllGather);
WORKSHOP_WEAK_TWIN(AlltoAll);
WORKSHOP_WEAK_TWIN(Gather);
WORKSHOP_WEAK_TWIN(Scatter);
WORKSHOP_WEAK_TWIN(Send);
WORKSHOP_WEAK_TWIN(Recv);
