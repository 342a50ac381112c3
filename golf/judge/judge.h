// SPDX-License-Identifier: Apache-2.0
// What the judges of all tasks share: they call a participant's function on a simulated machine, and measure it.
//
// The function only enqueues work. It runs before its inputs exist: they are drawn, and let in, when it has returned.
// So it can neither compute on the host, which takes no time, nor know what the other ranks have, except by what it has
// sent. The order checker is on: it refuses work that nothing orders, which would not take the time that it should.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"
#include "golf/judge/operations.h"
#include "model/blas.h"

namespace golf {

inline constexpr int kCalls = 3;   // of the function, each with other inputs
inline constexpr int kOnNode = 4;  // ranks of a node
inline constexpr int kOperations =
    250;  // on one stream, in one call: its queue has 1024 places, and a kernel takes four of them

// Sets up this process for the machine. Call it first in main(), before anything reads the environment.
void simulate(const char* machine);

// One of kCalls calls.
struct Call {
  std::uint64_t seed;  // of this rank's inputs, different on each rank and in each call
  double seconds;      // on the slowest rank
};

class Judge {
 public:
  // `floats`: of the inputs; `scratch_floats`: of the memory that the function may use besides.
  Judge(const workshop::Job& job, int ranks, int floats, int scratch_floats);

  // Calls play(), which calls the function, and measures from the arrival of the inputs until the device is idle.
  // fill(seed, inputs) writes this rank's inputs; the first `shared` of them are then those of rank 0 on all ranks.
  // Ends the job if the function does what it must not. Collective.
  Call run(const std::function<void()>& play, const std::function<void(std::uint64_t, float*)>& fill, int shared = 0);

  // Returns the status of the program. Prints the result, and records it if all ranks had the right numbers.
  int finish(const std::string& task, bool right) const;

  // After the clock has stopped, and off the record: sums values over all ranks; copies an array to the host.
  std::vector<float> sum_over_ranks(const std::vector<float>& values);
  std::vector<float> download(const float* array, int count);

  // What a function gets.
  float* inputs() const { return inputs_.data(); }
  float* scratch() const { return scratch_.data(); }
  const cudaStream_t* streams() const { return handles_; }
  ncclComm_t world(int index) const { return world_[index].comm(); }  // all ranks
  const workshop::Group& node() const { return node_; }               // the ranks of this rank's node
  const workshop::Group& across() const { return across_; }           // those with the same place on their nodes
  cudaStream_t own_stream() const { return stream_; }                 // the judge's

 private:
  void refuse(const std::string& why) const;
  void meet();
  void check_communicators() const;
  void check_scratch();
  // Returns how long known operations take: what the machine can do.
  std::vector<double> speeds();
  double seconds_of(const std::function<void()>& enqueue);

  const workshop::Job& job_;
  workshop::Stream stream_{"judge"};
  std::deque<workshop::Stream> streams_;
  std::deque<workshop::Blas> blas_;  // made here, so that the function makes none
  cudaStream_t handles_[kStreams];
  workshop::Group world_[2], node_, across_;
  workshop::DeviceBuffer<float> inputs_, scratch_, number_;
  workshop::HostBuffer<float> staging_;
  std::vector<double> speeds_;
  double slowest_ = 0;
  std::size_t scratch_used_ = 0;  // bytes
};

// Prints how many elements are wrong on this rank, if any. Returns whether none is.
bool all_right(int wrong, std::size_t of, const workshop::Job& job);

}  // namespace golf
