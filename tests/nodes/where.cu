// SPDX-License-Identifier: Apache-2.0
// Prints where each rank runs (node, local rank and device), and what NCCL is told if ranks share a device.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/job/job.h"

int main(int argc, char** argv) {
  workshop::Options options("where", "where each rank is");
  options.without_training();
  options.parse(argc, argv);
  const workshop::Job job(options);
  const workshop::Ranks& ranks = job.ranks();
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  int device = -1;
  CUDA_CHECK(cudaGetDevice(&device));
  std::string told;
  for (const char* name : {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME"}) {
    if (const char* value = std::getenv(name)) told += std::string(", ") + name + "=" + value;
  }
  std::printf("rank %d of %d is local rank %d of %d on %s, device %d%s\n", ranks.rank, ranks.world, ranks.local_rank,
              ranks.local_world, host.data(), device, told.c_str());
}
