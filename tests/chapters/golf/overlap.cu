// SPDX-License-Identifier: Apache-2.0
// Two halves on two communicators at the same time: they use the same links.
#include "golf/judge/all_reduce.h"

void all_reduce(const golf::AllReduce& given) {
  constexpr int kHalf = golf::AllReduce::kCount / 2;
  for (int i = 0; i < 2; ++i) {
    float* const half = given.data + i * kHalf;
    NCCL_CHECK(ncclAllReduce(half, half, kHalf, ncclFloat, ncclSum, given.world[i], given.streams[i]));
  }
}
