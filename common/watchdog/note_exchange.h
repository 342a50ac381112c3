// SPDX-License-Identifier: Apache-2.0
// Lets the watchdogs of a job exchange notes, each of which says what a rank is waiting in. Uses UDP datagrams, which
// work even if NCCL and MPI are stuck.
#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/environment.h"
#include "common/watchdog/verdict.h"

namespace workshop {

// Returns whether the job uses a network interface. Ranks on one node use loopback. Ranks on several nodes use the
// interfaces that NCCL_SOCKET_IFNAME selects, interpreted as NCCL does, or all but loopback if it is not set.
bool uses_interface(const Environment& env, const Ranks& ranks, const std::string& name, bool loopback);

class NoteExchange {
 public:
  struct Socket {
    in_addr_t host;  // 0: none
    in_port_t port;
  };
  // Where to send notes to a rank.
  struct Address {
    std::array<Socket, 8> sockets;  // one per interface that the job uses
    std::uint64_t job;              // a random number; rank 0's identifies the notes of this job
  };

  // Opens this rank's sockets and returns their address. Ends the job if no socket can be opened.
  Address open(const Ranks& ranks);

  // Starts the exchange of notes with all ranks of the job. `addresses` is indexed by rank. Call once.
  void connect(int rank, const std::vector<Address>& addresses);
  bool connected() const { return connected_; }

  // Waits at most `patience` for a note of this job.
  std::optional<Note> receive(std::chrono::milliseconds patience);

  // Returns the notes of all ranks that answer, by rank, including this rank's own. Takes two seconds if a rank does
  // not answer.
  std::map<int, Note> exchange(const Note& mine);

 private:
  void send(const std::string& text);

  std::vector<pollfd> sockets_;
  std::vector<char> buffer_;
  int rank_ = 0;
  std::vector<Address> addresses_;  // indexed by rank
  std::atomic<bool> connected_ = false;
};

}  // namespace workshop
