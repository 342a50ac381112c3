// SPDX-License-Identifier: Apache-2.0
// A worker's share of the samples, batch by batch and epoch by epoch, without end: the server decides how many steps
// the worker makes. That is why a worker has no Training, which makes the same number of steps on all ranks.
#pragma once

#include <cstdio>

#include "common/data/training_data.h"
#include "common/job/job.h"
#include "common/options/options.h"
#include "common/record/record.h"

namespace workshop {

class WorkerShare {
 public:
  // `worker` counts from 0.
  WorkerShare(const Options& options, const DataSource& source, int workers, int worker, cudaStream_t stream)
      : options_(options),
        workers_(workers),
        worker_(worker),
        stream_(stream),
        images_(source.images != nullptr),
        data_(load_training_data(options, source, stream)),
        sampler_(distributed_sampler(options, data_, workers, worker)),
        losses_(options, data_.samples, /*replica=*/-1, workers, stream) {}

  // Begins the next step, and the next epoch if this one is over.
  void next_step() {
    if (next_ == data_.loader->steps()) next_epoch();
    losses_.next(stream_);
    ++step_;
    ++next_;
  }

  // Returns the batch of this step.
  Batch batch() {
    Batch batch = data_.loader->batch(next_ - 1);
    batch.step = step_;
    batch.stride = workers_;
    batch.number = worker_;
    return batch;
  }

  // Ends the share. Call after the last step.
  void finish() {
    losses_.end_epoch(epoch_, stream_);
    if (!images_) return;
    record_value("seconds that the device has waited for data", data_.loader->seconds_waited());
  }

 private:
  void next_epoch() {
    if (epoch_ >= 0) losses_.end_epoch(epoch_, stream_);
    sampler_.set_epoch(++epoch_);
    data_.loader->start_epoch(sampler_.indices());
    next_ = 0;
    if (!options_.verbose) return;
    std::printf("rank %d: epoch %3d  batch size %d  steps %d\n", process_ranks().rank, epoch_, options_.batch_size,
                data_.loader->steps());
    std::fflush(stdout);
  }

  const Options& options_;
  int workers_, worker_;
  cudaStream_t stream_;
  bool images_;
  TrainingData data_;
  DistributedSampler sampler_;
  LossLog losses_;  // reports the steps to the record and the timeline; the server reports their losses
  int epoch_ = -1, step_ = -1;
  int next_ = 0;  // next batch of the epoch; the first epoch has not begun yet
};

}  // namespace workshop
