// SPDX-License-Identifier: Apache-2.0
#include "backend_cpu/nccl_operations.h"

#include <cuda_bf16.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <type_traits>

#include "backend_cpu/blocking.h"
#include "backend_cpu/order.h"
#include "backend_cpu/simulation.h"

namespace workshop::cpu {
namespace {

constexpr int kTag = 0;
constexpr int kSlowMilliseconds = 5;

// ---- data types and reductions -------------------------------------------------------------------------------------

template <typename Combine>
void reduce_bfloat16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const __nv_bfloat16*>(in);
  auto* b = static_cast<__nv_bfloat16*>(inout);
  for (int i = 0; i < *count; ++i) b[i] = Combine()(__bfloat162float(a[i]), __bfloat162float(b[i]));
}

struct Sum {
  float operator()(float a, float b) const { return a + b; }
};
struct Product {
  float operator()(float a, float b) const { return a * b; }
};
struct Maximum {
  float operator()(float a, float b) const { return std::max(a, b); }
};
struct Minimum {
  float operator()(float a, float b) const { return std::min(a, b); }
};

MPI_Op make_op(MPI_User_function* function) {
  MPI_Op op = MPI_OP_NULL;
  MPI_Op_create(function, /*commute=*/1, &op);
  return op;
}

MPI_Op mpi_op(ncclRedOp_t op, ncclDataType_t type) {
  static constexpr auto index = [](ncclRedOp_t op) { return op == ncclAvg ? ncclSum : op; };
  static const MPI_Op standard[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN};
  if (type != ncclBfloat16) return standard[index(op)];
  static const MPI_Op bfloat16[] = {make_op(reduce_bfloat16<Sum>), make_op(reduce_bfloat16<Product>),
                                    make_op(reduce_bfloat16<Maximum>), make_op(reduce_bfloat16<Minimum>)};
  return bfloat16[index(op)];
}

template <typename T>
void divide_all(void* data, std::size_t count, int n) {
  auto* values = static_cast<T*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      values[i] *= T(1) / static_cast<T>(n);
    } else {
      values[i] = static_cast<T>(values[i] / static_cast<T>(n));
    }
  }
}

void divide_all_bfloat16(void* data, std::size_t count, int n) {
  auto* values = static_cast<__nv_bfloat16*>(data);
  for (std::size_t i = 0; i < count; ++i) values[i] = __bfloat162float(values[i]) * (1.0f / static_cast<float>(n));
}

struct DataType {
  std::size_t bytes = 0;
  MPI_Datatype mpi = MPI_DATATYPE_NULL;
  void (*divide)(void* values, std::size_t count, int n) = nullptr;
};

const DataType& data_type(ncclDataType_t type) {
  static const DataType types[] = {{1, MPI_INT8_T, divide_all<std::int8_t>},
                                   {1, MPI_UINT8_T, divide_all<std::uint8_t>},
                                   {4, MPI_INT32_T, divide_all<std::int32_t>},
                                   {4, MPI_UINT32_T, divide_all<std::uint32_t>},
                                   {8, MPI_INT64_T, divide_all<std::int64_t>},
                                   {8, MPI_UINT64_T, divide_all<std::uint64_t>},
                                   {},  // ncclFloat16 is not supported
                                   {4, MPI_FLOAT, divide_all<float>},
                                   {8, MPI_DOUBLE, divide_all<double>},
                                   {2, MPI_UINT16_T, divide_all_bfloat16}};  // reduced by the functions above
  static_assert(ncclInt8 == 0 && ncclUint64 == 5 && ncclFloat32 == 7 && ncclBfloat16 == 9);
  return types[type >= 0 && type <= ncclBfloat16 ? type : 6];
}

// ---- calls of MPI --------------------------------------------------------------------------------------------------

