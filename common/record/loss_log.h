// SPDX-License-Identifier: Apache-2.0
// The losses of a training run.
#pragma once

#include <cuda_runtime.h>

#include <memory>

namespace workshop {

class Options;

// Keeps the losses of an epoch on the device until the epoch ends, so that no step waits for its own loss.
class LossLog {
 public:
  // `samples`: samples per epoch, over all replicas. `replica`: this rank's replica, one of `replicas` data-parallel
  // ones. If several ranks make up a replica, only one of them records its losses, and the others pass -1. Rank 0 must
  // be one of those that record.
  LossLog(const Options& options, int samples, int replica, int replicas, cudaStream_t stream);

  // Starts counting at `step`, for a run that resumes from a checkpoint.
  void start_at(int step);

  // Begins an optimizer step and returns the place for its loss. The value there is 0, so that micro-batches can add to
  // it.
  float* next(cudaStream_t stream);
  // The losses of the epoch so far, [count()], and the place for their means over the replicas, which the caller must
  // write if there are several replicas.
  float* losses() const;
  float* global_losses() const;
  int count() const;
  // The place for the norm of this step's gradient. The value there is 0, so that squares can be added up in it first.
  // Null if no norm is needed.
  float* gradient_norm() const;
  // The place for the auxiliary loss of this step (chapter 09). The value there is 0, so that layers can add to it. It
  // is recorded if a program has ever called this.
  float* auxiliary();
  double last() const;              // last step of the finished epochs: mean loss over the replicas; 0 before that
  double seconds_per_step() const;  // over the finished epochs; 0 before that
  // True if --max-steps is reached. The run must make no more steps and no more epochs.
  bool finished() const;
  // Waits for the stream, prints every log_every-th step on rank 0, records all steps, and prepares the next epoch.
  void end_epoch(int epoch, cudaStream_t stream);

 private:
  void clear(cudaStream_t stream);
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace workshop
