// SPDX-License-Identifier: Apache-2.0
// Gradients against central differences, for networks whose parameters are cut over ranks.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "01_single_gpu/gradient_check.h"
#include "common/job.h"
#include "shards.h"

namespace workshop {

// Ends the job with status 2 with mixed precision, whose rounding is coarser than the differences.
inline void require_floats() {
  if (kMixedPrecision) usage_error("--gradient-check is for --precision fp32 alone");
}

// Compares the gradients that backward() has left with central differences, for up to 20 values of each part of each
// parameter, and prints a line a parameter. `loss` computes L of the whole group, the same number on every rank,
// and all ranks call it together: only the owner of a value shifts it, all ranks where they are replicas. True if all
// agree, to 2 % of their norm and to what float32 leaves of a difference of losses: 4 roundings of L, divided by 2h. A
// gradient may be zero: attention does not change with the bias of its keys, because a softmax does not change with
// what is added to all scores of a row.
inline bool check_gradients(const std::vector<Parameter>& parameters, const Group& group,
                            const std::function<double()>& loss, cudaStream_t stream) {
  constexpr float h = 1e-2f;
  constexpr double tolerance = 2e-2;
  const double rounding = 4 * std::pow(2.0, -24) * loss() / (2 * h);
  bool agree = true;
  for (const Parameter& p : parameters) {
    std::vector<Real> value(p.count()), grad(p.count());
    CUDA_CHECK(cudaMemcpyAsync(value.data(), p.value, p.count() * sizeof(Real), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(grad.data(), p.grad, p.count() * sizeof(Real), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::array<double, 3> sums =
        {};  // over the values of this rank: squares of the errors, of the differences, and ones
    for (int owner = 0; owner < (p.split == Split::none ? 1 : group.size()); ++owner) {
      const bool mine = p.split == Split::none || owner == group.rank();
      for (int i = 0; i < p.count(); i += (p.count() + 19) / 20) {
        const double difference = central_difference(mine ? p.value + i : nullptr, value[i], h, loss, stream);
        if (!mine) continue;
        sums[0] += std::pow(difference - static_cast<float>(grad[i]), 2);
        sums[1] += std::pow(difference, 2);
        ++sums[2];
      }
    }
    const auto of_ranks = group.gather(sums);
    sums = {};
    for (const auto& part : of_ranks) std::ranges::transform(sums, part, sums.begin(), std::plus());
    const double error = std::sqrt(sums[0]), norm = std::sqrt(sums[1]);
    const bool good = error <= tolerance * norm + rounding * std::sqrt(sums[2]);
    print0("%-16s  norm %.1e  difference %.1e  %s\n", p.name.c_str(), norm, error, good ? "agrees" : "WRONG");
    agree = agree && good;
  }
  return agree;
}

}  // namespace workshop
