// SPDX-License-Identifier: Apache-2.0
// The options of every program with a pipeline, and the schedule that they select.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "04_pipeline/schedule.h"
#include "04_pipeline/support/schedule_file.h"
#include "common/job/job.h"
#include "common/options/options.h"

namespace workshop {

struct PipelineOptions {
  std::string schedule = "1f1b";
  int micro_batches = 0;  // 0 stands for 4, or for 1 if there is only one stage
  int chunks = 0, in_flight = 0, ahead = 0;
  std::optional<Schedule> from_file = std::nullopt;

  void add_to(Options& options, const std::string& micro_batches_help) {
    options.add("--schedule", schedule,
                "order of the micro-batches' forwards and backwards: gpipe, 1f1b, interleaved, zb-h1, zb-v, or a file",
                {});
    options.add("--micro-batches", micro_batches, micro_batches_help, 1, 1 << 20);
    options.add("--chunks", chunks, "parts of the model per stage, if interleaved; default: 2", 1, 1 << 10);
    options.add("--in-flight", in_flight, "with a file: micro-batches that a stage may hold; default: any number", 1,
                1 << 20);
    options.add("--ahead", ahead, "with a file: inputs that a stage receives before it needs them; default: 1", 1, 8);
  }

  // Reads the schedule, if it is that of a file. `usual_micro_batches`: the program's default.
  void read(int usual_micro_batches = 0) {
    if (std::ranges::find(kNames, schedule) != std::end(kNames)) {
      if (in_flight > 0) usage_error("--in-flight is '%d'; expected a file as --schedule then", in_flight);
      if (ahead > 0) usage_error("--ahead is '%d'; expected a file as --schedule then", ahead);
      return;
    }
    from_file = ScheduleFile(schedule).read(ahead > 0 ? ahead : 1);
    const auto adopt = [this](const char* option, int& given, int usual, int of_file) {
      if (given != usual && given != of_file)
        usage_error("%s is '%d'; expected %d, as in %s", option, given, of_file, schedule.c_str());
      given = of_file;
    };
    adopt("--micro-batches", micro_batches, usual_micro_batches, from_file->micro_batches);
    adopt("--chunks", chunks, 0, from_file->chunks);
  }
  bool splits_backward() const {
    return from_file ? from_file->splits_backward : schedule == "zb-h1" || schedule == "zb-v";
  }

  // Fills in the defaults, and ends the program if the options contradict each other. `stages_option` is the option
  // that sets the number of stages, for the error messages.
  void complete(int stages, const std::string& stages_option, const std::string& recompute) {
    const bool interleaved = schedule == "interleaved";
    if (!from_file) read();
    if (from_file && from_file->stages != stages) {
      usage_error("--schedule is '%s', for %d stages; expected %s, %d", schedule.c_str(), from_file->stages,
                  stages_option.c_str(), stages);
    }
    if (micro_batches == 0) micro_batches = stages > 1 ? 4 : 1;
    if (chunks == 0) chunks = interleaved || schedule == "zb-v" ? 2 : 1;
    if (schedule == "zb-v" && chunks != 2) usage_error("--chunks is '%d'; expected 2 with --schedule zb-v", chunks);
    if (!interleaved && schedule != "zb-v" && !from_file && chunks > 1) {
      usage_error("--chunks is '%d'; expected 1 unless --schedule is interleaved or zb-v", chunks);
    }
    if (splits_backward() && recompute != "none") {
      usage_error("--recompute is '%s'; expected none with --schedule %s, which needs all activations twice",
                  recompute.c_str(), schedule.c_str());
    }
    require_product({{stages_option, stages}, {"--micro-batches", micro_batches}, {"--chunks", chunks}}, 1 << 22);
    if (interleaved && micro_batches % stages != 0) {
      usage_error("--micro-batches is '%d'; expected a multiple of the %d stages, the size of a group", micro_batches,
                  stages);
    }
    if (schedule == "zb-v" && micro_batches < 2 * stages) {
      usage_error("--micro-batches is '%d'; expected at least %d with --schedule zb-v, twice the number of stages",
                  micro_batches, 2 * stages);
    }
  }

  void require_divisor(int batch_size) const {
    if (batch_size % micro_batches == 0) return;
    usage_error("--micro-batches is '%d'; expected a divisor of --batch-size, %d", micro_batches, batch_size);
  }

  // Returns the schedule. check_schedule() says whether it is right.
  Schedule make_schedule(int stages) const {
    if (from_file) {
      Schedule s = *from_file;
      for (int stage = 0; stage < stages; ++stage) {
        s.in_flight.push_back(in_flight > 0 ? in_flight : micro_batches * chunks);
      }
      return s;
    }
    const Schedule s = built_in(stages);
    probe_schedule(schedule, s);
    return s;
  }

 private:
  Schedule built_in(int stages) const {
    if (schedule == "gpipe") return gpipe(stages, micro_batches);
    if (schedule == "1f1b") return one_f_one_b(stages, micro_batches);
    if (schedule == "zb-h1") return zb_h1(stages, micro_batches);
    if (schedule == "zb-v") return zb_v(stages, micro_batches);
    return interleaved(stages, micro_batches, chunks);
  }

  static constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
};

}  // namespace workshop
