// SPDX-License-Identifier: Apache-2.0
// Your pair of layers. The rules are in README.md.
#include "golf/judge/tensor_overlap.h"

// Computes everything, then sums everything.
void tensor_overlap(const golf::TensorOverlap& given) {
  using Task = golf::TensorOverlap;
  const cudaStream_t stream = given.streams[0];
  float* const h = given.scratch;  // [kRows, kFeatures]
  golf::multiply(given.x, given.W1, h, Task::kRows, Task::kWidth, Task::kFeatures, stream);
  golf::gelu(h, Task::kRows * Task::kFeatures, stream);
  golf::multiply(h, given.W2, given.y, Task::kRows, Task::kFeatures, Task::kWidth, stream);
  NCCL_CHECK(ncclAllReduce(given.y, given.y, Task::kRows * Task::kWidth, ncclFloat, ncclSum, given.tensor[0], stream));
}
