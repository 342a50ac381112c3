// SPDX-License-Identifier: Apache-2.0
// One training run, as every program steps through it: data set, order of the samples, losses, validation, checkpoints.
// What is left for a program's main() is its technique: see 01_single_gpu/mlp.cu.
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

// What an optimizer keeps from step to step.
struct OptimizerState {
  float *first_moment, *second_moment;  // AdamW's, one per value updated; null for SGD
  int* steps;                           // made so far
  std::function<void()> loaded;         // called once a checkpoint has been loaded into them; may be empty
};

// This rank's place among the data-parallel replicas. If several ranks form a replica, one of them reports its losses;
// rank 0 must be among those that report.
struct ReplicaPlace {
  int replicas = 1, replica = 0;
  bool reports = true;
};

// One of the batches of a step: --accumulation-steps says how many there are.
struct MicroBatch : Batch {
  bool first, last;  // of the step
};

class Training {
 public:
  Training(const Options& options, const Job& job, ReplicaPlace place, const DataSource& data, cudaStream_t stream);
  ~Training();

  // ---- the loop ----

  // Begins the next epoch, after printing the losses of the one before. Returns false after the last epoch.
  bool next_epoch();
  // Begins the next step, after saving a checkpoint if one is due. Returns false after the last step of the epoch.
  bool next_step();
  // Gets the next batch of the step, valid until the one after it. Returns false after the last batch.
  bool next_batch(MicroBatch& batch);
  // Returns the batch of a step that has only one.
  Batch batch();
  // Ends the epoch now, so that the program can report on it.
  void end_epoch();

  // ---- the step under way ----

  int samples() const;       // of all its batches, on this replica
  float* loss() const;       // on the device, zero at first: add the loss here
  double lr_factor() const;  // of the learning rate: --warmup-steps, --lr-schedule
  // The losses of the epoch, on the device, one per step. Write their mean over the replicas to global_losses().
  LossLog& losses();

  // ---- evaluation: on validation samples after each epoch, on test samples after the last ----

  int evaluated() const;        // how many samples; 0 if there are none
  int first_evaluated() const;  // the number of the first
  ncclComm_t comm() const;      // of all ranks, for the sum over their shares of the loss

  // Adds a batch's share of the mean loss over all evaluated() samples to a float on the device.
  using AddLoss = std::function<void(const Batch&, float*)>;
  // Evaluates on samples that all of `ranks` go through together, each adding its share of the loss. By default this
  // rank has the whole loss. Call after each epoch, and once more after the last.
  void evaluate(const AddLoss& add_loss, const Group& ranks = {});
  // Evaluates on this replica's own `samples`; sum(loss) must then sum the shares over the replicas. All replicas make
  // the same number of calls of add_loss(), the last ones perhaps with empty batches. Collective.
  void evaluate(const std::vector<int>& samples, const AddLoss& add_loss, const std::function<void(float*)>& sum);

  // ---- checkpoints: say what belongs to one before the first epoch ----

  void add(const std::vector<TensorPart>& parts);
  // Adds the optimizer's state for the values that `parts` hold, which lie one after the other from `values` on.
  void add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state);
  // Adds parameters together with the optimizer's state for them.
  void add_all(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
    add(parts);
    add(parts, values, state);
  }
  // Adds a count of steps, which resumes at the checkpoint's.
  void add(int* steps);
  // Loads the checkpoint of --resume now; next_epoch() does so otherwise. Collective.
  void resume();

  // Returns the first samples of the data set, for a check of the gradients before training.
  Batch first_samples();

 private:
  void report_epoch();
  void report_throughput();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace workshop
