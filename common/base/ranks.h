// SPDX-License-Identifier: Apache-2.0
// Where a process stands in its job.
#pragma once

#include <string>

namespace workshop {

struct Ranks {
  int rank = 0;                   // 0 … world-1
  int world = 1;                  // number of processes in the job
  int local_rank = 0;             // rank among those of the same node: chooses the device
  int local_world = 1;            // processes on this node
  std::string launcher = "none";  // "torchrun", "mpirun", "slurm" or "none"
  bool by_mpi = false;            // the same ranks are MPI's: MPI_Init() finds the others
};

// The ranks of this process, found once. A contradiction in the environment ends the program with status 2.
const Ranks& process_ranks();

// What the node of this process is called: Slurm's name for it or, without Slurm, the host's.
std::string node_name();

}  // namespace workshop
