// SPDX-License-Identifier: Apache-2.0
// The norm of the gradient over all parameters, and clipping by it (Pascanu et al., 2013).
#pragma once

#include <span>
#include <vector>

#include "common/device/device.h"
#include "common/nccl/group.h"
#include "model/precision.h"

namespace workshop {

class Options;

// One rank's parts of a gradient that is spread over several ranks.
struct GradientParts {
  using Range = std::span<Real>;
  std::vector<Range> held;            // all parts that this rank holds
  std::vector<Range> counted = held;  // the parts whose squares this rank adds up: each element of the gradient must
                                      // count on exactly one rank

  int largest() const;  // values in the largest range
};

// Computes the norm of the gradient and clips by it. The norm is a float on the device, so that no step waits for it.
// It must start as zero, as LossLog::gradient_norm() does. Call the other functions only if enabled().
class Clipping {
 public:
  // For ranges of at most `largest` values.
  Clipping(const Options& options, int largest, cudaStream_t stream);

  // Returns whether this run needs the norm: to clip by it or, with a language model, to record it.
  bool enabled() const { return enabled_; }

  // For a rank that has the whole gradient: sets *norm to the norm of grads[count] and clips them by it.
  void clip(Real* grads, int count, float* norm) const;
  // For ranks that hold the gradient together: sets *norm to the norm of the whole gradient, the same on every rank of
  // the group, and clips this rank's parts by it. Collective.
  void clip(const GradientParts& mine, const Group& group, float* norm) const;

  // The single steps of clip(), for programs that do something in between.
  void add_squares(const GradientParts& mine, float* norm) const;
  void add_squares(const Real* grads, int count, float* norm) const;
  void sum_over(const Group& group, float* norm) const;
  void take_root(float* norm) const;
  void scale(const GradientParts& mine, const float* norm) const;
  void scale(Real* grads, int count, const float* norm) const;

 private:
  bool enabled_;
  float most_;  // the largest norm allowed; 0: no limit
  cudaStream_t stream_;
  DeviceBuffer<float> sums_;  // indexed by chunk: the sum of its squares
};

}  // namespace workshop
