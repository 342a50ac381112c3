// SPDX-License-Identifier: Apache-2.0
// The task: golf/tensor_overlap/README.md.
#pragma once

#include "golf/judge/operations.h"

namespace golf {

struct TensorOverlap {
  static constexpr int kRanks = 4;
  static constexpr int kRows = 256, kWidth = 128;
  static constexpr int kFeatures = 128;  // of the hidden layer, on each rank
  static constexpr int kScratch = kRows * kFeatures + kRows * kWidth;

  const float* x;   // [kRows, kWidth], the same on all ranks
  const float* W1;  // [kWidth, kFeatures], this rank's columns
  const float* W2;  // [kFeatures, kWidth], this rank's rows
  float* y;         // [kRows, kWidth], afterwards the sum of gelu(x · W1) · W2 over all ranks
  float* scratch;   // [kScratch], for any purpose

  int rank;                     // 0 to 3
  ncclComm_t tensor[2];         // all 4 ranks, twice: operations of one communicator run one after the other
  const cudaStream_t* streams;  // [kStreams]
};

}  // namespace golf

// Computes y, on every rank.
void tensor_overlap(const golf::TensorOverlap& given);
