// SPDX-License-Identifier: Apache-2.0
// What travels between a parameter server, rank 0, and its workers, the other ranks: parameters one way, which a worker
// pulls, and gradients the other, which it pushes.
//
// The server has a communicator with each worker, and for each a stream and buffers: no worker waits for another. Every
// message has one float more than the model. Behind the parameters comes a word that says whether to go on; behind a
// gradient, the loss of its batch. With mixed precision it is a float as well, at the next place where one may lie.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/precision.h"
#include "arrivals.h"
#include "clocks.h"
#include "common/device.h"
#include "common/group.h"
#include "common/record.h"

namespace workshop {

inline constexpr int kServer = 0, kWorker = 1;  // ranks in the communicator of a worker and the server

// Where a message has its float behind `count` Reals, how many Reals it has in all, and how many of them a probe can
// show: a float is none where Reals are not.
inline int place_of_word(int count) { return (count + reals_spanning(1) - 1) / reals_spanning(1) * reals_spanning(1); }
inline int message_length(int count) { return place_of_word(count) + reals_spanning(1); }
inline int shown_of_message(int count) { return kMixedPrecision ? count : count + 1; }
inline float* word_of(Real* message, int count) {
  return static_cast<float*>(static_cast<void*>(message + place_of_word(count)));
}

// A communicator for each worker, which has the server, too. By worker; empty where this rank is in none.
inline std::vector<Group> connect_workers(const Group& world) {
  std::vector<Group> pairs(1);
  for (int worker = 1; worker < world.size(); ++worker) {
    int color = NCCL_SPLIT_NOCOLOR, key = 0;
    // TODO 02.20: Make a communicator of rank 0, the server, and this worker; the server is to be the first in it.
    //   ncclCommSplit makes one of all ranks that give the same color, in the order of their keys. It is a collective,
    //   so the other workers call it too: what they give is NCCL_SPLIT_NOCOLOR, and they get none. world.rank() is this
    //   rank.
    todo("02.20");
    // END TODO 02.20
    const std::string name = "worker " + std::to_string(worker);
    Group pair = world.split(color, key, name);
    const bool member = world.rank() == 0 || world.rank() == worker;
    const std::vector<int> ranks = pair.comm() == nullptr ? std::vector<int>{} : pair.members();
    probe("02.20", {"ranks of the communicator of ", name}, ranks);
    if (ranks != (member ? std::vector<int>{0, worker} : std::vector<int>{})) {
      fail(kFailed, "the communicator of " + name + " has other ranks than the server and the worker: see TODO 02.20");
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

// The word that says to go on.
static __global__ void allow(float* word) {
  for ([[maybe_unused]] int once : grid_stride(1)) *word = 1;
}

// ---- the server ----------------------------------------------------------------------------------------------------

class ParameterServer {
 public:
  // Serves values[count], which the compute stream updates. `order` has the updates in the order in which to make them;
  // where it is empty, gradients are taken as they arrive.
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

  // Sends the parameters as they are now to all workers that wait and may go on.
  void answer() {
    const std::vector<int> started = clocks_.start();
    probe("02.23", "workers that may start a step", started);
    for (int worker : started) {
      send_parameters(worker);
      receive_gradient(worker);
    }
  }

  // Waits for the next worker's gradient and returns it, [count], with its loss behind it: for the compute stream.
  Real* next_gradient() {
    const Channel& channel = channels_[next_worker() - 1];
    CUDA_CHECK(cudaStreamWaitEvent(compute_, channel.arrived));
    return channel.gradient.data();
  }

  // After the last update, when all workers wait: none goes on.
  void stop() {
    for (int worker = 1; worker <= clocks_.count(); ++worker) {
      float* go_on = word_of(channels_[worker - 1].parameters.data(), count_);
      CUDA_CHECK(cudaMemsetAsync(go_on, 0, sizeof(float), compute_));
      send_parameters(worker);
    }
    for (const Channel& channel : channels_) channel.stream.synchronize();
  }

  const std::vector<Update>& updates() const { return updates_; }  // made so far

 private:
  // What the server has for a worker.
  struct Channel {
    Channel(Group pair, int length)
        : pair(std::move(pair)), parameters(length, Memory::buckets), gradient(length, Memory::buckets) {}
    Group pair;
    Stream stream{"worker"};
    DeviceBuffer<Real> parameters, gradient;
    Event copied, arrived;  // the parameters, the gradient
  };

  void send_parameters(int worker) {
    Channel& channel = channels_[worker - 1];
    Real* copy = channel.parameters.data();
    const ncclComm_t comm = channel.pair.comm();
    // TODO 02.21: Send the worker a copy of the parameters, with all updates so far, on channel.stream.
    //   A copy, because the next update may come while it is sent. cudaMemcpyAsync takes values_, count_ Reals, to
    //   `copy` on the stream of the updates, compute_; channel.stream waits for that, by the event channel.copied, and
    //   sends copy[length_], with the word behind it, to kWorker: numbers of type kReal. The host does not wait.
    todo("02.21");
    // END TODO 02.21
    probe("02.21", "parameters for worker " + std::to_string(worker), copy, {shown_of_message(count_)}, channel.stream);
  }

  void receive_gradient(int worker) {
    Channel& channel = channels_[worker - 1];
    Real* gradient = channel.gradient.data();
    NCCL_CHECK(ncclRecv(gradient, length_, kReal, kWorker, channel.pair.comm(), channel.stream));
    CUDA_CHECK(cudaEventRecord(channel.arrived, channel.stream));
    probe("02.22", "gradient and loss of worker " + std::to_string(worker), gradient, {shown_of_message(count_)},
          channel.stream);
    arrivals_.note(worker, channel.stream);
  }

  // The worker whose gradient makes the next update.
  int next_worker() {
    if (!clocks_.any_computes()) fail(kFailed, "all workers wait for the server: see TODO 02.23");
    const Update expected = order_.empty() ? Update{0, kAnyStaleness} : order_[updates_.size()];
    if (expected.worker > 0 && !clocks_.computes(expected.worker)) refuse(expected, "that worker waits for the server");
    const Update update = clocks_.finish(arrivals_.take(expected.worker));
    probe("02.24", "worker and staleness of the update",
          std::vector<int>{update.worker, static_cast<int>(update.staleness)});
    if (expected.staleness != kAnyStaleness && update.staleness != expected.staleness) {
      refuse(expected, "its staleness is " + std::to_string(update.staleness));
    }
    updates_.push_back(update);
    return update.worker;
  }

  [[noreturn]] void refuse(const Update& expected, const std::string& why) const {
    const std::string what = "update " + std::to_string(updates_.size()) + " cannot be worker " +
                             std::to_string(expected.worker) + "'s: " + why;
    if (expected.staleness == kAnyStaleness) fail(kFailed, what + ": see TODO 02.23");
    usage_error("--replay: " + what + "; expected a record of a run with the same options");
  }

  const Real* values_;
  int count_, length_;  // of the model, of a message
  Clocks clocks_;
  std::vector<Update> order_, updates_;
  cudaStream_t compute_;
  Arrivals arrivals_;
  std::deque<Channel> channels_;  // by worker, from 1 on
};

// ---- a worker ------------------------------------------------------------------------------------------------------

class Worker {
 public:
  // Of the server of all ranks; for a model of so many parameters, which works on this stream.
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

  // Gets the parameters as the server has them; false where no step is left to make. The host has to know, so this is
  // where it waits.
  bool pull() {
    NCCL_CHECK(ncclRecv(parameters_.data(), length_, kReal, kServer, pair_.comm(), stream_));
    probe("02.21", "parameters and the word behind them", parameters_.data(), {shown_of_message(count_)}, stream_);
    const float* word = word_of(parameters_.data(), count_);
    CUDA_CHECK(cudaMemcpyAsync(go_on_.data(), word, sizeof(float), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return *go_on_.data() != 0;
  }

  // Sends the gradient of those parameters, and the loss.
  void push() {
    const ncclComm_t comm = pair_.comm();
    // TODO 02.22: Send the gradient and the loss behind it to the server.
    //   ncclSend(buffer, count, kReal, peer, comm, stream): one message, gradient_.data(), of length_ numbers, to
    //   kServer, on stream_, which has computed them.
    todo("02.22");
    // END TODO 02.22
    probe("02.22", "gradient and loss", gradient_.data(), {shown_of_message(count_)}, stream_);
  }

 private:
  int count_, length_;  // of the model, of a message
  Group pair_;
  cudaStream_t stream_;
  DeviceBuffer<Real> parameters_, gradient_;
  HostBuffer<float> go_on_;
};

}  // namespace workshop
