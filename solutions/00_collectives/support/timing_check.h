// SPDX-License-Identifier: Apache-2.0
// A program that measures time must not report nonsense: holds the time that events have measured against the time that
// the host has waited for the same calls.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"

namespace workshop {

// The time between two events around some calls lies within the time that the host waits for them, and is most of it.
// On a busy machine the host may notice late that the device is done, so the bounds are wide, and the median over all
// measurements is what is judged. Not judged are a single rank, whose calls are copies that are done before the host
// wakes up, and a simulated machine, whose clock is not the host's.
class TimingCheck {
 public:
  TimingCheck(int rank, int world) : rank_(rank), judged_(world > 1 && !time_is_simulated()) {}

  void start() { begin_ = std::chrono::steady_clock::now(); }

  // Call once the host has waited for `calls` calls, which took `milliseconds` by the events.
  void stop(float milliseconds, int calls) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin_;
    shares_.push_back(milliseconds / 1e3 / waited.count());
    calls_ = calls;
  }

  // Says what is wrong, if anything.
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
    if (share < 0) return ": start and stop are exchanged";
    if (share > 0.3 * one && share < 3 * one) {
      return ": that is the time of one call; it is divided by `iterations` later";
    }
    if (share > 0.3e-3 && share < 3e-3) return ": milliseconds are asked for, or no call lies between the two events";
    return ": do the events lie around the calls, on the same stream?";
  }

  int rank_;
  bool judged_;
  int calls_ = 1;  // of a measurement
  std::chrono::steady_clock::time_point begin_;
  std::vector<double> shares_;  // of the host's wait, one for each measurement
};

}  // namespace workshop
