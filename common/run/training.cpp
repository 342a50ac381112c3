// SPDX-License-Identifier: Apache-2.0
#include "common/training.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/checkpoint/checkpoints.h"
#include "common/data/dataset.h"

namespace workshop {

struct Training::State {
  State(const Options& options, const Job& job, ReplicaPlace place, int input_size, int output_size,
        cudaStream_t stream)
      : options(options),
        comm(job.comm()),
        stream(stream),
        trained_on(options.samples - options.validation_samples),
        dataset(options.samples, input_size, output_size, options.seed),
        random(trained_on, options.shuffle, dataset.generator),
        distributed(trained_on, place.replicas, place.replica, options.shuffle),
        loader(dataset, options.batch_size, stream),
        losses(options, place.reports ? place.replica : -1, place.replicas, stream),
        checkpoints(options, place.replicas, job.comm(), stream) {}

  const Options& options;
  ncclComm_t comm;
  cudaStream_t stream;
  int trained_on;
  RandomTensorDataset dataset;
  RandomSampler random;
  DistributedSampler distributed;
  DataLoader loader;
  LossLog losses;
  Checkpoints checkpoints;
  std::vector<int*> optimizer_steps;
  double best_loss = std::numeric_limits<double>::max();
  bool resumed = false, in_epoch = false, in_step = false;
  Progress start;
  int epoch = -1, first = 0, last = 0;  // the step's batches are [first, last)
  int next = 0;                         // of them
  float* loss = nullptr;
};

Training::Training(const Options& options, const Job& job, ReplicaPlace place, int input_size, int output_size,
                   cudaStream_t stream)
    : state_(std::make_unique<State>(options, job, place, input_size, output_size, stream)) {
  if (options.sampling() == Sampling::data_loader) state_->checkpoints.add(state_->random);
  if (options.validates()) state_->checkpoints.add("best validation loss", state_->best_loss);
}

Training::~Training() = default;

Batch Training::batch() { return state_->loader.batch(state_->first); }
int Training::samples() const { return state_->loader.samples(state_->first, state_->last); }
float* Training::loss() const { return state_->loss; }
LossLog& Training::losses() { return state_->losses; }
ncclComm_t Training::comm() const { return state_->comm; }
int Training::trained_on() const { return state_->trained_on; }
int Training::held_out() const { return state_->options.samples - state_->trained_on; }

bool Training::next_batch(MicroBatch& batch) {
  State& state = *state_;
  if (state.next == state.last) return false;
  batch = {state.loader.batch(state.next), state.next == state.first, state.next + 1 == state.last};
  ++state.next;
  return true;
}

void Training::add(const std::vector<TensorPart>& parts) { state_->checkpoints.add(parts); }

void Training::add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
  state_->checkpoints.add_adamw(parts, values, state.first_moment, state.second_moment);
  state_->optimizer_steps.push_back(state.steps);
}

void Training::resume() {
  state_->start = state_->checkpoints.resume(state_->losses);
  for (int* steps : state_->optimizer_steps) *steps = state_->start.step;
  state_->epoch = state_->start.epoch - 1;
  state_->resumed = true;
}

Batch Training::first_samples() {
  if (!state_->resumed) resume();
  std::vector<int> in_order(state_->trained_on);
  std::iota(in_order.begin(), in_order.end(), 0);
  state_->loader.start_epoch(in_order);
  return state_->loader.batch(0);
}

bool Training::next_epoch() {
  if (!state_->resumed) resume();
  end_epoch();
  ++state_->epoch;
  if (state_->epoch >= state_->options.epochs || state_->losses.finished()) {
    state_->checkpoints.finish();
    return false;
  }
  state_->distributed.set_epoch(state_->epoch);  // else every epoch would have the same order
  const bool distributed = state_->options.sampling() == Sampling::distributed;
  state_->loader.start_epoch(distributed ? state_->distributed.indices() : state_->random.next_epoch());
  state_->last = state_->start.first_batch(state_->epoch);
  return state_->in_epoch = true;
}

bool Training::next_step() {
  if (state_->in_step) state_->checkpoints.step_done(state_->epoch, state_->last, state_->loader);
  state_->in_step = state_->last < state_->loader.steps() && !state_->losses.finished();
  if (!state_->in_step) return false;
  state_->loss = state_->losses.next(state_->stream);
  state_->first = state_->next = state_->last;
  state_->last = std::min(state_->first + state_->options.accumulation_steps, state_->loader.steps());
  return true;
}

void Training::end_epoch() {
  if (state_->in_epoch) state_->losses.end_epoch(state_->epoch, state_->stream);
  state_->in_epoch = false;
}

void Training::validate(const std::vector<int>& samples, const AddLoss& add_loss,
                        const std::function<void(float*)>& sum) {
  State& state = *state_;
  end_epoch();  // whose losses are printed first
  const Range range("validate", state.stream);
  DeviceBuffer<float> device_loss(1, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(device_loss.data(), 0, device_loss.bytes(), state.stream));
  state.loader.start_epoch(samples);
  for (int i = 0; i < state.loader.steps(); ++i) add_loss(state.loader.batch(i), device_loss.data());
  sum(device_loss.data());

  const double loss = device_loss.download(state.stream)[0];
  const bool better = loss < state.best_loss;
  if (better) state.best_loss = loss;
  print0("epoch %3d  validation loss %.6f%s\n", state.epoch, loss, better ? ", the best so far" : "");
  if (process_ranks().rank == 0) record_value("validation loss of epoch " + std::to_string(state.epoch), loss);
  if (better) state.checkpoints.save("best-");
}

void Training::validate(const Group& ranks, const AddLoss& add_loss) {
  if (held_out() == 0) return;
  std::vector<int> samples(held_out());
  std::iota(samples.begin(), samples.end(), trained_on());
  validate(samples, add_loss, [&](float* loss) {
    if (ranks.size() == 1) return;
    NCCL_CHECK(ncclAllReduce(loss, loss, 1, ncclFloat, ncclSum, ranks.comm(), state_->stream));
  });
}

}  // namespace workshop
