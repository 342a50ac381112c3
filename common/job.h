// Who am I among the ranks, which device is mine, and how do I reach the others: rank discovery, NCCL bootstrap.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "common/check.h"
#include "common/options.h"

namespace workshop {

// Where a process stands in its job.
struct Ranks {
  int rank = 0;                   // 0 … world-1
  int world = 1;                  // number of processes in the job
  int local_rank = 0;             // rank among those of the same node: chooses the device
  int local_world = 1;            // processes on this node
  std::string launcher = "none";  // "torchrun", "mpirun", "slurm" or "none"
};

// Looks a variable up; returns nullptr where it is not set. std::getenv is one.
using Environment = std::function<const char*(const char*)>;

// Rank, world size and local rank from, in this order: RANK/WORLD_SIZE/LOCAL_RANK (torchrun's convention), Open MPI's
// variables, Slurm's, else one process. Throws std::invalid_argument with one line that names the variable at fault.
Ranks discover_ranks(const Environment& env);

// The ranks of this process, found once. A contradiction in the environment ends the program with status 2.
const Ranks& process_ranks();

// The device of a rank on a node with `visible` devices: 0 with one, else local_rank; several ranks on one device if
// `sharing` allows it. Throws std::invalid_argument otherwise.
int choose_device(const Ranks& ranks, int visible, bool sharing);

// One rank of a running job. The constructor finds the rank and its device, meets the other ranks, and makes the NCCL
// communicator of all of them; the destructor writes the run record and takes everything down again.
class Job {
 public:
  explicit Job(const Options& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return ranks_.rank; }
  int world() const { return ranks_.world; }
  const Ranks& ranks() const { return ranks_; }
  ncclComm_t comm() const { return comm_; }

 private:
  Ranks ranks_;
  ncclComm_t comm_ = nullptr;
};

// printf on rank 0 alone.
[[gnu::format(printf, 1, 2)]] void print0(const char* format, ...);

}  // namespace workshop
