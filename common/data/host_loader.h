// SPDX-License-Identifier: Apache-2.0
// A loader for data that does not fit on the device, or that needs work on the host first. Host threads prepare the
// next batches in pinned memory, and a separate stream copies them to the device while it computes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/data/dataset.h"
#include "common/data/image_transform.h"
#include "common/data/images.h"
#include "common/device/device.h"

namespace workshop {

// Batches of images: x is float [samples, 3, size, size], y is int32 [samples]. The batches do not depend on the number
// of workers. Only the indices of an epoch are allocated after construction.
//
// Batch i uses slot i % kSlots. A slot has a buffer in pinned memory, which the workers may fill again after it has
// been copied, and a buffer on the device, which may be overwritten after the work that reads it is done:
//
//   workers   prepare 0 | prepare 1 | prepare 2 | prepare 3 …
//   copies              | copy 0    | copy 1    | copy 2    | copy 3: waits for the end of step 0 …
//   compute                         | step 0    | step 1    | step 2 …
//
// Workers make no CUDA calls. In batch(), the host waits only if the workers have not prepared that batch yet.
class HostLoader : public Loader {
 public:
  // `workers`: number of threads; 0: batch() prepares its images itself. `stream`: where the batches are used. Without
  // `needs_x`, a batch has only y.
  HostLoader(std::shared_ptr<const ImageDataset> images, int batch_size, int workers, cudaStream_t stream,
             bool needs_x = true);
  ~HostLoader() override;
  HostLoader(const HostLoader&) = delete;
  HostLoader& operator=(const HostLoader&) = delete;

  // Waits for the stream.
  void start_epoch(const std::vector<int>& indices) override;
  // Ask for the steps in order. For any other step than the last one or the next one, this call drops the prepared
  // batches and waits until the requested one is prepared.
  Batch batch(int step) override;

  // Returns how long the stream has been idle, since construction, because a requested batch was not there. The first
  // batch of each epoch does not count. Waits for the stream.
  double seconds_waited() override;

 private:
  static constexpr int kSlots = 3;
  struct Slot {
    HostBuffer<float> x;
    HostBuffer<std::int32_t> y;
    DeviceBuffer<float> device_x;
    DeviceBuffer<std::int32_t> device_y;
    Event copied, used;
    int prepared = 0;  // images
  };
  // A stretch of the stream that may contain a wait for a batch.
  struct Wait {
    Event from{cudaEventDefault}, to{cudaEventDefault};
    bool under_way = false;
  };
  struct Place {
    int batch, image;
  };

  int batch_samples(int batch) const { return samples(batch - base_, batch - base_ + 1); }
  Slot& slot(int batch) { return slots_[batch % kSlots]; }
  bool is_prepared(int batch) { return slot(batch).prepared == batch_samples(batch); }
  bool has_work() const { return next_.batch < end_ && next_.batch < freed_ + kSlots; }
  void drain();
  void restart(int step);
  void copy_prepared();
  void free_slot();
  void wait_until_prepared(int batch, std::unique_lock<std::mutex>& lock);
  void prepare_one(std::unique_lock<std::mutex>& lock);
  void work();
  void finish(Wait& wait);

  const std::shared_ptr<const ImageDataset> images_;
  const ImageTransform transform_;
  const int sample_;  // floats per image
  cudaStream_t stream_;
  Stream copies_{"copies of the loader"};
  std::array<Slot, kSlots> slots_;
  std::vector<int> indices_;

  // The count of batches continues from epoch to epoch: step i of the epoch is batch base_ + i.
  int base_ = 0;
  int copied_ = 0;       // batches whose copies are enqueued
  int handed_out_ = -1;  // the batch in use; -1: none

  // Indexed by batch, modulo the size. When an entry is reused, the stream has passed it: batch i is prepared only
  // after the work that uses batch i - 2 * kSlots is done.
  std::array<Wait, 3 * kSlots> waits_;
  double milliseconds_waited_ = 0;

  std::mutex mutex_;  // guards what follows and Slot::prepared; base_ and indices_ change only while no worker is busy
  std::condition_variable work_, done_;
  Place next_{0, 0};  // the next image to prepare
  int end_ = 0;       // end of the epoch's batches
  int freed_ = 0;     // batches whose copies are done
  int busy_ = 0;      // workers that prepare an image
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace workshop
