// SPDX-License-Identifier: Apache-2.0
// The losses of a training.
#pragma once

#include <cuda_runtime.h>

#include <memory>

namespace workshop {

class Options;

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

}  // namespace workshop
