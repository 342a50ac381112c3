// SPDX-License-Identifier: Apache-2.0
// Measures the share of its time for which a rank is idle. It reads its events at the end, so no step waits for the
// clock. The timeline shows the idle time as spans called "idle".
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "common/device/device.h"
#include "common/record/record.h"

namespace workshop {

class IdleClock {
 public:
  // The first `warm_up` steps do not count, because NCCL connects the ranks in them, unless there are no other steps.
  IdleClock(cudaStream_t stream, int warm_up) : stream_(stream), warm_up_(warm_up) {}

  // Begins a step.
  void next_step() {
    if (steps_ == 0 || steps_ == warm_up_) {
      begins_.clear();
      used_ = 0;
      counting_ = true;
    }
    if (steps_ == warm_up_ + kSteps) stop();
    if (counting_) begins_.push_back(mark());
    if (counting_ && !idle_) idle_.emplace("idle", stream_);
    ++steps_;
    computations_ = 0;
  }

  // Counts everything that `enqueue` puts on the stream as computing.
  template <typename Enqueue>
  void compute(const Enqueue& enqueue) {
    idle_.reset();
    if (counting_) mark();
    ++computations_;
    ++computing_;
    enqueue();
    --computing_;
    if (counting_) mark();
    if (counting_) idle_.emplace("idle", stream_);
  }

  // For the checker: how many steps have begun, and whether the last one is measured; whether compute() is running, and
  // how often it was called in this step.
  std::array<int, 2> steps() const { return {steps_, int{counting_}}; }
  bool is_computing() const { return computing_ > 0; }
  int computations() const { return computations_; }

  // Ends the measurement on the stream, for example at the end of an epoch, where the host waits anyway. If all steps
  // so far were warm-up, the measurement starts again after them.
  void stop() {
    if (counting_) begins_.push_back(mark());
    counting_ = false;
    idle_.reset();
  }

  // Returns the idle share of the rank's time, between 0 and 1: the median over the steps, so that a step during which
  // the machine was busy with something else does not count. Returns 0 if there was no step. Waits for the stream.
  double idle_share() const {
    if (begins_.size() < 2) return 0;
    CUDA_CHECK(cudaEventSynchronize(marks_[begins_.back()]));
    std::vector<double> shares;
    for (std::size_t step = 0; step + 1 < begins_.size(); ++step) {
      const std::size_t begin = begins_[step], end = begins_[step + 1];
      double busy = 0;
      for (std::size_t i = begin + 1; i < end; i += 2) busy += milliseconds(i, i + 1);
      shares.push_back(1 - busy / milliseconds(begin, end));
    }
    const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
    std::nth_element(shares.begin(), middle, shares.end());
    return *middle;
  }

 private:
  static constexpr int kSteps = 16;  // the most steps that are measured

  std::size_t mark() {
    if (used_ == marks_.size()) marks_.emplace_back(cudaEventDefault);
    CUDA_CHECK(cudaEventRecord(marks_[used_], stream_));
    return used_++;
  }

  double milliseconds(std::size_t from, std::size_t to) const {
    float time = 0;
    CUDA_CHECK(cudaEventElapsedTime(&time, marks_[from], marks_[to]));
    return time;
  }

  cudaStream_t stream_;
  int warm_up_;
  int steps_ = 0;
  bool counting_ = false;
  int computing_ = 0, computations_ = 0;
  std::vector<Event> marks_;         // per step: its begin, then the begin and the end of each computation
  std::vector<std::size_t> begins_;  // indices in marks_ where the steps begin and the last one ends
  std::size_t used_ = 0;             // marks so far
  std::optional<Range> idle_;
};

}  // namespace workshop
