// SPDX-License-Identifier: Apache-2.0
// A model that waits instead of computing. All its parts take the same time, so only the schedule makes stages idle.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "model/model.h"

namespace workshop {

// Occupies the stream for the given time, as a kernel would, but no processor. Its output is undefined.
class WaitingLayer : public Layer {
 public:
  WaitingLayer(int width, double milliseconds) : Layer("wait", width, width), milliseconds_(milliseconds) {}

  std::vector<float> initial_values(Generator&) const override { return {}; }
  std::vector<int> saved() const override { return {out}; }
  const Real* forward(const Blas& blas, const void*, int, Saved& saved) override {
    wait(blas.stream());
    return saved.buffers[0].data();
  }
  Real* backward(const Saved&, const Gradients& gradients) override {
    wait(gradients.blas.stream());
    return gradients.dx;
  }

 private:
  void wait(cudaStream_t stream) {
    CUDA_CHECK(cudaLaunchHostFunc(
        stream,
        [](void* milliseconds) {
          std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(*static_cast<double*>(milliseconds)));
        },
        &milliseconds_));
  }

  double milliseconds_;
};

class NoLoss : public Loss {
 public:
  void add(const Blas&, const Real*, const void*, int, int, float*, Real*, float*) const override {}
};

inline Network make_waiting_model(int layers, int width, double milliseconds) {
  Network network;
  for (int i = 0; i < layers; ++i) network.layers.push_back(std::make_shared<WaitingLayer>(width, milliseconds));
  network.loss = std::make_shared<NoLoss>();
  return network;
}

}  // namespace workshop
