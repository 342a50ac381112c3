// SPDX-License-Identifier: Apache-2.0
// Which of several streams has got somewhere first, for a host that has other things to do than to ask.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "common/device.h"

namespace workshop {

// The workers whose gradients are there, first come first. A stream says so itself, by a host function behind its
// receive, and who waits for it sleeps: to ask an event for each worker again and again would keep a core busy.
class Arrivals {
 public:
  explicit Arrivals(int workers) {
    for (int worker = 0; worker <= workers; ++worker) notes_.push_back({this, worker});
  }
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // Notes this worker once the stream has got here.
  void note(int worker, cudaStream_t stream) {
    CUDA_CHECK(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          const Note& note = *static_cast<const Note*>(data);
          {
            const std::lock_guard lock(note.arrivals->mutex_);
            note.arrivals->arrived_.push_back(note.worker);
          }
          note.arrivals->changed_.notify_one();
        },
        &notes_[worker]));
  }

  // Waits for this worker's, or where that is 0 for any, and takes it.
  int take(int worker) {
    std::unique_lock lock(mutex_);
    std::deque<int>::iterator found;
    changed_.wait(lock, [&] {
      found = worker == 0 ? arrived_.begin() : std::find(arrived_.begin(), arrived_.end(), worker);
      return found != arrived_.end();
    });
    const int taken = *found;
    arrived_.erase(found);
    return taken;
  }

 private:
  struct Note {
    Arrivals* arrivals;
    int worker;
  };
  std::vector<Note> notes_;  // by worker, for the host functions
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> arrived_;
};

}  // namespace workshop
