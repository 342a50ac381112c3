// SPDX-License-Identifier: Apache-2.0
// What stuck ranks tell each other about their NCCL calls, and what follows from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

// An NCCL call as its rank knows it.
struct CallNote {
  std::string operation;          // "ncclAllReduce"
  std::string communicator;       // its name
  std::uint64_t communicator_id;  // the same on all of its ranks
  std::int64_t number;            // collectives of a communicator are numbered, and messages of a pair of ranks
  std::uint64_t count;
  std::string type;
  int peer;           // the other rank of a message, or the root, within the communicator; -1 where there is none
  std::string place;  // file:line
  bool completed;
};

struct CommunicatorNote {
  std::uint64_t id;
  int rank;                  // of the one who notes
  std::int64_t collectives;  // called so far
};

struct Note {
  int rank;
  double seconds;                 // for so long nothing has moved
  std::string in_call, in_place;  // what the program is in; empty where it is in no call
  std::string error;              // of a communicator or a call
  std::vector<CallNote> calls;    // the last that completed and the first that did not, in the order of the program
  std::vector<CommunicatorNote> communicators;
};

// One line about the rank: what it waits in, for how long, and the last call that completed.
std::string describe(const Note& note);

// What is wrong, from the notes of the ranks that have answered.
std::string find_verdict(const std::vector<Note>& notes, int world);

}  // namespace workshop
