// SPDX-License-Identifier: Apache-2.0
// What the ranks of a run hold and send by the formulas of the READMEs: chapter 07's plan of the mesh that the program
// is, and where a program keeps something else, what its own README says.
#pragma once

#include <map>
#include <string>

#include "tools/shared/run_record.h"

namespace workshop::tools {

struct Formula {
  // Bytes by kind, without the data set and the host's; a kind that no formula tells is missing.
  std::map<std::string, double> memory;
  // Bytes sent in a step by group, as group() names them. Those of a run's begin and end, such as a broadcast and the
  // losses, and the padding of shards are left out, as in plans.
  std::map<std::string, double> sent;
};

// By rank; empty where no formula is known: for models other than the MLP, and for options that change what is held,
// such as recomputation, hybrid sharding, clipping and other units than single layers.
std::map<int, Formula> formulas(const RunRecord& run);

}  // namespace workshop::tools
