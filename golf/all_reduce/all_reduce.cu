// SPDX-License-Identifier: Apache-2.0
// Your all-reduce. The rules are in README.md.
#include "golf/judge/all_reduce.h"

// A ring of all ranks: each sends to the next rank and receives from the previous one.
void all_reduce(const golf::AllReduce& given) {
  constexpr int kRanks = 8, kChunk = golf::AllReduce::kCount / kRanks;
  const cudaStream_t stream = given.streams[0];
  const int next = (given.rank + 1) % kRanks, previous = (given.rank + kRanks - 1) % kRanks;
  const auto chunk = [&](int index) { return given.data + (index + 2 * kRanks) % kRanks * kChunk; };
  for (int step = 0; step < 2 * (kRanks - 1); ++step) {
    const bool adds = step < kRanks - 1;
    float* const arrives = chunk(given.rank - step - 1);
    float* const received = adds ? given.scratch : arrives;
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(chunk(given.rank - step), kChunk, ncclFloat, next, given.world[0], stream));
    NCCL_CHECK(ncclRecv(received, kChunk, ncclFloat, previous, given.world[0], stream));
    NCCL_CHECK(ncclGroupEnd());
    if (adds) golf::add(arrives, received, kChunk, stream);
  }
}
