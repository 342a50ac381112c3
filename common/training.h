// SPDX-License-Identifier: Apache-2.0
// One training run, as every program goes through it: the data, the order of the samples, the losses, validation and
// checkpoints. What is left for a program's main() is its technique: 01_single_gpu/mlp.cu.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/checkpoint.h"
#include "common/data.h"
#include "common/data/data_source.h"
#include "common/group.h"
#include "common/job.h"
#include "common/options.h"
#include "common/record.h"

namespace workshop {

// What an optimizer keeps from step to step.
struct OptimizerState {
  float *first_moment, *second_moment;  // AdamW's, as many as the values that it updates; null where there are none
  int* steps;                           // made so far
  std::function<void()> loaded;         // called when a checkpoint's have been loaded; may be empty
};

// This rank's place among the data-parallel replicas. Where several ranks make up a replica, one of them, rank 0 among
// them, reports its losses.
struct ReplicaPlace {
  int replicas = 1, replica = 0;
  bool reports = true;
  bool endless = false;  // trains, epoch after epoch, until stop(): for how many steps, another rank decides
};

// A batch of a step that may have several, with --accumulation-steps.
struct MicroBatch : Batch {
  bool first, last;  // of the step
};

class Training {
 public:
  Training(const Options& options, const Job& job, ReplicaPlace place, const DataSource& data, cudaStream_t stream);
  ~Training();

  // ---- what checkpoints keep: all of it before the first epoch ----
  void add(const std::vector<TensorPart>& parts);
  // The optimizer's state of what `parts` hold, which lie from `values` on; goes on with its steps, too.
  void add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state);
  // Parameters and the optimizer's state of all of them.
  void add_all(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
    add(parts);
    add(parts, values, state);
  }
  // A count of the steps made so far, which goes on from those of the checkpoint.
  void add(int* steps);
  // Loads what --resume asks for. next_epoch() does it, unless a program needs it earlier. Collective.
  void resume();

  // The first samples of the data set, for programs that check their gradients before they train.
  Batch first_samples();

  // ---- the loop ----
  // Ends the epoch before, whose losses it prints, and begins the next one; false after the last.
  bool next_epoch();
  // Ends the epoch earlier, for a program that has something to say of it.
  void end_epoch();
  // Ends the step before, after which it saves a checkpoint if it is time, and begins the next one; false after the
  // last of the epoch.
  bool next_step();

  // Of the whole training, over all its epochs.
  std::int64_t steps() const;
  // Ends an endless training: the step under way is not made, and no other begins.
  void stop();

  // The next batch of the step, valid until the one after it is asked for; false after the last.
  bool next_batch(MicroBatch& batch);
  // The batch of a step that has one.
  Batch batch();
  // Samples of the step on this replica, in all its batches.
  int samples() const;
  // Where the step's loss belongs, on the device: a zero, to add to.
  float* loss() const;
  // By what the learning rate of this step is to be multiplied: --warmup-steps, --lr-schedule.
  double lr_factor() const;

  // The epoch's losses on the device, one a step. With several replicas a program writes their mean to global_losses().
  LossLog& losses();
  ncclComm_t comm() const;  // of all ranks of the job

  // ---- evaluation: validation after each epoch and, of a text or images, a test after the last one ----
  int evaluated() const;        // samples of the one that is due: none where there is nothing to evaluate on
  int first_evaluated() const;  // the first of them; the ones before it are for other purposes
  using AddLoss = std::function<void(const Batch&, float*)>;
  // Calls add_loss(batch, loss) for the batches of `samples`, as often on all replicas, with an empty batch where one
  // has no more, to add each one's share of the mean over all evaluated() samples to *loss, and then sum(loss), to put
  // the ranks' shares together: on the device, both. Prints and records the result, and saves the best state so far.
  // Of images the share of right answers, too: it is added up at Batch::correct, and there sum() is called once more.
  // Call after each epoch, and after the last one once more for the test. Collective.
  void evaluate(const std::vector<int>& samples, const AddLoss& add_loss, const std::function<void(float*)>& sum);
  // For programs whose ranks all go through the same samples: the sum is that over `ranks`, of which each has a share
  // of the loss. By default a rank has all of it.
  void evaluate(const AddLoss& add_loss, const Group& ranks = {});

 private:
  void report_epoch();
  void report_throughput();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace workshop
