// SPDX-License-Identifier: Apache-2.0
// Sums and maxima along a row, each computed by one thread.
#pragma once

#include <cmath>

#include "common/device/launch.h"
#include "model/precision.h"

namespace workshop {

// Returns Σ term(j) for 0 ≤ j < n, in any order, so that a CPU can add up a vector of terms at a time.
template <typename Term>
__device__ inline float sum_of(int n, Term term) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < n; ++j) sum += static_cast<float>(term(j));
  return sum;
}

// Returns the largest of values[n], which are Reals or floats.
template <typename Values>
__device__ inline float max_of(int n, Values values) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int j = 0; j < n; ++j) {
    const float value = values[j];
    largest = value > largest ? value : largest;
  }
  return largest;
}

// *total += factor·Σ values[n]
[[maybe_unused]] static __global__ void add_sum(float* total, const float* values, float factor, int n) {
  for ([[maybe_unused]] int once : grid_stride(1)) *total += factor * sum_of(n, [=](int i) { return values[i]; });
}

}  // namespace workshop
