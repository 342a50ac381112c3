// SPDX-License-Identifier: Apache-2.0
// A model that waits instead of computing. All its parts take the same time, so only the schedule makes stages idle.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "model/deferred_weights.h"
#include "model/model.h"

namespace workshop {

// How long each pass waits. The gradients of the weights come in addition to a backward, or later.
struct WaitingTimes {
  double pass, weights;  // milliseconds
};

// Occupies the stream for the given time, as a kernel would, but no processor. Its output is undefined.
class WaitingLayer : public Layer {
 public:
  WaitingLayer(int width, const WaitingTimes& times) : Layer("wait", width, width), times_(times) {}

  std::vector<float> initial_values(Generator&) const override { return {}; }
  std::vector<int> saved() const override { return {out}; }
  const Real* forward(const Blas& blas, const void*, int, Saved& saved) override {
    wait(times_.pass, blas.stream());
    return saved.buffers[0].data();
  }
  Real* backward(const Saved&, const Gradients& gradients) override {
    const auto weights = [this, stream = gradients.blas.stream()](float) { wait(times_.weights, stream); };
    wait(times_.pass, gradients.blas.stream());
    if (gradients.later == nullptr) {
      weights(gradients.accumulate);
    } else {
      gradients.later->leave(weights);
    }
    return gradients.dx;
  }

 private:
  static void wait(double& milliseconds, cudaStream_t stream) {
    if (milliseconds == 0) return;
    CUDA_CHECK(cudaLaunchHostFunc(
        stream,
        [](void* time) {
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(*static_cast<double*>(time)));
        },
        &milliseconds));
  }

  WaitingTimes times_;
};

class NoLoss : public Loss {
 public:
  void add(const Blas&, const Real*, const void*, int, int, float*, Real*, float*) const override {}
};

inline Network make_waiting_model(int layers, int width, const WaitingTimes& times) {
  Network network;
  for (int i = 0; i < layers; ++i) network.layers.push_back(std::make_shared<WaitingLayer>(width, times));
  network.loss = std::make_shared<NoLoss>();
  return network;
}

}  // namespace workshop
