// SPDX-License-Identifier: Apache-2.0
#include "common/record/loss_log.h"

#include <functional>

#include "common/base/print.h"
#include "common/device/device.h"
#include "common/options/options.h"
#include "common/record/record.h"
#include "common/record/recorder.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {
namespace {

// Adds the cpu backend's counters so far (allocations, synchronizations, events) to the record, or subtracts them if
// `sign` is -1. So a call with -1 before the steps of an epoch and one with +1 after them count these steps.
void count_host([[maybe_unused]] int sign) {
#ifdef WORKSHOP_BACKEND_CPU
  const auto counters = cpu::counters();
  recorder().allocations += sign * static_cast<long>(counters.allocations);
  recorder().synchronizations += sign * static_cast<long>(counters.synchronizations);
  recorder().events += sign * static_cast<long>(counters.events);
#endif
}

}  // namespace

struct LossLog::Impl {
  int replica, replicas, log_every, max_steps;
  DeviceBuffer<float> losses, global_losses, gradient_norms, auxiliary;
  bool has_auxiliary = false;
  int first_step = 0;  // of this epoch
  int count = 0;       // steps of this epoch so far

  // Times each epoch. In the first one, leaves out the probed steps if there are other steps.
  Event start{cudaEventDefault}, stop{cudaEventDefault};
  int timed_from = 0;
  int timed_steps = 0;
  double seconds = 0, last = 0;
};

LossLog::LossLog(const Options& options, int samples, int replica, int replicas, cudaStream_t stream)
    : impl_(std::make_shared<Impl>()) {
  Impl& log = *impl_;
  log.replica = replica;
  log.replicas = replicas;
  log.log_every = options.log_every;
  log.max_steps = options.max_steps;
  const int of_replica = (samples + replicas - 1) / replicas;
  const int steps = (of_replica + options.batch_size - 1) / options.batch_size;
  log.losses = DeviceBuffer<float>(steps, Memory::data);
  log.global_losses = DeviceBuffer<float>(steps, Memory::data);
  log.gradient_norms = DeviceBuffer<float>(options.needs_norm() ? steps : 0, Memory::data);
  log.auxiliary = DeviceBuffer<float>(options.gpt.experts > 0 ? steps : 0, Memory::data);
  clear(stream);
}

// Sets the sums to zero, because steps add to them.
void LossLog::clear(cudaStream_t stream) {
  for (const DeviceBuffer<float>& sums :
       {std::cref(impl_->losses), std::cref(impl_->gradient_norms), std::cref(impl_->auxiliary)}) {
    if (sums.size() > 0) CUDA_CHECK(cudaMemsetAsync(sums.data(), 0, sums.bytes(), stream));
  }
}

void LossLog::start_at(int step) { impl_->first_step = recorder().steps_done = step; }

float* LossLog::next(cudaStream_t stream) {
  Impl& log = *impl_;
  const int step = log.first_step + log.count;
  recorder().step = step;
  mark_step(step, stream);
  if (log.count == 0) count_host(-1);
  if (log.count == 0 || step == kProbedSteps) {
    CUDA_CHECK(cudaEventRecord(log.start, stream));
    log.timed_from = step;
  }
  return log.losses.data() + log.count++;
}

float* LossLog::losses() const { return impl_->losses.data(); }
float* LossLog::global_losses() const { return impl_->global_losses.data(); }
float* LossLog::gradient_norm() const {
  return impl_->gradient_norms.size() > 0 ? impl_->gradient_norms.data() + impl_->count - 1 : nullptr;
}
float* LossLog::auxiliary() {
  impl_->has_auxiliary = impl_->auxiliary.size() > 0;
  return impl_->has_auxiliary ? impl_->auxiliary.data() + impl_->count - 1 : nullptr;
}
double LossLog::seconds_per_step() const { return impl_->timed_steps > 0 ? impl_->seconds / impl_->timed_steps : 0; }
double LossLog::last() const { return impl_->last; }
int LossLog::count() const { return impl_->count; }
bool LossLog::finished() const { return impl_->max_steps > 0 && impl_->first_step + impl_->count >= impl_->max_steps; }

void LossLog::end_epoch(int epoch, cudaStream_t stream) {
  Impl& log = *impl_;
  if (log.count == 0) return;  // a signal has stopped the training before the epoch's first step
  count_host(+1);
  mark_step(-1, stream);
  note_memory_on_device();
  CUDA_CHECK(cudaEventRecord(log.stop, stream));
  const std::vector<float> losses = log.losses.download(log.count, stream);
  const std::vector<float> global = log.replicas == 1 ? losses : log.global_losses.download(log.count, stream);
  const std::vector<float> norms = log.gradient_norms.download(log.gradient_norms.size() > 0 ? log.count : 0, stream);
  const std::vector<float> auxiliary = log.auxiliary.download(log.has_auxiliary ? log.count : 0, stream);
  const auto of_step = [](const std::vector<float>& values, int i) { return values.empty() ? nullptr : &values[i]; };
  for (int i = 0; i < log.count; ++i) {
    const int step = log.first_step + i;
    if (log.replica >= 0) {
      record_loss(log.replica, step, epoch, losses[i], global[i], of_step(norms, i), of_step(auxiliary, i));
    }
    const bool shown = log.log_every > 0 && (step + 1) % log.log_every == 0;
    if (shown || i + 1 == log.count) print0("epoch %3d  step %5d  loss %.6f\n", epoch, step + 1, global[i]);
  }
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, log.start, log.stop));
  log.last = global[log.count - 1];
  log.first_step += log.count;
  log.count = 0;
  recorder().steps_done = log.first_step;
  log.seconds += milliseconds / 1e3;
  log.timed_steps += log.first_step - log.timed_from;
  recorder().seconds_per_step = seconds_per_step();
  clear(stream);
}

}  // namespace workshop
