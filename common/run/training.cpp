#include "common/training.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace workshop {

Training::Training(const Options& options, const Job& job, ReplicaPlace place, int input_size, int output_size,
                   cudaStream_t stream)
    : options_(options),
      comm_(job.comm()),
      stream_(stream),
      trained_on_(options.samples - options.validation_samples),
      dataset_(options.samples, input_size, output_size, options.seed),
      random_(trained_on_, options.shuffle, dataset_.generator),
      distributed_(trained_on_, place.replicas, place.replica, options.shuffle),
      loader_(dataset_, options.batch_size, stream),
      losses_(options, place.reports ? place.replica : -1, place.replicas, stream),
      checkpoints_(options, place.replicas, job.comm(), stream),
      best_loss_(std::numeric_limits<double>::max()) {
  if (options.sampling() == Sampling::data_loader) checkpoints_.add(random_);
  if (options.validates()) checkpoints_.add("best validation loss", best_loss_);
}

void Training::add(const std::vector<TensorPart>& parts, const float* values, const OptimizerState& state) {
  checkpoints_.add_adamw(parts, values, state.first_moment, state.second_moment);
  optimizer_steps_.push_back(state.steps);
}

void Training::resume() {
  start_ = checkpoints_.resume(losses_);
  for (int* steps : optimizer_steps_) *steps = start_.step;
  epoch_ = start_.epoch - 1;
  resumed_ = true;
}

Batch Training::first_samples() {
  if (!resumed_) resume();
  std::vector<int> in_order(trained_on_);
  std::iota(in_order.begin(), in_order.end(), 0);
  loader_.start_epoch(in_order);
  return loader_.batch(0);
}

bool Training::next_epoch() {
  if (!resumed_) resume();
  end_epoch();
  ++epoch_;
  if (epoch_ >= options_.epochs || losses_.finished()) {
    checkpoints_.finish();
    return false;
  }
  distributed_.set_epoch(epoch_);  // else every epoch would have the same order
  const bool distributed = options_.sampling() == Sampling::distributed;
  loader_.start_epoch(distributed ? distributed_.indices() : random_.next_epoch());
  last_ = start_.first_batch(epoch_);
  return in_epoch_ = true;
}

bool Training::next_step() {
  if (in_step_) checkpoints_.step_done(epoch_, last_, loader_);
  in_step_ = last_ < loader_.steps() && !losses_.finished();
  if (!in_step_) return false;
  loss_ = losses_.next(stream_);
  first_ = last_;
  last_ = std::min(first_ + options_.accumulation_steps, loader_.steps());
  return true;
}

void Training::end_epoch() {
  if (in_epoch_) losses_.end_epoch(epoch_, stream_);
  in_epoch_ = false;
}

void Training::validate(const Group& ranks, const std::function<void(const Batch&, float*)>& add_loss) {
  if (held_out() == 0) return;
  end_epoch();
  const Range range("validate", stream_);
  std::vector<int> samples(held_out());
  std::iota(samples.begin(), samples.end(), trained_on_);
  DeviceBuffer<float> loss(1, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, loss.bytes(), stream_));
  go_through(samples, [&](const Batch& batch) { add_loss(batch, loss.data()); });
  if (ranks.size() > 1) {
    NCCL_CHECK(ncclAllReduce(loss.data(), loss.data(), 1, ncclFloat, ncclSum, ranks.comm(), stream_));
  }
  report_validation(loss.download(stream_)[0]);
}

void Training::go_through(const std::vector<int>& samples, const std::function<void(const Batch&)>& add_loss) {
  loader_.start_epoch(samples);
  for (int i = 0; i < loader_.steps(); ++i) add_loss(loader_.batch(i));
}

void Training::report_validation(double loss) {
  const bool better = loss < best_loss_;
  if (better) best_loss_ = loss;
  print0("epoch %3d  validation loss %.6f%s\n", epoch_, loss, better ? ", the best so far" : "");
  if (process_ranks().rank == 0) record_value("validation loss of epoch " + std::to_string(epoch_), loss);
  if (better) checkpoints_.save("best-");
}

}  // namespace workshop