// Returns the buffer to broadcast. On the root that is `from`, and `to` gets a copy.
void* broadcast_buffer(const Operation& o) {
  if (o.comm->rank != o.root) return o.to;
  if (o.from != o.to && o.count > 0) std::memcpy(o.to, o.from, o.count * element_size(o.type));
  return const_cast<void*>(o.from);
}

// Starts an operation or, without `request`, runs a collective to its end. Both are here because for small messages,
// blocking collectives take half the time of nonblocking ones.
int call(const Operation& o, MPI_Request* request) {
  const int n = static_cast<int>(o.count);
  const MPI_Datatype type = data_type(o.type).mpi;
  const MPI_Comm comm = o.comm->mpi;
  const bool is_root = o.comm->rank == o.root;
  const auto run = [request](auto blocking, auto nonblocking, auto... args) {
    return request == nullptr ? blocking(args...) : nonblocking(args..., request);
  };
  switch (o.kind) {
    case Kind::broadcast:
      return run(MPI_Bcast, MPI_Ibcast, broadcast_buffer(o), n, type, o.root, comm);
    case Kind::reduce: {
      const void* from = is_root && o.from == o.to ? MPI_IN_PLACE : o.from;
      return run(MPI_Reduce, MPI_Ireduce, from, is_root ? o.to : nullptr, n, type, mpi_op(o.op, o.type), o.root, comm);
    }
    case Kind::all_reduce: {
      const void* from = o.from == o.to ? MPI_IN_PLACE : o.from;
      return run(MPI_Allreduce, MPI_Iallreduce, from, o.to, n, type, mpi_op(o.op, o.type), comm);
    }
    case Kind::reduce_scatter: {
      // In place, the result is this rank's part of `from`; MPI_IN_PLACE means something different. Open MPI reads all
      // of `from` before it writes the result, so the two may overlap; the conformance suite checks that.
      return run(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, o.from, o.to, n, type, mpi_op(o.op, o.type),
                 comm);
    }
    case Kind::all_gather: {
      const void* from = o.from == part(o.to, o, o.comm->rank) ? MPI_IN_PLACE : o.from;
      return run(MPI_Allgather, MPI_Iallgather, from, n, type, o.to, n, type, comm);
    }
    case Kind::all_to_all:
      return run(MPI_Alltoall, MPI_Ialltoall, o.from, n, type, o.to, n, type, comm);
    case Kind::gather: {
      const void* from = is_root && o.from == part(o.to, o, o.root) ? MPI_IN_PLACE : o.from;
      return run(MPI_Gather, MPI_Igather, from, n, type, is_root ? o.to : nullptr, n, type, o.root, comm);
    }
    case Kind::scatter: {
      void* to = is_root && o.to == part(o.from, o, o.root) ? MPI_IN_PLACE : o.to;
      return run(MPI_Scatter, MPI_Iscatter, is_root ? o.from : nullptr, n, type, to, n, type, o.root, comm);
    }
    // Synchronous for any size: a send ends when its receive has begun, as in NCCL.
    case Kind::send:
      return MPI_Issend(o.from, n, type, o.root, kTag, comm, request);
    case Kind::receive:
      return MPI_Irecv(o.to, n, type, o.root, kTag, comm, request);
  }
  return MPI_ERR_OTHER;
}

void check_status(const Operation& o, int status, const char* what) {
  if (status != MPI_SUCCESS) asynchronous_error(*o.comm, mpi_error(status, what));
}

// MPI reports no error for a message that is too short.
void check_received(const Operation& o, const MPI_Status& status) {
  int received = 0;
  MPI_Get_count(&status, data_type(o.type).mpi, &received);
  if (static_cast<std::size_t>(received) == o.count) return;
  asynchronous_error(
      *o.comm, error(ncclInvalidUsage, "receive of %zu elements from rank %d: it sent %d", o.count, o.root, received));
}

