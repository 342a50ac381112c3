// SPDX-License-Identifier: Apache-2.0
// How a run compares with the first one of a series on more and more ranks.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/report/timeline.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

struct Speedup {
  int ranks = 0;
  double seconds_per_step = 0, samples_per_second = 0, seconds_per_epoch = 0;  // 0: no whole epoch
  double speedup = 1, efficiency = 1, exposed = 0, peak_memory = 0;            // exposed: seconds a step
};

// Speed-up and efficiency are those of the samples a second; of a language model a sample is a token. `weak`: an epoch
// has as many times the samples as there are replicas.
Speedup speedup(const RunRecord& run, const Timeline& timeline, const RunRecord& first, bool weak = false);
nlohmann::json json_of(const Speedup& row);

}  // namespace workshop::tools
