// SPDX-License-Identifier: Apache-2.0
#include "common/data/host_loader.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {

HostLoader::HostLoader(std::shared_ptr<const ImageDataset> images, int batch_size, int workers, cudaStream_t stream,
                       bool needs_x)
    : Loader(std::min(batch_size, images->samples())),
      images_(std::move(images)),
      transform_(images_->size),
      sample_(needs_x ? 3 * images_->size * images_->size : 0),
      stream_(stream) {
#ifdef WORKSHOP_BACKEND_CPU
  // Calls in this file do not count as the program's: how many copies batch() enqueues depends on time.
  cpu::looks_after_program("/common/data/host_loader");
#endif
  const std::size_t samples = batch_size_, floats = samples * sample_;
  for (Slot& slot : slots_) {  // first on the device, so that a size that does not fit there cannot fill the host
    slot.device_x = DeviceBuffer<float>(floats, Memory::data);
    slot.device_y = DeviceBuffer<std::int32_t>(samples, Memory::data);
  }
  for (Slot& slot : slots_) {
    slot.x = HostBuffer<float>(floats);
    slot.y = HostBuffer<std::int32_t>(samples);
  }
  indices_.reserve(images_->samples());
  for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { work(); });
}

HostLoader::~HostLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  cudaStreamSynchronize(copies_);  // its host functions use this object
  cudaStreamSynchronize(stream_);
}

void HostLoader::start_epoch(const std::vector<int>& indices) {
  if (indices.size() > static_cast<std::size_t>(images_->samples())) {
    throw std::invalid_argument("an epoch of " + std::to_string(indices.size()) + " samples from a data set of only " +
                                std::to_string(images_->samples()));
  }
  drain();
  indices_ = indices;
  count_ = static_cast<int>(indices.size());
  handed_out_ = -1;
  restart(0);
}

// Waits for the stream and for the workers, and keeps the workers from starting anything.
void HostLoader::drain() {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  std::unique_lock lock(mutex_);
  end_ = 0;
  done_.wait(lock, [&] { return busy_ == 0; });
}

// Makes the workers prepare the epoch's batches from this step on. Drops batches that are prepared but not copied.
void HostLoader::restart(int step) {
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) slot.prepared = 0;
  base_ = copied_ - step;
  next_ = {copied_, 0};
  end_ = base_ + steps();
  work_.notify_all();
}

Batch HostLoader::batch(int step) {
  const bool first = handed_out_ < 0;
  if (first || step != handed_out_ - base_) {
    // By now, everything that uses the previous batch is enqueued.
    if (!first) CUDA_CHECK(cudaEventRecord(slot(handed_out_).used, stream_));
    if (step != (first ? 0 : handed_out_ - base_ + 1)) {
      drain();
      restart(step);
    }
    handed_out_ = base_ + step;
    Wait& wait = waits_[handed_out_ % waits_.size()];
    finish(wait);
    CUDA_CHECK(cudaEventRecord(wait.from, stream_));
    copy_prepared();
    CUDA_CHECK(cudaStreamWaitEvent(stream_, slot(handed_out_).copied));
    CUDA_CHECK(cudaEventRecord(wait.to, stream_));
    wait.under_way = !first;
  }
  const Slot& of = slot(handed_out_);
  return {of.device_x.data(), of.device_y.data(), batch_samples(handed_out_), sample_ * sizeof(float),
          sizeof(std::int32_t)};
}

// Enqueues the copies of the batch that is handed out and of the prepared batches after it. Stops at a batch whose slot
// still holds the batch that is handed out, because the caller has yet to enqueue work that uses that one.
void HostLoader::copy_prepared() {
  std::unique_lock lock(mutex_);
  while (copied_ < std::min(end_, handed_out_ + kSlots)) {
    Slot& of = slot(copied_);
    if (copied_ == handed_out_) wait_until_prepared(copied_, lock);
    if (!is_prepared(copied_)) return;
    of.prepared = 0;
    lock.unlock();
    const int samples = batch_samples(copied_++);
    CUDA_CHECK(cudaStreamWaitEvent(copies_, of.used));
    const auto copy = [&](void* to, const void* from, std::size_t bytes) {
      if (bytes == 0) return;
      CUDA_CHECK(cudaMemcpyAsync(to, from, samples * bytes, cudaMemcpyHostToDevice, copies_));
    };
    copy(of.device_x.data(), of.x.data(), sample_ * sizeof(float));
    copy(of.device_y.data(), of.y.data(), sizeof(std::int32_t));
    CUDA_CHECK(cudaEventRecord(of.copied, copies_));
    CUDA_CHECK(cudaLaunchHostFunc(
        copies_, [](void* loader) { static_cast<HostLoader*>(loader)->free_slot(); }, this));
    lock.lock();
  }
}

void HostLoader::free_slot() {
  const std::lock_guard lock(mutex_);
  ++freed_;
  work_.notify_all();
  done_.notify_all();
}

void HostLoader::wait_until_prepared(int batch, std::unique_lock<std::mutex>& lock) {
  while (!is_prepared(batch)) {
    if (workers_.empty() && has_work()) {
      prepare_one(lock);
    } else {
      done_.wait(lock);
    }
  }
}

// Prepares the next image. Releases the lock while it does.
void HostLoader::prepare_one(std::unique_lock<std::mutex>& lock) {
  const auto [batch, image] = next_;
  next_ = image + 1 < batch_samples(batch) ? Place{batch, image + 1} : Place{batch + 1, 0};
  const int sample = indices_[(batch - base_) * batch_size_ + image];
  Slot& to = slot(batch);
  ++busy_;
  lock.unlock();
  if (sample_ > 0) transform_(images_->pixels(sample), to.x.data() + image * sample_);
  to.y.data()[image] = images_->label(sample);
  lock.lock();
  --busy_;
  ++to.prepared;
  if (busy_ == 0 || is_prepared(batch)) done_.notify_all();
}

void HostLoader::work() {
  for (std::unique_lock lock(mutex_);;) {
    work_.wait(lock, [&] { return stop_ || has_work(); });
    if (stop_) return;
    prepare_one(lock);
  }
}

double HostLoader::seconds_waited() {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (Wait& wait : waits_) finish(wait);
  return milliseconds_waited_ / 1e3;
}

// Adds a finished stretch to the total. The stream must have reached its end.
void HostLoader::finish(Wait& wait) {
  if (!std::exchange(wait.under_way, false)) return;
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, wait.from, wait.to));
  milliseconds_waited_ += milliseconds;
}

}  // namespace workshop