void complete(const Operation& o) {
  const bool has_result = o.kind == Kind::all_reduce || o.kind == Kind::reduce_scatter ||
                          (o.kind == Kind::reduce && o.comm->rank == o.root);
  // ncclAvg is a sum, scaled by 1/P. NCCL scales floating-point values before it adds them; here, the sum is scaled. If
  // P is a power of two, scaling is exact, and both orders give the same bits.
  if (has_result && o.op == ncclAvg) data_type(o.type).divide(o.to, o.count, o.comm->size);
}

// ---- taking turns --------------------------------------------------------------------------------------------------

// Waits for the operation's turn. Returns false if the communicator was aborted.
bool begin_turn(ncclComm& comm, std::uint64_t ticket) {
  for (int polls = 0; comm.called.load() != ticket && !comm.aborted;) pause_polling(polls);
  comm.running = true;
  if (simulates()) wait_until(comm.ended);
  if (!comm.aborted) return true;
  comm.running = false;
  return false;
}

void end_turn(ncclComm& comm, std::uint64_t ticket) {
  if (simulates()) comm.ended = moment();
  comm.called.store(ticket + 1, std::memory_order_release);
  comm.running.store(false, std::memory_order_release);
}

// ---- operations on a worker ----------------------------------------------------------------------------------------

// Copies `from` if the buffers overlap and are not in place. The result is then that of separate buffers, so that a
// mistake looks the same everywhere; each version of MPI would leave something different.
std::vector<std::byte> apart(Operation& o) {
  if (o.kind == Kind::reduce_scatter || !overlaps_itself(o)) return {};  // see call()
  const ByteRange from = ranges_of(o)[0];
  const auto* bytes = static_cast<const std::byte*>(o.from);
  std::vector<std::byte> copy(bytes, bytes + from.bytes);
  o.from = copy.data();
  return copy;
}

// An abandoned worker never passes the end of the Uninterruptible section, so it does not touch the result.
void run_collective(Operation o) {
  const std::vector<std::byte> copy = apart(o);
  SimulatedTimes times(simulates() ? std::vector{o} : std::vector<Operation>{});
  int status = MPI_SUCCESS;
  {
    o.comm->collective.store(this_worker(), std::memory_order_release);
    const Uninterruptible section;
    if (!o.comm->aborted) status = call(o, nullptr);
  }
  o.comm->collective.store(nullptr, std::memory_order_release);
  check_status(o, status, "collective");
  if (status != MPI_SUCCESS || o.comm->aborted) return;
  complete(o);
  times.pass();
}

// Cancels receives, which must not write into buffers that their owner may free now. MPI can cancel nothing else.
void cancel(const std::vector<Operation>& operations, std::vector<MPI_Request>& requests) {
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (requests[i] == MPI_REQUEST_NULL || operations[i].kind != Kind::receive) continue;
    MPI_Cancel(&requests[i]);
    MPI_Request_free(&requests[i]);
  }
}

// Starts all operations before it waits for any, so that they cannot block each other, whatever their order.
void run_together(const std::vector<Operation>& operations) {
  SimulatedTimes times(simulates() ? operations : std::vector<Operation>{});
  std::vector<MPI_Request> requests(operations.size(), MPI_REQUEST_NULL);
  std::vector<MPI_Status> statuses(operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    check_status(operations[i], call(operations[i], &requests[i]), "start of an operation");
  }
  int done = 0;
  int status = MPI_SUCCESS;
  for (int polls = 0;;) {
    status = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses.data());
    if (done != 0 || status != MPI_SUCCESS) break;
    if (any_aborted(operations)) return cancel(operations, requests);
    pause_polling(polls);
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& o = operations[i];
    check_status(o, status == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR, "operation");
    if (status != MPI_SUCCESS) continue;
    if (o.kind == Kind::receive) check_received(o, statuses[i]);
    complete(o);
  }
  if (status == MPI_SUCCESS) times.pass();
}

struct Ticket {
  ncclComm* comm;
  std::uint64_t number;
};

struct Group {
  std::vector<Operation> operations;
  std::vector<Ticket> tickets;
};

