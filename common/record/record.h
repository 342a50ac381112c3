// SPDX-License-Identifier: Apache-2.0
// What a run leaves behind: the run record that tests compare, the ledger of NCCL calls, the timeline, and the TODOs.
// Everything here costs nothing unless --record or --timeline asks for it.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "common/record/loss_log.h"
#include "common/record/probe.h"

namespace workshop {

// The loss of one optimizer step. `replica` is the data-parallel replica that saw it; `global_loss` is the mean over
// all replicas. Each replica calls this on one of its ranks. `gradient_norm` is recorded unless it is null.
void record_loss(int replica, int step, int epoch, float loss, float global_loss, const float* gradient_norm = nullptr);

// A number that this rank has measured, such as the share of its time that it idled.
void record_value(const std::string& name, double value);

// What rank 0 of an earlier run has recorded as "NAME 0", "NAME 1", …, up to the first that is missing. Throws
// std::runtime_error where the file is no record.
std::vector<double> read_values(const std::string& path, const std::string& name);

// A full, unsharded parameter after the last step, under PyTorch's name. One rank of each replica calls this: the
// values of replica 0 are recorded, and of each a hash, which tells whether all are bit-equal. Waits for the stream.
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
