// SPDX-License-Identifier: Apache-2.0
// The model of communication costs that all chapters use, and its fit to measured times.
#pragma once

#include <cstddef>
#include <vector>

namespace workshop {

struct Measurement {
  std::size_t bytes;  // of the message
  double seconds;     // of one call: the mean over the iterations on the slowest rank
};

// A line through the times of calls: alpha + beta x bytes.
struct Fit {
  double alpha;  // the latency: seconds per call, even for the shortest message
  double beta;   // seconds per byte
  double seconds(double bytes) const { return alpha + beta * bytes; }
};

// Fits by least squares over the relative errors. With absolute errors, only the longest messages would count, and
// alpha, which matters for short messages, would be lost in their noise. Neither alpha nor beta is negative. Requires
// at least one measurement and no time of 0 seconds. With a single size, alpha is 0.
inline Fit fit(const std::vector<Measurement>& measurements) {
  double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
  for (const auto& [bytes, t] : measurements) {
    const double weight = 1 / (t * t), x = static_cast<double>(bytes);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wt += weight * t;
    wxt += weight * x * t;
  }
  if (measurements.size() > 1) {
    const double beta = (w * wxt - wx * wt) / (w * wxx - wx * wx);
    const double alpha = (wt - beta * wx) / w;
    if (beta < 0) return {wt / w, 0};
    if (alpha >= 0) return {alpha, beta};
  }
  return {0, wxt / wxx};
}

}  // namespace workshop
