// SPDX-License-Identifier: Apache-2.0
// Reads the timelines that programs write with --timeline, and says how the ranks have spent their time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace workshop::tools {

// ---- what a timeline has -------------------------------------------------------------------------------------------

// A call of NCCL, as one rank has made it.
struct Call {
  std::string operation, communicator, id;
  int rank = 0, peer = -1;  // in the communicator; the peer of a message or the root
  std::int64_t number = 0;
  double bytes = 0;
};

// All times are microseconds since the clocks began.
struct Span {
  enum Kind { computation, communication, other };  // other: a name for what lies in it, such as "average gradients"
  Kind kind = other;
  std::string name;
  int rank = 0, stream = 0;
  double begin = 0, end = 0;
  int depth = 0;  // computations of its stream that it lies in
  // Of communication:
  double ready = 0;          // when the last of the ranks that it takes has begun its own part
  int waits_for = -1;        // which rank that is; -1 where it is this one, or not known
  std::string waits_in, on;  // "ncclRecv", on the communicator "gradients": the call that waits for it
  std::vector<Call> calls;

  std::string what() const;  // "ncclRecv: 4096 bytes from 1 on gradients", with ranks of the communicator
};

// What a rank holds on a device, from a moment on: bytes by kind.
struct Held {
  double at;
  std::map<std::string, double> bytes;
};

struct Timeline {
  std::string run;          // the line of the run in its record; empty where it is not known
  std::vector<Span> spans;  // by rank, stream and begin; a span comes before those in it
  std::map<int, std::vector<std::pair<double, double>>> steps;  // of each rank: begin and end
  std::map<std::pair<int, int>, std::string> streams;           // (rank, stream) -> its name
  std::map<std::pair<int, int>, std::vector<Held>> memory;      // (rank, device) -> its changes, in order
  std::set<int> ranks;
};

// Throws std::runtime_error where the file is no timeline: one line that says why.
Timeline read_timeline(const std::string& path);

// ---- how the time was spent ----------------------------------------------------------------------------------------

using Intervals = std::vector<std::pair<double, double>>;  // begin and end; in order, without overlaps

// What a rank did, on whatever stream; a moment may be in several of them.
struct Activity {
  Intervals computation;
  Intervals waiting;   // in a call of NCCL that another rank has not begun
  Intervals transfer;  // in a call that all of its ranks have begun
};
// On one of its streams or, with -1, on all.
Activity activity(const Timeline& timeline, int rank, int stream = -1);

// A part of the time, each moment of which is the first of these that it can be; idle is the rest.
struct Shares {
  double compute = 0, communication = 0, waiting = 0, idle = 0;
};
std::vector<Shares> shares(const Activity& activity, const Intervals& parts);
// The steps of a rank that count: not the first ones, in which NCCL connects the ranks. Without steps, all of its time
// as one.
Intervals counted_steps(const Timeline& timeline, int rank);
// The median over the steps. They add up to 1.
Shares typical_shares(const std::vector<Shares>& steps);

// What a rank waits for while it does nothing else.
struct Wait {
  int rank;  // that comes last
  std::string operation, communicator;
  double share;  // of the time
};
// In the steps that count, the longest first.
std::vector<Wait> waits(const Timeline& timeline, int rank);

// Seconds a step, on average over the ranks and the steps that count.
struct Communication {
  double seconds = 0;  // in which a rank communicates
  double exposed = 0;  // and does not compute meanwhile
};
Communication communication(const Timeline& timeline);

}  // namespace workshop::tools
