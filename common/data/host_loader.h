// SPDX-License-Identifier: Apache-2.0
// A loader for data that does not fit on the device, or needs work on the host first: threads of the host prepare the
// coming batches in pinned memory, and a stream of its own copies them to the device while it computes.
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

// Batches of images: x is float [samples, 3, size, size], y int32 [samples]. Which images they are, and what they look
// like, does not depend on the number of workers. Nothing is allocated after the constructor, but for the indices of an
// epoch.
//
// A batch goes through one of a few slots, in turns. A slot has a buffer in pinned memory, which the workers may fill
// again when it has been copied, and one on the device, which may be overwritten when the work that reads it is done:
//
//   workers   prepare 0 | prepare 1 | prepare 2 | prepare 3 …
//   copies              | copy 0    | copy 1    | copy 2    | copy 3: waits for the end of step 0 …
//   compute                         | step 0    | step 1    | step 2 …
//
// Workers make no calls of CUDA's. In batch() the host waits where they have not prepared it yet, and for nothing else.
class HostLoader : public Loader {
 public:
  // `workers`: threads; 0: batch() prepares its images itself. `stream`: where the batches are used. Without `needs_x`
  // a batch has y alone.
  HostLoader(std::shared_ptr<const ImageDataset> images, int batch_size, int workers, cudaStream_t stream,
             bool needs_x = true);
  ~HostLoader() override;
  HostLoader(const HostLoader&) = delete;
  HostLoader& operator=(const HostLoader&) = delete;

  // Waits for the stream.
  void start_epoch(const std::vector<int>& indices) override;
  // In order: any other step than the one after the last has to be prepared first.
  Batch batch(int step) override;

  // How long the stream has had nothing to do since the loader was made because a batch was asked for and not there,
  // but for the first of each epoch. Waits for the stream.
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
  // A stretch of the stream in which it may have had to wait for a batch.
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
  const int sample_;  // floats of an image
  cudaStream_t stream_;
  Stream copies_{"copies of the loader"};
  std::array<Slot, kSlots> slots_;
  std::vector<int> indices_;

  // Batches are counted on from epoch to epoch: the epoch's step i is batch base_ + i.
  int base_ = 0;
  int copied_ = 0;       // batches whose copies are enqueued
  int handed_out_ = -1;  // the batch that is in use, if any

  // By batch. When one is used again, the stream is past it: no batch is prepared before that of two rounds of the
  // slots earlier has been used.
  std::array<Wait, 3 * kSlots> waits_;
  double milliseconds_waited_ = 0;

  std::mutex mutex_;  // of what follows, the slots' `prepared`, and with no worker busy of base_ and indices_
  std::condition_variable work_, done_;
  Place next_{0, 0};  // what is to be prepared next
  int end_ = 0;       // of the epoch's batches
  int freed_ = 0;     // batches whose copies are done
  int busy_ = 0;      // workers
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace workshop
