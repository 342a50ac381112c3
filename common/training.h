// One training run, as every program goes through it: the data, the order of the samples, the losses, validation and
// checkpoints. What is left for a program's main() is its technique.
//
//   Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, sizes, stream);
//   training.add(parts, model.values(), optimizer.state());
//   while (training.next_epoch()) {
//     while (training.next_step()) {
//       for (const MicroBatch& batch : training.batches()) { … forward, loss and backward … }
//       … gradients and optimizer …
//     }
//     … training.losses(), averaged over the replicas …
//   }
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/checkpoint.h"
#include "common/data.h"
#include "common/job.h"
#include "common/options.h"
#include "common/record.h"

namespace workshop {

// What an optimizer keeps from step to step.
struct OptimizerState {
  float *first_moment, *second_moment;  // AdamW's, as many as the values that it updates; null where there are none
  int* steps;                           // made so far
};

// This rank's place among the data-parallel replicas. Where several ranks make up a replica, one of them, rank 0 among
// them, reports its losses.
struct ReplicaPlace {
  int replicas = 1, replica = 0;
  bool reports = true;
};

// A batch of a step that may have several, with --accumulation-steps.
struct MicroBatch : Batch {
  bool first, last;  // of the step
};

class Training {
 public:
  // The data set of the options, with samples of `input_size` and `output_size` floats.
  Training(const Options& options, const Job& job, ReplicaPlace place, int input_size, int output_size,
           cudaStream_t stream);
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // ---- what checkpoints keep: all of it before the first epoch ----
  void add(const std::vector<TensorPart>& parts) { checkpoints_.add(parts); }
  // The optimizer's state of what `parts` hold, which lie from `values` on; goes on with its steps, too.
  void add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state);
  // Parameters and the optimizer's state of all of them.
  void add_all(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
    add(parts);
    add(parts, values, state);
  }
  // Loads what --resume asks for. next_epoch() does it, unless a program needs it earlier. Collective.
  void resume();

  // The first samples of the data set, for programs that check their gradients before they train.
  Batch first_samples();

  // ---- the loop ----
  // Ends the epoch before, whose losses it prints, and begins the next one; false after the last.
  bool next_epoch();
  // Ends the step before, after which it saves a checkpoint if it is time, and begins the next one; false after the
  // last of the epoch.
  bool next_step();

  // The batches of the step, one after the other: each is valid until the next one is asked for.
  class Batches;
  Batches batches();
  // The batch of a step that has one.
  Batch batch() { return loader_.batch(first_); }
  // Samples of the step on this replica, in all its batches.
  int samples() const { return loader_.samples(first_, last_); }
  // Where the step's loss belongs, on the device: a zero, to add to.
  float* loss() const { return loss_; }

  // The epoch's losses on the device, one a step. With several replicas a program writes their mean to global_losses().
  LossLog& losses() { return losses_; }
  ncclComm_t comm() const { return comm_; }  // of all ranks of the job

  // ---- validation: with --validation-samples, after each epoch ----
  int trained_on() const { return trained_on_; }                   // the first samples of the data set
  int held_out() const { return options_.samples - trained_on_; }  // the last ones
  // Prints the losses of the epoch now, so that what a program prints comes after them.
  void end_epoch();
  // For programs whose ranks all go through the same samples. Calls add_loss(batch, loss) for each batch of the samples
  // held out, to add its share of their mean to *loss, and reports the sum over `ranks`. Collective.
  void validate(const Group& ranks, const std::function<void(const Batch&, float*)>& add_loss);
  // The parts of that, for programs whose ranks have different samples: calls add_loss(batch) for the batches of these.
  void go_through(const std::vector<int>& samples, const std::function<void(const Batch&)>& add_loss);
  // Prints and records the validation loss, the same on every rank, and saves the best state so far. Collective.
  void report_validation(double loss);

 private:
  const Options& options_;
  ncclComm_t comm_;
  cudaStream_t stream_;
  int trained_on_;
  RandomTensorDataset dataset_;
  RandomSampler random_;
  DistributedSampler distributed_;
  DataLoader loader_;
  LossLog losses_;
  Checkpoints checkpoints_;
  std::vector<int*> optimizer_steps_;
  double best_loss_;
  bool resumed_ = false, in_epoch_ = false, in_step_ = false;
  Progress start_;
  int epoch_ = -1, first_ = 0, last_ = 0;  // the step's batches are [first_, last_)
  float* loss_ = nullptr;
};

class Training::Batches {
 public:
  struct End {
    int batch;
  };
  class Iterator {
   public:
    Iterator(Training& training, int batch) : training_(training), batch_(batch) {}
    MicroBatch operator*() const {
      return {training_.loader_.batch(batch_), batch_ == training_.first_, batch_ + 1 == training_.last_};
    }
    void operator++() { ++batch_; }
    bool operator!=(End end) const { return batch_ != end.batch; }

   private:
    Training& training_;
    int batch_;
  };

  explicit Batches(Training& training) : training_(training) {}
  Iterator begin() const { return {training_, training_.first_}; }
  End end() const { return {training_.last_}; }

 private:
  Training& training_;
};

inline Training::Batches Training::batches() { return Batches(*this); }

}  // namespace workshop
