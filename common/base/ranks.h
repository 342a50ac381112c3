// SPDX-License-Identifier: Apache-2.0
// The place of a process in its job.
#pragma once

#include <string>

namespace workshop {

struct Ranks {
  int rank = 0;                   // 0 … world-1
  int world = 1;                  // number of processes in the job
  int local_rank = 0;             // rank among those of the same node: chooses the device
  int local_world = 1;            // processes on this node
  std::string launcher = "none";  // "torchrun", "mpirun", "slurm" or "none"
  bool by_mpi = false;            // MPI started these ranks: MPI_Init() finds the others
};

// The place of this process, read from the environment once, by discover_ranks() in environment.h. A contradiction
// there ends the program with status 2.
const Ranks& process_ranks();

// The name of this process's node: Slurm's or, without Slurm, the host name.
std::string node_name();

}  // namespace workshop
