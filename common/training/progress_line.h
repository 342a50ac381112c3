// SPDX-License-Identifier: Apache-2.0
// How far a long training has come: on a terminal one line that is written again and again, elsewhere a line now and
// then.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/device/device.h"

namespace workshop {

// What a training makes in all, and what it is measured in.
struct Work {
  std::int64_t steps;
  double units_per_step;
  std::string unit;  // "tokens"
};

// When a line is written.
struct Pace {
  double seconds;  // from one line to the next
  double first;    // until the first one
  bool on_terminal;
};

// Steps neither wait nor allocate for it: what it says is what an event and a copy of the loss have come to when they
// are looked at, at the begin of a later step.
class ProgressLine {
 public:
  // On rank 0, null on all others and where none is wanted: WORKSHOP_PROGRESS is the seconds between two lines, 0 for
  // none.
  static std::unique_ptr<ProgressLine> make(const Work& work);
  ProgressLine(Work work, const Pace& pace);
  ~ProgressLine();

  // Call before a step's work is enqueued on `stream`, after so many others. The loss of the last one is on the device:
  // zero where another rank has it, null where there is none. Then `loss`, that of an epoch before, is shown; 0 where
  // none is known.
  void begin_step(std::int64_t steps, const float* device_loss, double loss, cudaStream_t stream);
  // Call before something else is printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::duration in_clock(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  void look();
  void say(double seconds_per_step);

  Work work_;
  Pace pace_;
  bool shown_ = false;

  // A look at the device, begun after so many steps, that may be under way.
  Event reached_;
  float* host_loss_ = nullptr;  // pinned, and in no account: the record is as without
  bool under_way_ = false;
  std::int64_t steps_ = 0;
  double known_loss_ = 0;

  Clock::time_point next_look_, next_line_;
  // The first look that has come to its end: from there on speed is measured.
  Clock::time_point first_at_;
  std::int64_t first_steps_ = -1;
};

}  // namespace workshop
