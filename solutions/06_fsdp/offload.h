// What a rank keeps of the model from step to step, on the device or in pinned memory of the host, and the optimizer
// for what is on the host.
#pragma once

#include <memory>

#include "01_single_gpu/mlp.h"

namespace workshop {

// An array of floats, on the device or, if `on_host`, in pinned host memory. Copies with cudaMemcpyDefault and kernels
// take either.
class ShardBuffer {
 public:
  ShardBuffer(int count, Memory kind, bool on_host)
      : device_(on_host ? 0 : count, kind),
        host_(on_host ? count : 0),
        data_(on_host ? host_.data() : device_.data()) {}
  float* data() const { return data_; }

 private:
  DeviceBuffer<float> device_;
  HostBuffer<float> host_;
  float* data_;
};

// Chapter 01's ParameterUpdate on the CPU, for `count` parameters in host memory. A step is one more operation of the
// stream, so the program does not wait for it.
class HostUpdate {
 public:
  HostUpdate(const Options& options, float* value, const float* grad, int count, cudaStream_t stream)
      : optimizer_(options.optimizer),
        lr_(options.lr),
        weight_decay_(options.weight_decay),
        value_(value),
        grad_(grad),
        count_(count),
        stream_(stream) {
    if (optimizer_ != Optimizer::adamw) return;
    for (HostBuffer<float>* state : {&mean_, &square_}) {
      *state = HostBuffer<float>(count);
      std::fill_n(state->data(), count, 0.0f);
    }
  }
  HostUpdate(const HostUpdate&) = delete;  // the stream's operations point to it
  HostUpdate& operator=(const HostUpdate&) = delete;

  float* mean() const { return mean_.data(); }
  float* square() const { return square_.data(); }
  void set_steps(int steps) { steps_ = steps; }

  void step() {
    const Range range("update", stream_);
    AdamWStep adamw{};
    if (optimizer_ == Optimizer::adamw) adamw = adamw_step(lr_, weight_decay_, ++steps_);
    CUDA_CHECK(cudaLaunchHostFunc(
        stream_,
        [](void* data) {
          const std::unique_ptr<Step> step(static_cast<Step*>(data));
          step->update->apply(step->adamw);
        },
        new Step{this, adamw}));
  }

 private:
  // What the stream will need to know of a step when it gets there; the program may be many steps ahead by then.
  struct Step {
    HostUpdate* update;
    AdamWStep adamw;
  };

  // Runs on a thread of CUDA's, which must not call CUDA.
  void apply(const AdamWStep& s) {
    if (optimizer_ == Optimizer::sgd) {
      const float lr = static_cast<float>(lr_), weight_decay = static_cast<float>(weight_decay_);
      for (int i = 0; i < count_; ++i) sgd_value(value_[i], grad_[i], lr, weight_decay);
    } else {
      float *mean = mean_.data(), *square = square_.data();
      for (int i = 0; i < count_; ++i) adamw_value(value_[i], grad_[i], mean[i], square[i], s);
    }
  }

  Optimizer optimizer_;
  double lr_, weight_decay_;
  float* value_;
  const float* grad_;
  int count_;
  cudaStream_t stream_;
  HostBuffer<float> mean_, square_;  // AdamW's
  int steps_ = 0;                    // enqueued
};

}  // namespace workshop
