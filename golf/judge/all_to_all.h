// SPDX-License-Identifier: Apache-2.0
// The task: golf/all_to_all/README.md.
#pragma once

#include "golf/judge/operations.h"

namespace golf {

struct AllToAll {
  static constexpr int kRanks = 8, kOnNode = 4;
  static constexpr int kScratch = 1 << 18;

  // Returns how many elements rank `from` has for rank `to`.
  static constexpr int count(int from, int to) {
    constexpr int kKiB = 1024 / sizeof(float);
    if (from / kOnNode == to / kOnNode) return 16 * kKiB;
    if (from == 1 && to == 6) return 760 * kKiB;
    return (from == 1 || to == 6 ? 32 : 8) * kKiB;
  }
  // Returns where the elements for rank `to` begin in the `send` of rank `from`; with to = kRanks, how many it has.
  static constexpr int send_offset(int from, int to) {
    int sum = 0;
    for (int rank = 0; rank < to; ++rank) sum += count(from, rank);
    return sum;
  }
  // Returns where the elements of rank `from` begin in the `receive` of rank `to`; with from = kRanks, how many it
  // gets.
  static constexpr int receive_offset(int to, int from) {
    int sum = 0;
    for (int rank = 0; rank < from; ++rank) sum += count(rank, to);
    return sum;
  }

  const float* send;  // [send_offset(rank, kRanks)], the elements for each rank, in the order of the ranks
  float* receive;     // [receive_offset(rank, kRanks)], afterwards those of each rank, in the order of the ranks
  float* scratch;     // [kScratch], for any purpose

  int rank;                     // in the world, 0 to 7; ranks 0 to 3 are on one node, 4 to 7 on the other
  ncclComm_t world[2];          // all 8 ranks, twice: operations of one communicator run one after the other
  ncclComm_t node;              // the 4 ranks of this rank's node; its rank there is rank % 4
  ncclComm_t across;            // the 2 ranks with the same place on their nodes; its rank there is rank / 4
  const cudaStream_t* streams;  // [kStreams]
};

}  // namespace golf

// Brings the elements of every rank to the ranks that they are for, this rank's own ones, too.
void all_to_all(const golf::AllToAll& given);
