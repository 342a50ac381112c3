// SPDX-License-Identifier: Apache-2.0
// Finds its rank and meets the other ranks without MPI, as programs for the cuda backend do. Needs no GPU.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "common/job/rendezvous.h"

int main(int argc, char** argv) {
  const workshop::Ranks& ranks = workshop::process_ranks();
  const int missing = argc > 1 ? std::atoi(argv[1]) : -1;
  if (ranks.rank == missing) std::this_thread::sleep_for(std::chrono::seconds(600));  // until the launcher ends it
  const std::string message = workshop::meet_without_mpi(ranks, "rank 0 of " + std::to_string(ranks.world));
  std::printf("rank %d met %s\n", ranks.rank, message.c_str());
}
