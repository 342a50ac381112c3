// SPDX-License-Identifier: Apache-2.0
// Computes what the ranks of a run should hold and send by the formulas in the READMEs: those of chapter 07's plan for
// the program's mesh and, where a program differs from the plan, those of its own README.
#pragma once

#include <map>
#include <string>

#include "tools/shared/run_record.h"

namespace workshop::tools {

struct Formula {
  // Bytes by kind, without the data set and host memory. A kind without a formula is missing.
  std::map<std::string, double> memory;
  // Bytes sent per step by group, as group() names them. As in plans, these leave out the padding of shards, and what
  // is sent at the beginning and the end of a run, such as a broadcast and the losses.
  std::map<std::string, double> sent;
};

// Returns the formulas by rank. Returns nothing if no formula is known: for options that change what is held, such as
// recomputation, hybrid sharding, clipping and units of several layers, and for most models other than the MLP.
std::map<int, Formula> formulas(const RunRecord& run);

}  // namespace workshop::tools
