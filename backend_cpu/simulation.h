// SPDX-License-Identifier: Apache-2.0
// A simulated machine, WORKSHOP_SIMULATE="compute=500G,link=5us+1G/s,node=4,between=20us+100M/s,host=2us+10G/s".
// Everything is computed and sent here, as usual. In addition, the backend adds up how long it would take there, and
// events report those times.
//
// Each stream, and each thread of the host, has its own clock that starts at 0. An operation begins when the previous
// one on its stream has ended, when the host has enqueued it, and when the work that it waits for has ended. A kernel
// takes its operations divided by the speed of the device, which runs one kernel at a time. A message takes the latency
// of its link, and its bytes divided by the bandwidth, which messages of a rank in the same direction share. A
// collective takes the steps of its ring or tree, from when the last of its ranks begins. The operations of a
// communicator run one after the other. The host takes time only to enqueue operations, and only with "call=2us". So the
// times do not depend on how fast this machine is, and nothing has to wait for them.
#pragma once

#include <cuda_runtime.h>
#include <workshop_cpu.h>

#include <chrono>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>

namespace workshop::cpu {

using Moment = std::chrono::steady_clock::time_point;

struct LinkSpeed {
  double latency = 0;           // seconds per message
  double seconds_per_byte = 0;  // 1 / bandwidth
};

struct SimulatedMachine {
  double seconds_per_operation = 0;
  LinkSpeed link, between;                     // between ranks on one node; between ranks on different nodes
  LinkSpeed host;                              // between a device and its host
  double call = 0;                             // seconds in which the host enqueues an operation
  int node = std::numeric_limits<int>::max();  // ranks of the world per node
};

// The machine that a text describes, or the part of the text that is wrong.
struct ParsedMachine {
  std::optional<SimulatedMachine> machine;
  std::string error;
};
ParsedMachine parse_machine(const std::string& text);

// Returns the machine of WORKSHOP_SIMULATE; null if it is not set.
const SimulatedMachine* read_machine();
inline const SimulatedMachine* simulated_machine() {
  static const SimulatedMachine* const instance = read_machine();
  return instance;
}
inline bool simulates() { return simulated_machine() != nullptr; }

// How long a call takes: `latency` seconds before the first byte arrives, `transfer` on the link.
struct Duration {
  double latency = 0, transfer = 0;
};
// `bytes` is the size of the longest buffer of a rank, as in nccl-tests.
enum class Pattern { all_reduce, part_per_rank, tree, through_root };
Duration collective_time(Pattern pattern, int ranks, std::size_t bytes, const LinkSpeed& link);
inline Duration message_time(std::size_t bytes, const LinkSpeed& link) {
  return {link.latency, static_cast<double>(bytes) * link.seconds_per_byte};
}

// ---- the clock of the thread that calls ----------------------------------------------------------------------------

Moment moment();
// Adds the time in which the host enqueues an operation. Returns when it has done so.
Moment simulate_call();
// Moves the clock on to `end`, when something that the thread has waited for has ended.
void wait_until(Moment end);

// Adds the time of a kernel on a device, of a copy from one device of the process to another, or of one between a
// device and the host. A function on the host takes as long as a copy of nothing.
void simulate_kernel(double operations, int device);
void simulate_copy(std::size_t bytes);
void simulate_host_copy(std::size_t bytes);

// Occupies the link in a direction for `seconds`, from `earliest` on. Returns the end. `first`: when the first of the
// messages begins, for overlaps() in workshop_cpu.h.
enum class Direction { out, in };
Moment use_link(Direction direction, bool between, Moment first, Moment earliest, double seconds);

// ---- what holds streams up (stalls() in workshop_cpu.h) ------------------------------------------------------------

// Returns a number for a call of the program. Costs time: do not call it for each operation unless a machine is
// simulated.
int number_of(const SourceCall& call);
inline constexpr int kLateHost = -1;

// Notes that this call has held up the calling thread from `begin` until now. The thread is that of stream `on`, or of
// the host if `on` is null. It waited for the stream `behind`, if that is not null.
void note_stall(int call, Moment begin, const CUstream_st* on, const CUstream_st* behind);
// Notes that the program's own thread lets the host wait. Does nothing on a simulated machine, where note_stall() notes
// the waits that take time.
void note_wait_of_host();

inline Moment later(Moment moment, double seconds) {
  return moment + std::chrono::round<Moment::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace workshop::cpu
