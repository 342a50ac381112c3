// SPDX-License-Identifier: Apache-2.0
// The norm of a gradient, over all parameters together, and clipping by it (Pascanu et al., 2013).
#pragma once

#include <span>
#include <vector>

#include "common/device/device.h"
#include "common/nccl/group.h"
#include "model/precision.h"

namespace workshop {

class Options;

// What a rank has of a gradient that several ranks hold together.
struct GradientParts {
  using Range = std::span<Real>;
  std::vector<Range> held;            // all of it
  std::vector<Range> counted = held;  // whose squares this rank adds up: each element of the whole gradient must count
                                      // on exactly one rank

  int largest() const;  // values in the largest range
};

// Forms the gradient's norm and clips by it. The norm is a float on the device, so that no step waits for it: it starts
// as zero, as LossLog::gradient_norm() does. Call nothing else unless enabled().
class Clipping {
 public:
  // For ranges of at most `largest` values.
  Clipping(const Options& options, int largest, cudaStream_t stream);

  // Whether this run needs the norm: to clip by it or, with a language model, to record it.
  bool enabled() const { return enabled_; }

  // On a rank that has the whole gradient: makes *norm the norm of grads[count] and clips them by it.
  void clip(Real* grads, int count, float* norm) const;
  // On ranks that hold it together: makes *norm the norm of the whole gradient, the same on every rank of the group,
  // and clips this rank's parts by it. Collective.
  void clip(const GradientParts& mine, const Group& group, float* norm) const;

  // The steps of that, for programs that do something in between.
  void add_squares(const GradientParts& mine, float* norm) const;
  void add_squares(const Real* grads, int count, float* norm) const;
  void sum_over(const Group& group, float* norm) const;
  void take_root(float* norm) const;
  void scale(const GradientParts& mine, const float* norm) const;
  void scale(Real* grads, int count, const float* norm) const;

 private:
  bool enabled_;
  float most_;  // the largest norm; 0: any
  cudaStream_t stream_;
  DeviceBuffer<float> sums_;  // of the squares of each chunk
};

}  // namespace workshop
