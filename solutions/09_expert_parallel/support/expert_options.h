// SPDX-License-Identifier: Apache-2.0
// The options of expert parallelism.
#pragma once

#include <string>

#include "common/base/check.h"
#include "common/options/options.h"

namespace workshop {

struct ExpertOptions {
  int ranks = 0;                 // that together have all experts; 0: all ranks
  std::string counts = "exact";  // how many rows are sent to an expert: as many as there are, or "fixed"
  bool overlap = false;          // send the rows of one half of the samples while the other half is computed

  void add_to(Options& options) {
    options.add("--expert-ranks", ranks, "ranks that have all experts together; default: all", 1);
    options.add("--counts", counts, "rows sent to an expert: as many as there are, or all places", {"exact", "fixed"});
    options.add_flag("--overlap", overlap, "send rows of one half of the samples while the other half is computed");
  }

  // Sets the default, and ends the program if options contradict each other. Call after Options::parse().
  void complete(const Options& options, int world) {
    if (ranks == 0) ranks = world;
    if (world % ranks != 0) {
      usage_error("--expert-ranks is '%d'; expected a number that divides the %d ranks", ranks, world);
    }
    if (options.gpt.experts % ranks != 0) {
      usage_error("--experts is '%d'; expected a multiple of the %d ranks that have them", options.gpt.experts, ranks);
    }
    if (counts == "fixed" && options.gpt.capacity_factor == 0) {
      usage_error("--counts is 'fixed'; expected a --capacity-factor greater than 0, which limits the places");
    }
  }
};

}  // namespace workshop
