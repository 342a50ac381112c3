// SPDX-License-Identifier: Apache-2.0
// Reads the timelines that programs write with --timeline, and computes how the ranks spent their time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace workshop::tools {

// ---- the timeline --------------------------------------------------------------------------------------------------

// An NCCL call of one rank.
struct Call {
  std::string operation, communicator, id;
  int rank = 0, peer = -1;  // ranks in the communicator; `peer` is the other rank of a message, or the root
  std::int64_t number = 0;
  double bytes = 0;
};

// All times are microseconds since the start of the clocks.
struct Span {
  enum Kind { computation, communication, other };  // other: only a name for the spans in it: "average gradients"
  Kind kind = other;
  std::string name;
  int rank = 0, stream = 0;
  double begin = 0, end = 0;
  int depth = 0;  // number of computations on its stream that contain it
  // Only for communication:
  double ready = 0;          // when the last participating rank began its own call
  int waits_for = -1;        // that last rank; -1 if it is this one or unknown
  std::string waits_in, on;  // the call that waits for it, "ncclRecv", and its communicator, "gradients"
  std::vector<Call> calls;

  std::string what() const;  // "ncclRecv: 4096 bytes from 1 on gradients", with ranks in the communicator
};

// The memory that a rank holds on a device from time `at` on: bytes by kind.
struct Held {
  double at;
  std::map<std::string, double> bytes;
};

struct Timeline {
  std::string run;          // first line of the run's record; empty if unknown
  std::vector<Span> spans;  // sorted by rank, stream and begin; a span comes before the spans in it
  std::map<int, std::vector<std::pair<double, double>>> steps;  // rank -> begin and end of its steps
  std::map<std::pair<int, int>, std::string> streams;           // (rank, stream) -> its name
  std::map<std::pair<int, int>, std::vector<Held>> memory;      // (rank, device) -> its changes, in order
  std::set<int> ranks;
};

// Throws std::runtime_error with one line if the file is not a timeline.
Timeline read_timeline(const std::string& path);

// ---- how the time was spent ----------------------------------------------------------------------------------------

using Intervals = std::vector<std::pair<double, double>>;  // begin and end; sorted, without overlaps

// What a rank did on its streams. The three kinds may overlap.
struct Activity {
  Intervals computation;
  Intervals waiting;   // in an NCCL call that another rank has not begun
  Intervals transfer;  // in an NCCL call that all of its ranks have begun
};
// On one stream of the rank or, with -1, on all.
Activity activity(const Timeline& timeline, int rank, int stream = -1);

// Shares of an interval. Time that belongs to several kinds counts only for the first of them; idle is the rest.
struct Shares {
  double compute = 0, communication = 0, waiting = 0, idle = 0;
};
std::vector<Shares> shares(const Activity& activity, const Intervals& parts);
// The steps of a rank that count: not the first ones, in which NCCL connects the ranks. If there are no steps, the
// whole time of the rank as one step.
Intervals counted_steps(const Timeline& timeline, int rank);
// The median over the steps, scaled so that the shares add up to 1.
Shares typical_shares(const std::vector<Shares>& steps);

// Time that a rank spends only waiting for one other rank, in one kind of call.
struct Wait {
  int rank;  // the rank that is last to make the call
  std::string operation, communicator;
  double share;  // of the time of the steps that count
};
// The waits of a rank in the steps that count, the longest first.
std::vector<Wait> waits(const Timeline& timeline, int rank);

// Seconds per step, averaged over the ranks and the steps that count.
struct Communication {
  double seconds = 0;  // in which a rank communicates
  double exposed = 0;  // of these, seconds in which the rank does not compute
};
Communication communication(const Timeline& timeline);

}  // namespace workshop::tools
