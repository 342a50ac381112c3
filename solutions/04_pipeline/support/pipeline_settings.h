// SPDX-License-Identifier: Apache-2.0
// The options of the pipeline program, and the network and the schedule that it makes from them.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "01_single_gpu/models.h"
#include "03_model_parallel/model_parallel.h"
#include "03_model_parallel/support/partition_option.h"
#include "04_pipeline/support/check_schedule.h"
#include "04_pipeline/support/pipeline_options.h"
#include "04_pipeline/support/waiting_model.h"
#include "common/job/job.h"

namespace workshop {

constexpr int kUsualMicroBatches = 4;

struct PipelineSettings {
  PipelineOptions pipeline{.micro_batches = kUsualMicroBatches};
  std::string partition;
  int stages = 0;
  int checkpoint_interval = 0;  // layers per group that keeps only its output; 0: keep all activations
  bool print = false;
  std::string slots = "1,1,1";
  double milliseconds = 0;         // if above 0, each forward and each backward waits this long instead of computing
  double weight_milliseconds = 0;  // in addition, for the gradients of the weights
};

inline void add_options(Options& options, PipelineSettings& s) {
  s.pipeline.add_to(options, "parts of a batch, whose size is --batch-size");
  add_partition(options, s.partition, "parts");
  options.add("--checkpoint-interval", s.checkpoint_interval,
              "layers per group that keeps only its last layer's output; 0: keep all", 0, 1 << 10);
  options.add_flag("--print", s.print, "show the schedule and train nothing");
  options.add(
      "--slots", s.slots,
      "with --print: slots of a forward, a backward and, if split, the gradients of the weights; default: 1,1,1", {});
  options.add("--stages", s.stages, "stages to show with --print; default: as many as ranks", 1, 1 << 10);
  options.add("--simulate-compute", s.milliseconds,
              "milliseconds that each forward and each backward waits for instead of computing", 0.0, 1e6);
  options.add("--simulate-weights", s.weight_milliseconds,
              "with --simulate-compute, milliseconds per micro-batch for the gradients of the weights", 0.0, 1e6);
}

// Returns the slots that --slots gives, such as "2,2,1".
inline ScheduleSlots slots_of(const PipelineSettings& s) {
  ScheduleSlots slots;
  char rest = 0;
  const bool read =
      std::sscanf(s.slots.c_str(), "%d,%d,%d%c", &slots.forward, &slots.backward, &slots.weights, &rest) == 3;
  const auto [least, most] = std::minmax({slots.forward, slots.backward, slots.weights});
  if (!read || least < 1 || most > 100) {
    usage_error("--slots is '%s'; expected three whole numbers from 1 to 100, such as 1,1,1", s.slots.c_str());
  }
  return slots;
}

// Fills in the defaults, and ends the program if the options contradict each other.
inline void complete(PipelineSettings& s, const Options& options) {
  const int ranks = process_ranks().world;
  s.pipeline.read(kUsualMicroBatches);
  if (s.stages == 0 && s.print && s.pipeline.from_file) s.stages = s.pipeline.from_file->stages;
  if (s.stages == 0) s.stages = ranks;
  if (!s.print && s.stages != ranks) {
    usage_error("--stages is '%d'; expected the number of ranks, %d, unless with --print", s.stages, ranks);
  }
  s.pipeline.complete(s.stages, "--stages", options.gpt.recompute);
  if (s.pipeline.splits_backward() && s.checkpoint_interval > 0) {
    usage_error("--checkpoint-interval is '%d'; expected 0 with --schedule %s, which needs all activations twice",
                s.checkpoint_interval, s.pipeline.schedule.c_str());
  }
  if (s.pipeline.splits_backward() && !s.pipeline.from_file && s.milliseconds > 0 &&
      s.weight_milliseconds > s.milliseconds) {
    usage_error("--simulate-weights is '%g'; expected at most %g, --simulate-compute, as the formula of %s does",
                s.weight_milliseconds, s.milliseconds, s.pipeline.schedule.c_str());
  }
  if (s.weight_milliseconds > 0 && s.milliseconds <= 0) {
    usage_error("--simulate-weights is '%g'; expected 0 without --simulate-compute", s.weight_milliseconds);
  }
  if (s.checkpoint_interval > 0 && options.gpt.recompute != "none") {
    usage_error("--checkpoint-interval is '%d'; expected 0 with --recompute %s, which is another way",
                s.checkpoint_interval, options.gpt.recompute.c_str());
  }
  if (!s.print) s.pipeline.require_divisor(options.batch_size);
}

inline Network make_pipeline_network(const PipelineSettings& s, const Options& options) {
  const int parts = s.stages * s.pipeline.chunks;
  if (s.milliseconds > 0) {
    return make_waiting_model(parts, options.layers.front(), {s.milliseconds, s.weight_milliseconds});
  }
  const Network network = make_network(options);
  if (network.depth() < parts) {
    usage_error("%s for %d stages of %d; expected at least %d layers", layers_of(options, network).c_str(), s.stages,
                s.pipeline.chunks, parts);
  }
  return network;
}

// Whether the parts go from stage 0 to the last stage and back.
inline bool placed_in_v(const Schedule& schedule) {
  for (int part = 0; part < schedule.parts(); ++part) {
    if (schedule.stage_of(part) != std::min(part, schedule.parts() - 1 - part)) return false;
  }
  return true;
}

// Returns the schedule that the options select. Ends all ranks with status 1 if it is wrong, because it might hang.
inline Schedule checked_schedule(const PipelineSettings& s) {
  Schedule schedule = s.pipeline.make_schedule(s.stages);
  const std::vector<ScheduleError> errors = check_schedule(schedule);
  if (errors.empty()) return schedule;
  const std::string see = s.pipeline.from_file       ? s.pipeline.schedule
                          : schedule.name == "gpipe" ? "TODO 04.1, part of WRITE 04.A"
                          : schedule.name == "1f1b"  ? "TODO 04.2, part of WRITE 04.B"
                          : schedule.name == "zb-h1" ? "TODO 04.8, part of WRITE 04.K"
                          : schedule.name != "zb-v"  ? "TODO 04.3, part of WRITE 04.C"
                          : placed_in_v(schedule)    ? "TODO 04.12, part of WRITE 04.M"
                                                     : "TODO 04.11, part of WRITE 04.M";
  print0("This schedule is wrong, so no rank runs it: see %s ('!' marks the place, '?' what never gets its turn)\n%s",
         see.c_str(), chart_and_errors(schedule, errors).c_str());
  // The first rank to end ends all others: give rank 0 time to print.
  if (process_ranks().rank > 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  end_job(kFailed);
}

}  // namespace workshop