void run_group(const Group& group) {
  const auto begun = std::find_if_not(group.tickets.begin(), group.tickets.end(),
                                      [](const Ticket& ticket) { return begin_turn(*ticket.comm, ticket.number); });
  if (begun == group.tickets.end()) run_together(group.operations);
  // If one communicator was aborted, the whole group ends.
  std::for_each(group.tickets.begin(), begun, [](const Ticket& ticket) { end_turn(*ticket.comm, ticket.number); });
  std::for_each(begun, group.tickets.end(), [](const Ticket& ticket) {
    if (ticket.comm->aborted) return;
    if (begin_turn(*ticket.comm, ticket.number)) end_turn(*ticket.comm, ticket.number);
  });
}

// Tickets are taken in the order in which the operations enter their streams.
std::mutex& issue_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

Group make_group(const std::vector<GroupedOperation>& grouped) {
  Group group;
  for (const GroupedOperation& member : grouped) {
    group.operations.push_back(member.operation);
    ncclComm* comm = member.operation.comm;
    const auto same = [comm](const Ticket& ticket) { return ticket.comm == comm; };
    if (std::any_of(group.tickets.begin(), group.tickets.end(), same)) continue;
    group.tickets.push_back({comm, comm->issued++});
  }
  return group;
}

}  // namespace

// At first, yields the core to other threads. After about a millisecond, sleeps between polls, so that ranks that wait
// for long leave the cores to others.
void pause_polling(int& polls) {
  if (++polls < 2000) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

bool any_aborted(const std::vector<Operation>& operations) {
  return std::any_of(operations.begin(), operations.end(), [](auto& o) { return o.comm->aborted.load(); });
}

std::size_t element_size(ncclDataType_t type) { return data_type(type).bytes; }

void issue(const GroupedOperation& issued) {
  const auto& [operation, stream, site] = issued;
  if (!is_collective(operation.kind)) return issue_group({issued});
  may_wait_for_ranks({issued});
  if (checks_order()) check_order({issued});
  if (slow().collectives) enqueue_delay(stream, kSlowMilliseconds);
  std::unique_lock lock(issue_mutex());
  const std::uint64_t ticket = operation.comm->issued++;
  const int call = simulates() ? number_of(site) : 0;
  const Position end = enqueue(stream, [queued = operation, ticket, call] {
    const Operation o = queued;  // a copy: the queue's is overwritten if this worker is abandoned
    const int number = call;
    const Moment begin = moment();
    if (!begin_turn(*o.comm, ticket)) return;
    run_collective(o);
    if (simulates()) note_stall(number, begin, this_worker()->stream, nullptr);
    end_turn(*o.comm, ticket);
  });
  lock.unlock();
  if (launch_blocking()) wait_for(end);
}

void issue_group(const std::vector<GroupedOperation>& grouped) {
  may_wait_for_ranks(grouped);
  if (checks_order()) check_order(grouped);
  std::vector<cudaStream_t> streams;
  for (const GroupedOperation& member : grouped) {
    if (std::find(streams.begin(), streams.end(), member.stream) == streams.end()) streams.push_back(member.stream);
  }
  std::unique_lock lock(issue_mutex());
  const cudaStream_t leader = streams[0];
  for (std::size_t i = 1; i < streams.size(); ++i) enqueue_wait(leader, mark(streams[i]));
  if (slow().collectives) enqueue_delay(leader, kSlowMilliseconds);
  auto* group = new Group(make_group(grouped));
  const int call = simulates() ? number_of(grouped[0].site) : 0;
  const auto run = [group, call] {
    const Moment begin = moment();
    const int number = call;
    run_group(*group);
    if (simulates()) note_stall(number, begin, this_worker()->stream, nullptr);
    delete group;
  };
  const Position end = enqueue(leader, run);
  for (std::size_t i = 1; i < streams.size(); ++i) enqueue_wait(streams[i], end);
  lock.unlock();
  if (launch_blocking()) wait_for(end);
}

}  // namespace workshop::cpu
