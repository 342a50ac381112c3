// SPDX-License-Identifier: Apache-2.0
// A pipeline's schedule as chapter 04 draws it: when each stage would compute what if each forward, each backward and,
// if backwards are split, the weights of each micro-batch took one time slot, and messages took no time.
#pragma once

#include <string>
#include <vector>

namespace workshop::tools {

struct Slot {
  int stage, begin;
  int kind;  // 0: forward, 1: backward, 2: the gradients of the weights, as in chapter 04's Instruction
  int micro_batch, chunk;
};

// Empty if there is no such schedule, or if it is too long to draw.
std::vector<Slot> schedule_chart(const std::string& schedule, int stages, int micro_batches, int chunks);

}  // namespace workshop::tools
