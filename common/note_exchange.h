// How the watchdogs of a job tell each other where their ranks are: a datagram each way, which works whatever NCCL and
// MPI are stuck in.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/verdict.h"

namespace workshop {

class NoteExchange {
 public:
  // Where a rank's notes are to be sent.
  struct Address {
    std::array<in_addr_t, 8> hosts;  // all of its machine's, 0 where there are fewer
    in_port_t port;
    std::uint64_t job;  // rank 0 chooses it: a note of another job is not taken for one of this
  };

  // This rank's. Ends the job where there is no socket.
  Address open();

  // From here on notes come and go between all ranks of the job, whose addresses these are. To be called once.
  void connect(int rank, const std::vector<Address>& addresses);
  bool connected() const { return connected_; }

  // Waits so long for a note of this job.
  std::optional<Note> receive(std::chrono::milliseconds patience);

  // The notes of all ranks that answer, this one's among them, by rank. Takes two seconds if not all do.
  std::map<int, Note> exchange(const Note& mine);

 private:
  void send(const std::string& text);

  int socket_ = -1;
  int rank_ = 0;
  std::vector<Address> addresses_;  // by rank
  std::atomic<bool> connected_ = false;
};

}  // namespace workshop
