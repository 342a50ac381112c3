// SPDX-License-Identifier: Apache-2.0
// Compares the time that events measured with the time that the host waited for the same calls, so that `bandwidth`
// does not report nonsense.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"

namespace workshop {

// The time between two events around some calls is part of the time that the host waits for them, and most of it. On a
// busy machine, the host may notice late that the device is done. Therefore the bounds are wide, and the check uses the
// median over all measurements. It skips single ranks, whose calls are copies that are done before the host wakes up,
// and simulated machines, whose clock is not the host's.
class TimingCheck {
 public:
  TimingCheck(int rank, int world) : rank_(rank), judged_(world > 1 && !time_is_simulated()) {}

  void start() { begin_ = std::chrono::steady_clock::now(); }

  // Call after the host has waited for `calls` calls. The events measured `milliseconds` for them.
  void stop(float milliseconds, int calls) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin_;
    shares_.push_back(milliseconds / 1e3 / waited.count());
    calls_ = calls;
  }

  // Prints what is wrong with the times. Returns whether nothing is.
  bool passed() const {
    if (!judged_) return true;
    const double share = median_share();
    if (share >= 0.1 && share <= 1.1) return true;
    std::printf("rank %d: WRONG, TODO 00.15 measures %.2g times the time that the host waited for the calls%s\n", rank_,
                share, likely_cause(share));
    return false;
  }

 private:
  double median_share() const {
    std::vector<double> shares = shares_;
    const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
    std::nth_element(shares.begin(), middle, shares.end());
    return *middle;
  }

  const char* likely_cause(double share) const {
    const double one = 1.0 / calls_;
    if (share < 0) return ": start and stop are swapped";
    if (share > 0.3 * one && share < 3 * one) {
      return ": this is the time of one call. Record the two events once, around all calls; the program divides by "
             "`iterations` later";
    }
    if (share > 0.3e-3 && share < 3e-3) return ": expected milliseconds, and the calls between the two events";
    return ": are the events recorded around the calls, on the same stream?";
  }

  int rank_;
  bool judged_;
  int calls_ = 1;  // of a measurement
  std::chrono::steady_clock::time_point begin_;
  std::vector<double> shares_;  // measured time / host's wait, one per measurement
};

}  // namespace workshop
