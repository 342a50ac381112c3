// SPDX-License-Identifier: Apache-2.0
// Shows the progress of a long training run: on a terminal, one line that is overwritten; elsewhere, a new line now and
// then.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/device/device.h"

namespace workshop {

// The length of a training run, and the unit of its speed.
struct Work {
  std::int64_t steps;
  double units_per_step;
  std::string unit;  // "tokens"
};

// When to write a line.
struct Pace {
  double seconds;  // from one line to the next
  double first;    // until the first one
  bool on_terminal;
};

// No step waits or allocates memory for this: a step enqueues a copy of the loss and an event, and a later step prints
// the loss if both have completed.
class ProgressLine {
 public:
  // Returns null on ranks other than 0 and if no progress is wanted. WORKSHOP_PROGRESS sets the seconds between two
  // lines; 0: no progress.
  static std::unique_ptr<ProgressLine> make(const Work& work);
  ProgressLine(Work work, const Pace& pace);
  ~ProgressLine();

  // Call before enqueueing a step's work on `stream`. `steps`: steps before this one. `device_loss`: the previous
  // step's loss, on the device, or null if the epoch has no step yet. The value there is 0 if another rank has the
  // loss. In both cases, the line shows `loss` instead, the loss of an earlier epoch; 0: unknown.
  void begin_step(std::int64_t steps, const float* device_loss, double loss, cudaStream_t stream);
  // Removes the line from a terminal. Call before printing anything else.
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

  // The latest query of the device (a copy of the loss, then reached_), enqueued after steps_ steps; may be in flight.
  Event reached_;
  float* host_loss_ = nullptr;  // pinned; left out of the record, which must not depend on the progress line
  bool under_way_ = false;
  std::int64_t steps_ = 0;
  double known_loss_ = 0;

  Clock::time_point next_look_, next_line_;
  // The first query that has completed. The speed is measured from there.
  Clock::time_point first_at_;
  std::int64_t first_steps_ = -1;
};

}  // namespace workshop
