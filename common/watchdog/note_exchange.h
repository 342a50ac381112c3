// SPDX-License-Identifier: Apache-2.0
// How the watchdogs of a job tell each other where their ranks are: a datagram each way, which works whatever NCCL and
// MPI are stuck in.
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

// Whether the job uses a network interface: the ranks of one node loopback, those of several the ones that
// NCCL_SOCKET_IFNAME chooses, as NCCL reads it, or all but loopback.
bool uses_interface(const Environment& env, const Ranks& ranks, const std::string& name, bool loopback);

class NoteExchange {
 public:
  struct Socket {
    in_addr_t host;  // 0: none
    in_port_t port;
  };
  // Where a rank's notes are to be sent.
  struct Address {
    std::array<Socket, 8> sockets;  // one on each of the interfaces that the job uses
    std::uint64_t job;              // rank 0 chooses it: a note of another job is not taken for one of this
  };

  // This rank's. Ends the job where there is no socket.
  Address open(const Ranks& ranks);

  // From here on notes come and go between all ranks of the job, whose addresses these are. Call once.
  void connect(int rank, const std::vector<Address>& addresses);
  bool connected() const { return connected_; }

  // Waits so long for a note of this job.
  std::optional<Note> receive(std::chrono::milliseconds patience);

  // The notes of all ranks that answer, this one's among them, by rank. Takes two seconds if not all do.
  std::map<int, Note> exchange(const Note& mine);

 private:
  void send(const std::string& text);

  std::vector<pollfd> sockets_;
  std::vector<char> buffer_;
  int rank_ = 0;
  std::vector<Address> addresses_;  // by rank
  std::atomic<bool> connected_ = false;
};

}  // namespace workshop
