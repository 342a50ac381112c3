// SPDX-License-Identifier: Apache-2.0
// The training loop of every program: data set, order of the samples, losses, validation, checkpoints. Only the
// technique is left for a program's main(); see 01_single_gpu/mlp.cu.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/checkpoint/parts.h"
#include "common/data/batch.h"
#include "common/data/data_source.h"
#include "common/job/job.h"
#include "common/nccl/group.h"
#include "common/options/options.h"
#include "common/record/record.h"

namespace workshop {

// The state that an optimizer keeps from step to step.
struct OptimizerState {
  float *first_moment, *second_moment;  // of AdamW, one entry per updated value; null for SGD
  int* steps;                           // number of steps so far
  std::function<void()> loaded;         // called after a checkpoint has been loaded into them; may be empty
};

// This rank's place among the data-parallel replicas. If several ranks form a replica, one of them reports the
// replica's losses. Rank 0 must report.
struct ReplicaPlace {
  int replicas = 1, replica = 0;
  bool reports = true;
};

// One of the batches of a step (--accumulation-steps).
struct MicroBatch : Batch {
  bool first, last;  // of the step
};

// With --checkpoints, SIGTERM or SIGUSR1 on any rank stops all ranks after the same step: the training saves a
// checkpoint, the loop ends, nothing more is evaluated, and the process exits with status kSaved.
class Training {
 public:
  // Loads the data and prepares all work on `stream`. Collective. `options` must outlive this object.
  Training(const Options& options, const Job& job, ReplicaPlace place, const DataSource& data, cudaStream_t stream);
  ~Training();

  // ---- the loop ----

  // Begins the next epoch, after printing the losses of the one before. Returns false after the last epoch.
  bool next_epoch();
  // Begins the next step, after saving a checkpoint if one is due. Returns false after the last step of the epoch.
  bool next_step();
  // Gets the next batch of the step, which is valid until the next call. Returns false after the last batch.
  bool next_batch(MicroBatch& batch);
  // Returns the batch of a step that has only one.
  Batch batch();
  // Ends the epoch now instead of in next_epoch(), so that the program can report on it.
  void end_epoch();

  // ---- the current step ----

  int samples() const;  // in all its batches, on this replica
  float* loss() const;  // on the device, initially zero: add the loss here
  // Factor of the learning rate (--warmup-steps, --lr-schedule). Call it right before you enqueue the update: if an
  // asynchronous checkpoint is still copying the current values, this makes the stream wait for that copy.
  double lr_factor() const;
  // The losses of the epoch on the device, one per step. If there are several replicas, average losses() over them into
  // global_losses() before each end_epoch().
  LossLog& losses();

  // ---- evaluation: on validation samples after each epoch, on test samples after the last ----

  int evaluated() const;        // number of samples; may be 0
  int first_evaluated() const;  // index of the first one
  ncclComm_t comm() const;      // of all ranks, to sum their shares of the loss

  // Adds a batch's share of the mean loss over all evaluated() samples to a float on the device.
  using AddLoss = std::function<void(const Batch&, float*)>;
  // Evaluates on samples that all `ranks` process together; each rank adds its share of the loss. Prints and records
  // the result, and saves a checkpoint if the validation loss is the best so far. Does nothing if evaluated() is 0. By
  // default, this rank computes the whole loss. Call after each epoch, and once more when next_epoch() has returned
  // false.
  void evaluate(const AddLoss& add_loss, const Group& ranks = {});
  // Evaluates on this replica's own `samples`, indices into the data set. sum(value) must sum a float on the device
  // over the replicas; it is called for the loss and, with images, for the accuracy. All replicas call add_loss() the
  // same number of times, the last times possibly with empty batches. Collective.
  void evaluate(const std::vector<int>& samples, const AddLoss& add_loss, const std::function<void(float*)>& sum);

  // ---- checkpoints: add all their contents before the first epoch ----

  void add(const std::vector<TensorPart>& parts);
  // Adds the optimizer's state for the values in `parts`, which are contiguous from `values` on.
  void add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state);
  // Adds parameters together with the optimizer's state for them.
  void add_all(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
    add(parts);
    add(parts, values, state);
  }
  // Adds a step count. On resume, it is set to the checkpoint's.
  void add(int* steps);
  // Loads the checkpoint of --resume now; otherwise next_epoch() does. Collective.
  void resume();

  // Returns the first samples of the data set, for a check of the gradients before training.
  Batch first_samples();

 private:
  void report_epoch();
  void report_throughput();
  void report_stop() const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace workshop
