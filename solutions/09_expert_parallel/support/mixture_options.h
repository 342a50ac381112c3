// SPDX-License-Identifier: Apache-2.0
// The options of this chapter's programs, and what they print about the experts.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/format.h"
#include "common/base/print.h"
#include "common/options/options.h"
#include "common/record/record.h"

namespace workshop {

// Adds the options of the language model. Defaults: 8 experts per block, and an auxiliary loss with weight 0.01.
inline void add_mixture_options(Options& options, const std::string& checkpoint_format) {
  options.gpt.experts = 8;
  options.gpt.aux_loss = 0.01;
  options.with_gpt();
  options.without({"--generate", "--tokens", "--temperature"});
  options.with_checkpoints(checkpoint_format);
  options.with_async_checkpoints();
}

inline void require_experts(const Options& options) {
  if (options.gpt.experts == 0) usage_error("--experts is '0'; expected at least 1");
}

// Records how this rank's choices of an epoch are spread over the experts of a block. Rank 0 also prints its own, as
// percentages.
inline void print_loads(int block, const std::vector<int>& loads) {
  const double all = std::max(1, std::accumulate(loads.begin(), loads.end(), 0));
  std::string line;
  for (std::size_t e = 0; e < loads.size(); ++e) {
    line += formatted(" %.1f", 100 * loads[e] / all);
    record_value(formatted("load of expert %zu of block %d", e, block), loads[e] / all);
  }
  print0("block %d: %% of the tokens at each expert:%s\n", block, line.c_str());
}

}  // namespace workshop
