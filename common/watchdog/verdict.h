// SPDX-License-Identifier: Apache-2.0
// The notes that stuck ranks exchange about their NCCL calls, and the verdict drawn from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

// An NCCL call, as recorded by the rank that makes it.
struct CallNote {
  std::string operation;          // "ncclAllReduce"
  std::string communicator;       // its name
  std::uint64_t communicator_id;  // the same on all ranks of the communicator
  std::int64_t number;            // among the collectives of a communicator, or the messages of a pair of ranks
  std::uint64_t count;
  std::string type;
  int peer;           // the other rank of a message, or the root, within the communicator; else -1
  std::string place;  // file:line
  bool completed;
};

struct CommunicatorNote {
  std::uint64_t id;
  int rank;                  // of the note's author, within the communicator
  std::int64_t collectives;  // called so far
};

struct Note {
  int rank;
  double seconds;                 // since the rank last made progress
  std::string in_call, in_place;  // the call that the program is in, and its file:line; empty if it is in none
  std::string error;              // of a communicator or a call
  std::vector<CallNote> calls;    // the last that completed and the first that did not, in program order
  std::vector<CommunicatorNote> communicators;
};

// Describes the rank in one line: the call that it waits in, for how long, and the last call that completed.
std::string describe(const Note& note);

// Finds out what is wrong, from the notes of the ranks that have answered; `world` is the number of all ranks.
std::string find_verdict(const std::vector<Note>& notes, int world);

}  // namespace workshop
