// SPDX-License-Identifier: Apache-2.0
// Known vectors to reduce, how far two sums of them may differ, and how long a sum takes.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/device/device.h"
#include "common/job/job.h"

namespace workshop {

// Returns the vector of one rank: standard normal values, different on each rank and the same in every run.
inline std::vector<float> vector_of(int rank, int count) {
  std::vector<float> values(count);
  Generator(rank).randn(values.data(), values.size());
  return values;
}

// Returns by how much two all-reduces may differ in each element. Both add `world` floats, in different orders. In any
// order, a sum of P floats is off by at most (P-1) u sum|x|, where u = FLT_EPSILON / 2 is the error of one rounding.
// Two such sums differ by at most twice that.
inline std::vector<double> tolerances(int count, int world) {
  std::vector<double> sum_of_magnitudes(count);
  for (int rank = 0; rank < world; ++rank) {
    const std::vector<float> values = vector_of(rank, count);
    for (int i = 0; i < count; ++i) sum_of_magnitudes[i] += std::abs(values[i]);
  }
  for (double& element : sum_of_magnitudes) element *= (world - 1) * static_cast<double>(FLT_EPSILON);
  return sum_of_magnitudes;
}

// Compares a rank's sum with that of ncclAllReduce. Returns the largest difference; prints a line and returns -1 if
// rounding cannot explain it.
inline double difference_of(const std::vector<float>& mine, const std::vector<float>& nccl, const std::string& name,
                            const Job& job) {
  const std::vector<double> tolerance = tolerances(static_cast<int>(mine.size()), job.world());
  int wrong = 0;
  double largest = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double difference = std::abs(static_cast<double>(mine[i]) - nccl[i]);
    if (!(difference <= tolerance[i])) ++wrong;
    largest = std::max(largest, difference);
  }
  if (wrong == 0) return largest;
  std::printf("rank %d: WRONG, %d of %zu elements of %s differ from ncclAllReduce by more than rounding can explain\n",
              job.rank(), wrong, mine.size(), name.c_str());
  return -1;
}

// Returns how many seconds the work takes that `enqueue` gives to the stream, on the slowest rank. Collective.
inline double seconds_of(const std::function<void()>& enqueue, const Job& job, cudaStream_t stream) {
  Event start(cudaEventDefault), stop(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(start, stream));
  enqueue();
  CUDA_CHECK(cudaEventRecord(stop, stream));
  CUDA_CHECK(cudaEventSynchronize(stop));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
  return std::ranges::max(job.group().gather(milliseconds)) / 1e3;
}

}  // namespace workshop
