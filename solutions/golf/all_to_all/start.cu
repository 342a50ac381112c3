// SPDX-License-Identifier: Apache-2.0
// Your all-to-all. The rules are in README.md.
#include "golf/judge/all_to_all.h"

// Exchanges with one pair of ranks after the other.
void all_to_all(const golf::AllToAll& given) {
  using Task = golf::AllToAll;
  const int rank = given.rank;
  const cudaStream_t stream = given.streams[0];
  golf::copy(given.receive + Task::receive_offset(rank, rank), given.send + Task::send_offset(rank, rank),
             Task::count(rank, rank), stream);
  for (int distance = 1; distance < Task::kRanks; ++distance) {
    const int to = (rank + distance) % Task::kRanks, from = (rank + Task::kRanks - distance) % Task::kRanks;
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(given.send + Task::send_offset(rank, to), Task::count(rank, to), ncclFloat, to, given.world[0],
                        stream));
    NCCL_CHECK(ncclRecv(given.receive + Task::receive_offset(rank, from), Task::count(from, rank), ncclFloat, from,
                        given.world[0], stream));
    NCCL_CHECK(ncclGroupEnd());
  }
}
