// SPDX-License-Identifier: Apache-2.0
// What a parameter server keeps count of: how many updates each worker has made, who may start another step, and how
// stale each gradient is. Only numbers on the host; what travels is in push_pull.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/record/probe.h"

namespace workshop {

// An update of the parameters: whose gradient it used, and how many other updates were made after that worker had got
// its parameters.
struct Update {
  int worker;  // 1, 2, …, as the ranks
  std::int64_t staleness;
};
inline constexpr std::int64_t kAnyStaleness = -1;  // in an order that leaves it open

class Clocks {
 public:
  // For a training of so many updates. Who starts a step is at most `bound` updates ahead of the slowest worker.
  Clocks(int workers, int bound, std::int64_t updates) : bound_(bound), left_(updates), workers_(workers + 1) {}

  // Has all workers start that wait and may go on, as long as there are updates to make; returns them, by rank. They
  // get the parameters as they are now.
  std::vector<int> start() {
    std::vector<int> started;
    for (int w = 1; w <= count(); ++w) {
      if (workers_[w].computes || left_ == 0 || !may_start(w)) continue;
      workers_[w].computes = true;
      workers_[w].version = version_;
      --left_;
      started.push_back(w);
    }
    return started;
  }

  bool computes(int worker) const { return workers_[worker].computes; }
  bool any_computes() const { return std::ranges::any_of(workers_, &Worker::computes); }

  // The next update is made with this worker's gradient.
  Update finish(int worker) {
    Worker& its = workers_[worker];
    std::int64_t staleness = 0;
    // TODO 02.24: How stale is the gradient: how many updates have been made since this worker got its parameters?
    //   version_ counts the updates of all workers so far, without this one; its.version was version_ when the worker
    //   got its parameters, w_{t-τ}, from which it has computed the gradient that makes w_t become w_{t+1}.
    todo("02.24");
    // END TODO 02.24
    its.computes = false;
    ++its.updates;
    ++version_;
    return {worker, staleness};
  }

  int count() const { return static_cast<int>(workers_.size()) - 1; }
  std::int64_t version() const { return version_; }  // updates so far

 private:
  struct Worker {
    bool computes = false;     // else it waits
    std::int64_t updates = 0;  // that it has made: its clock
    std::int64_t version = 0;  // of its parameters
  };

  bool may_start(int worker) const {
    const std::int64_t own = workers_[worker].updates;
    std::int64_t slowest = own;
    for (int w = 1; w <= count(); ++w) slowest = std::min(slowest, workers_[w].updates);
    bool may = false;
    // TODO 02.23: May this worker start another step, or is it too far ahead of the slowest?
    //   It has made `own` updates and the slowest worker `slowest`; at most bound_ more are allowed (Ho et al., 2013).
    //   With a bound of 0 all workers make their first update before one begins its second step.
    todo("02.23");
    // END TODO 02.23
    return may;
  }

  int bound_;
  std::int64_t left_;  // updates that no worker has started on yet
  std::int64_t version_ = 0;
  std::vector<Worker> workers_;  // by rank; the first is none
};

}  // namespace workshop
