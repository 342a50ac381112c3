// SPDX-License-Identifier: Apache-2.0
// NCCL's functions that make, end and describe communicators.
#include <mpi.h>
#include <nccl.h>
#include <workshop_cpu.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "backend_cpu/blocking.h"
#include "backend_cpu/nccl_operations.h"

namespace workshop::cpu {
namespace {

std::atomic<bool> usable_mpi = true;

// All communicators. The list keeps their memory reachable; a destroyed one stays in it.
struct Communicators {
  std::mutex mutex;
  std::vector<ncclComm*> all;
};
Communicators& communicators() {
  static auto& instance = *new Communicators;
  return instance;
}

ncclComm* new_communicator(MPI_Comm mpi) {
  auto* comm = new ncclComm;
  comm->mpi = mpi;
  MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
  MPI_Comm_rank(mpi, &comm->rank);
  MPI_Comm_size(mpi, &comm->size);
  cudaGetDevice(&comm->device);
  may_wait_for_device();  // NCCL allocates device memory for a communicator
  if (blocks_host()) MPI_Comm_dup(mpi, &comm->hosts);
  const std::lock_guard lock(communicators().mutex);
  return communicators().all.emplace_back(comm);
}

bool is_communicator(const ncclComm* comm) {
  const std::lock_guard lock(communicators().mutex);
  return std::ranges::find(communicators().all, comm) != communicators().all.end();
}

ncclResult_t check_communicator(const ncclComm* comm) {
  if (!is_communicator(comm)) return error(ncclInvalidArgument, "not a communicator");
  if (comm->state == ncclComm::destroyed)
    return error(ncclInvalidArgument, "the communicator was destroyed or aborted");
  return ncclSuccess;
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

// The first bytes of an ncclUniqueId. They name the rank of the world at which the ranks of the new communicator meet.
struct Id {
  std::uint64_t magic;
  int root;
  int number;  // counts the ids that the root has made
};
constexpr std::uint64_t kIdMagic = 0x776f726b73686f70;

// A rank of the new communicator, and the same process's rank in the world.
struct Member {
  int rank;
  int world;
};

// On the root: returns the world rank of each member, in the order of the new communicator; all -1 if two members have
// the same rank in it.
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

// Returns the ranks of the world that make the new communicator, in its order.
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

// Makes a communicator of part of the world: its ranks meet at the one that made the id.
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

}  // namespace

ncclResult_t check_live(const ncclComm* comm) {
  const ncclResult_t result = check_communicator(comm);
  if (result != ncclSuccess) return result;
  if (comm->state == ncclComm::finalized) return error(ncclInvalidUsage, "the communicator was finalized");
  return comm->async_error;  // its text is already stored
}

void asynchronous_error(ncclComm& comm, ncclResult_t result) {
  ncclResult_t none = ncclSuccess;
  comm.async_error.compare_exchange_strong(none, result);
}

void mpi_unusable() { usable_mpi = false; }

bool mpi_usable() { return usable_mpi; }

}  // namespace workshop::cpu

using namespace workshop::cpu;

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

// Ends the running operation, if any, and drops those that are still queued. MPI's communicator is not freed, because
// other ranks may still use it.
ncclResult_t pncclCommAbort(ncclComm_t comm) {
  const ncclResult_t result = check_communicator(comm);
  if (result != ncclSuccess) return result;
  comm->state = ncclComm::destroyed;
  if (comm->called != comm->issued) mpi_unusable();
  comm->aborted = true;
  // An operation that polls notices the abort by itself. An operation inside a blocking MPI call cannot notice it, so
  // its worker is abandoned.
  while (comm->running) {
    StreamWorker* worker = comm->collective;
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

WORKSHOP_NCCL_COMMUNICATORS(WORKSHOP_WEAK_TWIN)
