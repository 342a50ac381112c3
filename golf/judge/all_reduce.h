// SPDX-License-Identifier: Apache-2.0
// The task: golf/all_reduce/README.md.
#pragma once

#include "golf/judge/operations.h"

namespace golf {

struct AllReduce {
  static constexpr int kCount = 1 << 18;  // elements of the vector: 1 MiB

  float* data;     // [kCount], this rank's vector; afterwards the sum over all ranks
  float* scratch;  // [kCount], for any purpose

  int rank;                     // in the world, 0 to 7; ranks 0 to 3 are on one node, 4 to 7 on the other
  ncclComm_t world[2];          // all 8 ranks, twice: operations of one communicator run one after the other
  ncclComm_t node;              // the 4 ranks of this rank's node; its rank there is rank % 4
  ncclComm_t across;            // the 2 ranks with the same place on their nodes; its rank there is rank / 4
  const cudaStream_t* streams;  // [kStreams]
};

}  // namespace golf

// Replaces `data` on every rank with the sum over all ranks.
void all_reduce(const golf::AllReduce& given);
