// SPDX-License-Identifier: Apache-2.0
// Forgets the end of a group.
#include "golf/judge/all_reduce.h"

void all_reduce(const golf::AllReduce& given) {
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclAllReduce(given.data, given.data, golf::AllReduce::kCount, ncclFloat, ncclSum, given.world[0],
                           given.streams[0]));
}
