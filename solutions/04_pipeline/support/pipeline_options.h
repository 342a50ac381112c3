// SPDX-License-Identifier: Apache-2.0
// The options of every program with a pipeline, and the schedule that they select.
#pragma once

#include <string>

#include "04_pipeline/schedule.h"
#include "common/job/job.h"
#include "common/options/options.h"

namespace workshop {

struct PipelineOptions {
  std::string schedule = "1f1b";
  int micro_batches = 0, chunks = 0;

  void add_to(Options& options, const std::string& micro_batches_help) {
    options.add("--schedule", schedule, "order of the micro-batches' forwards and backwards",
                {"gpipe", "1f1b", "interleaved", "zb-h1"});
    options.add("--micro-batches", micro_batches, micro_batches_help, 1, 1 << 20);
    options.add("--chunks", chunks, "parts of the model per stage, if interleaved; default: 2", 1, 1 << 10);
  }

  // Fills in the defaults, and ends the program if the options contradict each other. `stages_option` is the option
  // that sets the number of stages, for the error messages.
  void complete(int stages, const std::string& stages_option, const std::string& recompute) {
    const bool interleaved = schedule == "interleaved";
    if (micro_batches == 0) micro_batches = stages > 1 ? 4 : 1;
    if (chunks == 0) chunks = interleaved ? 2 : 1;
    if (!interleaved && chunks > 1) {
      usage_error("--chunks is '%d'; expected 1 unless --schedule is interleaved", chunks);
    }
    if (schedule == "zb-h1" && recompute != "none") {
      usage_error("--recompute is '%s'; expected none with --schedule zb-h1, which needs all activations twice",
                  recompute.c_str());
    }
    require_product({{stages_option, stages}, {"--micro-batches", micro_batches}, {"--chunks", chunks}}, 1 << 22);
    if (interleaved && micro_batches % stages != 0) {
      usage_error("--micro-batches is '%d'; expected a multiple of the %d stages, the size of a group", micro_batches,
                  stages);
    }
  }

  void require_divisor(int batch_size) const {
    if (batch_size % micro_batches == 0) return;
    usage_error("--micro-batches is '%d'; expected a divisor of --batch-size, %d", micro_batches, batch_size);
  }

  Schedule make_schedule(int stages) const {
    if (schedule == "gpipe") return gpipe(stages, micro_batches);
    if (schedule == "1f1b") return one_f_one_b(stages, micro_batches);
    if (schedule == "zb-h1") return zb_h1(stages, micro_batches);
    return interleaved(stages, micro_batches, chunks);
  }
};

}  // namespace workshop
