// SPDX-License-Identifier: Apache-2.0
// Compares a run with the first one of a series on more and more ranks.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/report/timeline.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

struct Speedup {
  int ranks = 0;
  double seconds_per_step = 0, samples_per_second = 0, seconds_per_epoch = 0;  // 0: the run has no whole epoch
  double speedup = 1, efficiency = 1, exposed = 0, peak_memory = 0;            // exposed: seconds per step
};

// Speed-up and efficiency compare samples per second; for a language model, tokens per second. `weak` means that the
// samples of an epoch grow in proportion to the number of replicas.
Speedup speedup(const RunRecord& run, const Timeline& timeline, const RunRecord& first, bool weak = false);
nlohmann::json json_of(const Speedup& row);

}  // namespace workshop::tools
