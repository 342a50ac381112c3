// SPDX-License-Identifier: Apache-2.0
// A parameter server, rank 0, and its workers, the other ranks. A worker pulls parameters and pushes a gradient; the
// server makes an update with it.
//
// The server has one communicator, one stream and one set of buffers per worker, so that no worker waits for another. A
// message is one float longer than the model (message.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "10_less_communication/support/arrival_queue.h"
#include "10_less_communication/support/message.h"
#include "10_less_communication/support/updates.h"
#include "common/device/device.h"
#include "common/nccl/group.h"
#include "common/record/record.h"

namespace workshop {

inline constexpr int kServer = 0, kWorker = 1;  // ranks in the communicator of the server and a worker

// Makes a communicator of the server and each worker. Returns them indexed by worker; one that this rank is not in is
// empty.
inline std::vector<Group> connect_workers(const Group& world) {
  std::vector<Group> pairs(1);
  for (int worker = 1; worker < world.size(); ++worker) {
    int color = NCCL_SPLIT_NOCOLOR, key = 0;
    // TODO 10.13: Choose color and key for a communicator of rank 0, the server, and this worker; server first.
    //   ncclCommSplit makes one communicator of all ranks that pass the same color, ordered by their keys. It is a
    //   collective, so the other workers call it too, with the color NCCL_SPLIT_NOCOLOR, and get no communicator.
    //   world.rank() is this rank.
    todo("10.13");
    // END TODO 10.13
    const std::string name = "worker " + std::to_string(worker);
    Group pair = world.split(color, key, name);
    const bool member = world.rank() == 0 || world.rank() == worker;
    const std::vector<int> ranks = pair.comm() == nullptr ? std::vector<int>{} : pair.members();
    probe("10.13", {"ranks of the communicator of ", name}, ranks);
    if (ranks != (member ? std::vector<int>{0, worker} : std::vector<int>{})) {
      fail(kFailed, "the communicator of " + name + " has other ranks than the server and the worker: see TODO 10.13");
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

// ---- the server ----------------------------------------------------------------------------------------------------

// Counts the updates that each worker has made, and decides which worker may start another step (stale-synchronous
// training: Ho et al., 2013). Only numbers on the host.
class Clocks {
 public:
  // `updates` is their number in all. A worker may start a step if it is at most `bound` updates ahead of the slowest.
  Clocks(int workers, int bound, std::int64_t updates) : bound_(bound), left_(updates), workers_(workers + 1) {}

  // Starts a step of every worker that waits and may continue, while updates are left to make. Returns those workers;
  // the caller must send them the current parameters.
  std::vector<int> start() {
    std::vector<int> started;
    for (int worker = 1; worker <= count(); ++worker) {
      bool may = false;
      // TODO 10.14: Set `may` to whether this worker may start another step: is it too far ahead of the slowest one?
      //   workers_[w].updates is the number of updates made by worker w, for w = 1, 2, …, count(). This worker may have
      //   made at most bound_ more than the slowest. With a bound of 0, every worker makes its first update before any
      //   worker begins its second step.
      todo("10.14");
      // END TODO 10.14
      if (workers_[worker].computes || left_ == 0 || !may) continue;
      workers_[worker].computes = true;
      workers_[worker].version = version_;
      --left_;
      started.push_back(worker);
    }
    for (int w : started) {
      const Clock& its = workers_[w];
      probe("10.P", "worker, 1 if it computes, version of its parameters, updates left to start",
            std::array{w, static_cast<int>(its.computes), static_cast<int>(its.version), static_cast<int>(left_)});
    }
    return started;
  }

  // Counts an update with this worker's gradient, and returns it with its staleness.
  Update finish(int worker) {
    std::int64_t staleness = 0;
    Clock& its = workers_[worker];
    its.computes = false;
    // TODO 10.17: Compute the staleness of this worker's gradient; then count the update that is made with it.
    //   its.version is what version_ was when the worker got its parameters, w_{i-δ}. It has computed the gradient from
    //   those, and now w_i becomes w_{i+1}; the staleness is δ. version_ counts the updates of all workers, its.updates
    //   those of this one.
    todo("10.17");
    // END TODO 10.17
    const Clock& clock = workers_[worker];
    probe("10.Q", "1 if the worker still computes", std::array{static_cast<int>(clock.computes)});
    probe("10.17", "worker, staleness, number at the worker and number of the update",
          std::array{worker, static_cast<int>(staleness), static_cast<int>(clock.updates), static_cast<int>(version_)});
    return {worker, staleness};
  }

  bool computes(int worker) const { return workers_[worker].computes; }
  bool any_computes() const { return std::ranges::any_of(workers_, &Clock::computes); }
  int count() const { return static_cast<int>(workers_.size()) - 1; }  // number of workers

 private:
  struct Clock {
    bool computes = false;     // otherwise the worker waits
    std::int64_t updates = 0;  // made with its gradients
    std::int64_t version = 0;  // of its parameters
  };

  int bound_;
  std::int64_t left_;           // updates for which no worker has started a step yet
  std::int64_t version_ = 0;    // of the parameters: number of updates so far
  std::vector<Clock> workers_;  // indexed by rank; entry 0, the server's, is unused
};

class ParameterServer {
 public:
  // Serves values[count], which the caller updates on the stream `compute`. `order` lists the updates in the order in
  // which to make them; if it is empty, gradients are used as they arrive.
  ParameterServer(const Group& world, const Real* values, int count, const Clocks& clocks, std::vector<Update> order,
                  cudaStream_t compute)
      : values_(values),
        count_(count),
        length_(message_length(count)),
        clocks_(clocks),
        order_(std::move(order)),
        compute_(compute),
        arrivals_(clocks.count()) {
    for (Group& pair : connect_workers(world)) {
      if (pair.comm() == nullptr) continue;
      channels_.emplace_back(std::move(pair), length_);
      launch(allow, 1, compute, word_of(channels_.back().parameters.data(), count));
    }
  }

  // Sends the current parameters to all workers that wait and may continue.
  void answer() {
    answered_ = true;
    const std::vector<int> started = clocks_.start();
    probe("10.14", "workers that may start a step", started);
    probe("10.P", "given to answer: parameters", values_, {count_}, compute_);
    for (int worker : started) {
      send_parameters(worker);
      receive_gradient(worker);
    }
  }

  // Waits for the next gradient. Returns its [count] values and copies its loss to *loss, for the compute stream.
  Real* next_gradient(float* loss) {
    const Channel& channel = channels_[next_worker() - 1];
    CUDA_CHECK(cudaStreamWaitEvent(compute_, channel.arrived));
    const float* arrived = word_of(channel.gradient.data(), count_);
    CUDA_CHECK(cudaMemcpyAsync(loss, arrived, sizeof(float), cudaMemcpyDeviceToDevice, compute_));
    return channel.gradient.data();
  }

  // Tells all workers to stop. Call after the last update, when all of them wait.
  void stop() {
    for (int worker = 1; worker <= clocks_.count(); ++worker) {
      float* go_on = word_of(channels_[worker - 1].parameters.data(), count_);
      CUDA_CHECK(cudaMemsetAsync(go_on, 0, sizeof(float), compute_));
      send_parameters(worker);
    }
    for (const Channel& channel : channels_) channel.stream.synchronize();
  }

  const std::vector<Update>& updates() const { return updates_; }  // so far

 private:
  // The server's communicator, stream and buffers for one worker.
  struct Channel {
    Channel(Group pair, int length)
        : pair(std::move(pair)), parameters(length, Memory::buckets), gradient(length, Memory::buckets) {}
    Group pair;
    Stream stream{"worker"};
    DeviceBuffer<Real> parameters, gradient;
    Event copied, arrived;  // after the copy of the parameters; after the receive of the gradient
  };

  void send_parameters(int worker) {
    Channel& channel = channels_[worker - 1];
    Real* copy = channel.parameters.data();
    const ncclComm_t comm = channel.pair.comm();
    // TODO 10.15: Send the worker a copy of the parameters, with all updates so far, on channel.stream.
    //   A copy, because the next update may run while it is sent. Copy the count_ Reals of values_ to `copy` with
    //   cudaMemcpyAsync, on the stream of the updates, compute_. Let channel.stream wait for that with the event
    //   channel.copied, then send copy[length_] to kWorker: elements of type kReal, with the word at the end. The host
    //   does not wait.
    todo("10.15");
    // END TODO 10.15
    probe("10.15", "parameters for worker " + std::to_string(worker), copy, {shown_of_message(count_)}, channel.stream);
  }

  void receive_gradient(int worker) {
    Channel& channel = channels_[worker - 1];
    Real* gradient = channel.gradient.data();
    NCCL_CHECK(ncclRecv(gradient, length_, kReal, kWorker, channel.pair.comm(), channel.stream));
    probe("10.16", "gradient and loss of worker " + std::to_string(worker), gradient, {shown_of_message(count_)},
          channel.stream);
    CUDA_CHECK(cudaEventRecord(channel.arrived, channel.stream));
    arrivals_.add_after(worker, channel.stream);
  }

  // Waits for the gradient of the next update, counts the update, and returns its worker.
  int next_worker() {
    if (!clocks_.any_computes()) {
      fail(kFailed, answered_ ? "all workers wait for the server: see TODO 10.14, part of WRITE 10.P"
                              : "all workers wait for an answer() of the server: see WRITE 10.S");
    }
    answered_ = false;
    const Update expected = order_.empty() ? Update{kAnyWorker, kAnyStaleness} : order_[updates_.size()];
    if (expected.worker != kAnyWorker && !clocks_.computes(expected.worker)) {
      refuse(expected, "that worker waits for the server");
    }
    const Update update = clocks_.finish(arrivals_.take(expected.worker));
    if (expected.staleness != kAnyStaleness && update.staleness != expected.staleness) {
      refuse(expected, "its staleness is " + std::to_string(update.staleness));
    }
    updates_.push_back(update);
    return update.worker;
  }

  [[noreturn]] void refuse(const Update& expected, const std::string& why) const {
    const std::string what = "update " + std::to_string(updates_.size()) + " cannot be worker " +
                             std::to_string(expected.worker) + "'s: " + why;
    if (expected.staleness == kAnyStaleness) fail(kFailed, what + ": see TODO 10.14, part of WRITE 10.P");
    usage_error("--replay: " + what + "; expected a record of a run with the same options");
  }

  const Real* values_;
  int count_, length_;  // of the model, of a message
  Clocks clocks_;
  std::vector<Update> order_, updates_;
  bool answered_ = false;  // since the last update
  cudaStream_t compute_;
  ArrivalQueue arrivals_;
  std::deque<Channel> channels_;  // worker w's is channels_[w - 1]
};

// ---- a worker ------------------------------------------------------------------------------------------------------

class Worker {
 public:
  // For a model of `count` parameters that computes on `stream`. `world` is the group of all ranks.
  Worker(const Group& world, int count, cudaStream_t stream)
      : count_(count),
        length_(message_length(count)),
        pair_(std::move(connect_workers(world)[world.rank()])),
        stream_(stream),
        parameters_(length_, Memory::parameters),
        gradient_(length_, Memory::gradients),
        go_on_(1) {}

  Real* parameters() const { return parameters_.data(); }            // [count]
  Real* gradient() const { return gradient_.data(); }                // [count]
  float* loss() const { return word_of(gradient_.data(), count_); }  // travels with the gradient

  // Gets the current parameters from the server. Returns false if no step is left to make. The host must know that, so
  // it waits here.
  bool pull() {
    NCCL_CHECK(ncclRecv(parameters_.data(), length_, kReal, kServer, pair_.comm(), stream_));
    probe("10.15", "parameters and the word behind them", parameters_.data(), {shown_of_message(count_)}, stream_);
    const float* word = word_of(parameters_.data(), count_);
    CUDA_CHECK(cudaMemcpyAsync(go_on_.data(), word, sizeof(float), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return *go_on_.data() != 0;
  }

  // Sends the gradient and the loss to the server.
  void push() {
    probe("10.R", "given to push: gradient and loss", gradient_.data(), {shown_of_message(count_)}, stream_);
    const ncclComm_t comm = pair_.comm();
    // TODO 10.16: Send the gradient and the loss behind it to the server.
    //   ncclSend(buffer, count, kReal, peer, comm, stream): one message of length_ elements from gradient_.data() to
    //   kServer, on stream_, which has computed them.
    todo("10.16");
    // END TODO 10.16
    probe("10.16", "gradient and loss", gradient_.data(), {shown_of_message(count_)}, stream_);
  }

 private:
  int count_, length_;  // of the model, of a message
  Group pair_;
  cudaStream_t stream_;
  DeviceBuffer<Real> parameters_, gradient_;
  HostBuffer<float> go_on_;
};

}  // namespace workshop
