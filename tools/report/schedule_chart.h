// SPDX-License-Identifier: Apache-2.0
// A pipeline's schedule as chapter 04 draws it: what each stage would compute when, if a forward and a backward took
// one slot of time each and messages none.
#pragma once

#include <string>
#include <vector>

namespace workshop::tools {

struct Slot {
  int stage, begin;
  bool forward;
  int micro_batch, chunk;
};

// Empty where there is no such schedule, or where it is too long to be drawn.
std::vector<Slot> schedule_chart(const std::string& schedule, int stages, int micro_batches, int chunks);

}  // namespace workshop::tools
