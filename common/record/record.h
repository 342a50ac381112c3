// SPDX-License-Identifier: Apache-2.0
// The records of a run: the run record that tests compare, with the ledger of NCCL calls; the timeline; and TODOs and
// probes. They cost nothing without --record and --timeline.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "common/record/loss_log.h"
#include "common/record/probe.h"

namespace workshop {

// Records the loss of one optimizer step. `loss` is that of the data-parallel replica `replica`, `global_loss` the mean
// over all replicas. Call it on one rank of each replica. `gradient_norm` is recorded unless it is null,
// and so is the auxiliary loss.
void record_loss(int replica, int step, int epoch, float loss, float global_loss, const float* gradient_norm = nullptr,
                 const float* auxiliary = nullptr);

// Records a number that this rank has measured, such as the share of time in which it was idle.
void record_value(const std::string& name, double value);

// Returns the values that rank 0 of an earlier run recorded as "NAME 0", "NAME 1", …, up to the first that is missing.
// Throws std::runtime_error if the file is not a run record.
std::vector<double> read_values(const std::string& path, const std::string& name);

// Records a full, unsharded parameter after the last step, under PyTorch's name. Call it on one rank of each replica.
// Records the values of replica 0, and a hash for each replica, which tells whether all are bit-equal. Waits for the
// stream.
void record_parameter(int replica, const std::string& name, const float* device, std::vector<int> shape,
                      cudaStream_t stream);

// Marks the work enqueued on `stream` during its lifetime as a span of the timeline (and as an NVTX range).
class Range {
 public:
  Range(Label name, cudaStream_t stream);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  int span_ = -1;
};

}  // namespace workshop
