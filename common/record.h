// SPDX-License-Identifier: Apache-2.0
// What a run leaves behind: the run record that tests compare, the ledger of NCCL calls, the timeline, and the TODOs.
// Everything here costs nothing unless --record or --timeline asks for it.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "common/device.h"
#include "common/options.h"
#include "common/record/off_the_record.h"
#include "common/record/todo.h"

namespace workshop {

// ---- exercises -----------------------------------------------------------------------------------------------------

// todo("02.1") stands where a participant has to write something, in a kernel too. It prints the TODO's number, its
// text and its place, once a job, and ends every rank with status 77.

// Records `shape` numbers as they are at this point of `stream`, in device or pinned host memory, under the number of
// the TODO that has just written them. It does not wait: the copy is one more operation of the stream. Only the first
// kProbedSteps steps are probed.
void probe(const char* todo, Label name, const float* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file = __builtin_FILE(), int line = __builtin_LINE());
void probe(const char* todo, Label name, const int* tensor, std::initializer_list<int> shape, cudaStream_t stream,
           const char* file = __builtin_FILE(), int line = __builtin_LINE());
inline constexpr int kProbedSteps = 3;

// Records numbers that a TODO has worked out on the host.
void probe(const char* todo, Label name, const std::vector<int>& values);
void probe(const char* todo, Label name, const std::vector<double>& values);

// ---- run record ----------------------------------------------------------------------------------------------------

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

// The losses of an epoch stay on the device until its end, so that no step waits for its own loss.
class LossLog {
 public:
  // For epochs of so many samples. This rank is number `replica` of `replicas` data-parallel replicas. Where several
  // ranks make up a replica, one of them, rank 0 among them, records its losses; the others give -1.
  LossLog(const Options& options, int samples, int replica, int replicas, cudaStream_t stream);

  // Counts the steps from this one on, for a run that goes on from a checkpoint.
  void start_at(int step);

  // Begins an optimizer step. Returns where its loss belongs: a zero, so that micro-batches can add to it.
  float* next(cudaStream_t stream);
  // The losses of the epoch so far, [count()], and room for their mean over the replicas, for the caller to write if
  // there are several replicas.
  float* losses() const;
  float* global_losses() const;
  int count() const;
  // Where the norm of this step's gradient belongs: a zero, so that squares can be added up there first; null where no
  // norm is needed.
  float* gradient_norm() const;
  double last() const;  // the mean over the replicas of the last step of the epochs that have ended; 0 before
  double seconds_per_step() const;  // of the epochs that have ended; 0 before any has
  // True when --max-steps is reached: no more steps, no more epochs.
  bool finished() const;
  // Waits for the stream, prints every log_every-th step on rank 0, records all, and starts over.
  void end_epoch(int epoch, cudaStream_t stream);

 private:
  void clear(cudaStream_t stream);
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// ---- ledger and timeline -------------------------------------------------------------------------------------------

// What the ledger and the watchdog call a communicator.
void name_communicator(ncclComm_t comm, const std::string& name);

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
