// SPDX-License-Identifier: Apache-2.0
// Lets the host wait for the first of several streams, without polling.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "10_less_communication/support/updates.h"
#include "common/device/device.h"

namespace workshop {

// The workers whose gradients have arrived, in the order of arrival. A host function after the receive reports each
// one, and take() sleeps until one does: polling an event per worker would keep a core busy.
class ArrivalQueue {
 public:
  explicit ArrivalQueue(int workers) {
    for (int worker = 0; worker <= workers; ++worker) notes_.push_back({this, worker});
  }
  ArrivalQueue(const ArrivalQueue&) = delete;
  ArrivalQueue& operator=(const ArrivalQueue&) = delete;

  // Adds this worker once the stream has finished its work so far.
  void add_after(int worker, cudaStream_t stream) {
    CUDA_CHECK(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          const Note& note = *static_cast<const Note*>(data);
          {
            const std::lock_guard lock(note.queue->mutex_);
            note.queue->arrived_.push_back(note.worker);
          }
          note.queue->changed_.notify_one();
        },
        &notes_[worker]));
  }

  // Waits for this worker, or for any worker if it is kAnyWorker. Removes it from the queue and returns it.
  int take(int worker) {
    std::unique_lock lock(mutex_);
    std::deque<int>::iterator found;
    changed_.wait(lock, [&] {
      found = worker == kAnyWorker ? arrived_.begin() : std::find(arrived_.begin(), arrived_.end(), worker);
      return found != arrived_.end();
    });
    const int taken = *found;
    arrived_.erase(found);
    return taken;
  }

 private:
  struct Note {
    ArrivalQueue* queue;
    int worker;
  };
  std::vector<Note> notes_;  // for the host functions, indexed by worker
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> arrived_;
};

}  // namespace workshop
