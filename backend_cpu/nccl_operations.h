// SPDX-License-Identifier: Apache-2.0
// How NCCL's operations run: on the worker of a stream, as MPI calls.
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend_cpu/ranges.h"
#include "backend_cpu/simulation.h"
#include "backend_cpu/stream.h"

// A communicator is never freed, only marked, so a call with a destroyed one is an error, not a crash.
namespace workshop::cpu {
enum class Kind : std::uint8_t;
}

struct ncclComm {
  enum State { live, finalized, destroyed };

  std::atomic<State> state = live;
  std::atomic<bool> aborted = false;
  std::atomic<ncclResult_t> async_error = ncclSuccess;
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int device = 0;

  // With WORKSHOP_BLOCKING: the MPI communicator on which the hosts of the ranks wait for each other, and the peers
  // with which this rank is already connected, per direction.
  MPI_Comm hosts = MPI_COMM_NULL;
  std::set<std::pair<workshop::cpu::Kind, int>> connected;

  // Operations of one communicator run in the order in which they were issued, on any streams: each takes a ticket when
  // it is issued, and runs when the ticket is called.
  std::atomic<std::uint64_t> issued = 0;
  std::atomic<std::uint64_t> called = 0;
  workshop::cpu::Moment ended;        // the last operation, on the simulated machine; for the one whose turn it is
  std::atomic<bool> running = false;  // an operation is running
  std::atomic<workshop::cpu::StreamWorker*> collective = nullptr;  // the worker in a blocking MPI collective
};

namespace workshop::cpu {

enum class Kind : std::uint8_t {
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};
inline bool is_collective(Kind kind) { return kind != Kind::send && kind != Kind::receive; }

struct Operation {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  // or the peer of a send or receive
  std::size_t count;
  const void* from;
  void* to;
  ncclComm* comm;
};

// Returns the memory that an operation uses on this rank.
std::array<ByteRange, 2> ranges_of(const Operation& operation);

// Returns where the rank's part of a buffer with one part per rank begins.
const void* part(const void* buffer, const Operation& operation, int rank);

// Whether its buffers overlap without being in place (docs of NCCL, "In-place Operations").
bool overlaps_itself(const Operation& operation);

// An operation, the stream that it was issued on, and the place in the program.
struct GroupedOperation {
  Operation operation;
  cudaStream_t stream;
  SourceCall site;
};

// Checks the order of a group. All operations of the group on one communicator count as a single operation on all of
// their streams, because NCCL runs them in one kernel.
void check_order(const std::vector<GroupedOperation>& grouped);
// Checks the two buffers of an operation: ends the program if they overlap and are not in place.
void check_in_place(const Operation& operation, const char* function);

// The times of operations that run together, if a machine is simulated. Make it before they start: it tells the other
// ranks when they begin here. Another rank may need these times to end one operation before it can start the next,
// while this rank waits for both. For example, two receives in a group here wait for two sends that the other rank
// makes one after the other.
class SimulatedTimes {
 public:
  explicit SimulatedTimes(std::vector<Operation> operations);  // none of them: no machine is simulated
  ~SimulatedTimes();
  SimulatedTimes(const SimulatedTimes&) = delete;
  SimulatedTimes& operator=(const SimulatedTimes&) = delete;

  // Moves the clock of this thread on to their end. Call it when they are done.
  void pass();

 private:
  class Times;
  std::vector<Operation> operations_;
  Times* times_;
};

// Pauses between two polls of something that a different stream or rank does.
void pause_polling(int& polls);
bool any_aborted(const std::vector<Operation>& operations);

// Enqueues one operation, or all operations of a group as one.
void issue(const GroupedOperation& operation);
void issue_group(const std::vector<GroupedOperation>& group);

// Returns the size of an element in bytes; 0 for an invalid data type.
std::size_t element_size(ncclDataType_t type);

// Stores the text for ncclGetLastError and returns `result`.
[[gnu::format(printf, 2, 3)]] ncclResult_t error(ncclResult_t result, const char* format, ...);

// The same for an error of MPI, and for an error that ncclCommGetAsyncError reports.
ncclResult_t mpi_error(int status, const char* what);
void asynchronous_error(ncclComm& comm, ncclResult_t result);

// Notes that an operation was abandoned: see mpi_usable() in workshop_cpu.h.
void mpi_unusable();

// ---- checks of arguments -------------------------------------------------------------------------------------------

ncclResult_t check_pointer(const void* pointer, const char* name);
// A communicator that can take operations.
ncclResult_t check_live(const ncclComm* comm);
ncclResult_t refuse_in_group(const char* function);

}  // namespace workshop::cpu

// The nccl* names, for a program that does not define them itself.
#define WORKSHOP_WEAK_TWIN(name) extern "C" [[gnu::weak, gnu::alias("pnccl" #name)]] decltype(pnccl##name) nccl##name;
