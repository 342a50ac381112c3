// SPDX-License-Identifier: Apache-2.0
// What usually goes wrong when a tensor comes out like this.
#pragma once

#include <string>
#include <vector>

#include "tools/run_record.h"

namespace workshop::tools {

// A tensor of the participant's run that differs from the solution's, and what it may be compared with.
struct Symptom {
  const Tensor& mine;
  const Tensor& expected;
  int world = 1;                                // ranks of the run
  std::vector<const Tensor*> mine_by_rank;      // the same tensor on every rank, if all ranks recorded it
  std::vector<const Tensor*> expected_by_rank;  // the same, of the solution's run
  const Tensor* expected_before = nullptr;      // the solution's tensor one step earlier
};

// One sentence for the first known mistake that fits; empty where none does.
std::string diagnose(const Symptom& symptom);

}  // namespace workshop::tools
