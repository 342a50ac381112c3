// SPDX-License-Identifier: Apache-2.0
// A machine that this one stands for, WORKSHOP_SIMULATE="compute=500G,link=5us+1G/s,node=4,between=20us+100M/s". What
// is computed and sent is computed and sent here; how long that takes there is added up beside it, and is what events
// tell.
//
// Each stream, and each thread of the host, has a clock of its own that starts at 0. An operation begins when the one
// before it on its stream has ended, when the host has enqueued it, and when what it waits for has ended. A kernel
// takes its operations divided by the speed of the device, which has one kernel at a time. A message takes the latency
// of its link, and its bytes divided by the bandwidth, which messages of a rank in the same direction share. A
// collective takes the steps of its ring or tree, from when the last of its ranks begins. The host takes no time. So
// what is told does not depend on how fast this machine is, and nothing has to wait for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>

namespace workshop::cpu {

using Moment = std::chrono::steady_clock::time_point;

struct LinkSpeed {
  double latency = 0;           // seconds a message
  double seconds_per_byte = 0;  // 1 / bandwidth
};

struct SimulatedMachine {
  double seconds_per_operation = 0;
  LinkSpeed link, between;                     // of ranks on a node; of ranks on different nodes
  int node = std::numeric_limits<int>::max();  // ranks of the world on a node
};

// The machine that `text` describes, or what is wrong with it.
struct ParsedMachine {
  std::optional<SimulatedMachine> machine;
  std::string error;
};
ParsedMachine parse_machine(const std::string& text);

// What WORKSHOP_SIMULATE asks for; null where it is not set.
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
// `bytes` is the longest buffer that a rank takes part with, as in nccl-tests.
enum class Pattern { all_reduce, part_per_rank, tree, through_root };
Duration collective_time(Pattern pattern, int ranks, std::size_t bytes, const LinkSpeed& link);
inline Duration message_time(std::size_t bytes, const LinkSpeed& link) {
  return {link.latency, static_cast<double>(bytes) * link.seconds_per_byte};
}

// ---- the clock of the thread that calls ----------------------------------------------------------------------------

Moment moment();
// Something that the thread has waited for ended then.
void wait_until(Moment end);

// Takes the time of a kernel on a device, or of a copy from one device of the process to another.
void simulate_kernel(double operations, int device);
void simulate_copy(std::size_t bytes);

// Takes `seconds` of the link in a direction, from `earliest` on; returns the end.
enum class Direction { out, in };
Moment use_link(Direction direction, bool between, Moment earliest, double seconds);

inline Moment later(Moment moment, double seconds) {
  return moment + std::chrono::duration_cast<Moment::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace workshop::cpu
