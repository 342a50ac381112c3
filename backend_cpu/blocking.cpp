// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/blocking.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>

#include "backend_cpu/nccl_operations.h"
#include "backend_cpu/runtime.h"
#include "backend_cpu/stream.h"

namespace workshop::cpu {
namespace {

bool read_blocking() {
  const char* value = std::getenv("WORKSHOP_BLOCKING");
  const std::string_view text = value == nullptr ? "0" : value;
  if (text != "0" && text != "1") bad_environment("WORKSHOP_BLOCKING", value, "0 or 1");
  return text == "1";
}

bool loads_eagerly() {
  const char* value = std::getenv("CUDA_MODULE_LOADING");
  return value != nullptr && std::string_view(value) == "EAGER";
}

// In the place of a peer: a collective connects this rank to all others.
constexpr int kAllRanks = -1;

// Starts a meeting of the hosts of all ranks in the operation. Returns MPI_REQUEST_NULL for a message to this rank
// itself, or if the two ranks of a message have met before in this direction.
MPI_Request meet(const Operation& o) {
  ncclComm& comm = *o.comm;
  MPI_Request request = MPI_REQUEST_NULL;
  const bool collective = is_collective(o.kind);
  if (!collective && o.root == comm.rank) return request;
  const bool connects = comm.connected.insert({o.kind, collective ? kAllRanks : o.root}).second;
  if (connects) may_wait_for_device();  // NCCL allocates device memory for a connection
  if (collective) {
    MPI_Ibarrier(comm.hosts, &request);
  } else if (connects) {
    if (o.kind == Kind::send) {
      MPI_Issend(nullptr, 0, MPI_BYTE, o.root, /*tag=*/0, comm.hosts, &request);
    } else {
      MPI_Irecv(nullptr, 0, MPI_BYTE, o.root, /*tag=*/0, comm.hosts, &request);
    }
  }
  return request;
}

}  // namespace

bool blocks_host() {
  static const bool instance = read_blocking();
  return instance;
}

void may_wait_for_device() {
  if (blocks_host()) wait_for_device(current_device);
}

void load_kernel(std::size_t kernel) {
  static const bool waits = blocks_host() && !loads_eagerly();
  if (!waits) return;
  static std::mutex& mutex = *new std::mutex;
  static auto& loaded = *new std::set<std::size_t>;
  std::unique_lock lock(mutex);
  if (!loaded.insert(kernel).second) return;
  lock.unlock();
  wait_for_device(current_device);
}

void load_kernel(const void* kernel) { load_kernel(reinterpret_cast<std::size_t>(kernel)); }

void may_wait_for_ranks(const std::vector<GroupedOperation>& group) {
  if (!blocks_host()) return;
  std::vector<MPI_Request> requests;
  for (const GroupedOperation& member : group) requests.push_back(meet(member.operation));
  const auto aborted = [](const GroupedOperation& member) { return member.operation.comm->aborted.load(); };
  for (int polls = 0, done = 0;; pause_polling(polls)) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0 || std::any_of(group.begin(), group.end(), aborted)) return;
  }
}

}  // namespace workshop::cpu
