// SPDX-License-Identifier: Apache-2.0
// SGD and AdamW as PyTorch computes them, for parameters on the device or on the host.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "common/device/device.h"
#include "common/options/options.h"
#include "common/record/record.h"
#include "common/training/training.h"
#include "model/model.h"

namespace workshop {

// The arithmetic also runs on the host: chapter 06 updates parameters that it keeps in host memory.
__host__ __device__ inline void sgd_value(float& value, float grad, float lr, float weight_decay) {
  value -= lr * (grad + weight_decay * value);
}

static __global__ void sgd(float* value, ConstReals grad, float lr, float weight_decay, int n) {
  for (int i : grid_stride(n)) sgd_value(value[i], grad[i], lr, weight_decay);
}

// The factors of AdamW's step t = 1, 2, …; the same for all parameters.
struct AdamWStep {
  float decay;                             // 1 - lr·λ
  float one_minus_beta1, one_minus_beta2;  // the weight of this step's gradient in the first and the second moment
  float beta2;                             // the weight of the earlier steps in the second moment
  float step_size;                         // lr / (1 - β₁ᵗ)
  float root_correction;                   // √(1 - β₂ᵗ)
  float epsilon;
};

inline AdamWStep adamw_step(double lr, double weight_decay, int t) {
  probe("01.E", "given to adamw_step: learning rate, weight decay, number of the step",
        std::array<double, 3>{lr, weight_decay, static_cast<double>(t)});
  AdamWStep s{};
  // TODO 01.8: Fill in the factors of AdamW's step number t.
  //   β₁ = 0.9, β₂ = 0.999, ε = 1e-8 are PyTorch's defaults. Why are the moments too small at first, and by which
  //   factors? Compute in double: 1 - 0.999 in float is wrong in the fifth digit.
  todo("01.8");
  // END TODO 01.8
  probe("01.E", "factors of AdamW's step",  // all near 1, so that each counts
        std::array<double, 7>{s.decay, 10.0 * s.one_minus_beta1, 1e3 * s.one_minus_beta2, s.beta2, s.step_size,
                              s.root_correction, 1e8 * s.epsilon});
  return s;
}

// Decoupled weight decay (Loshchilov and Hutter, 2019), in PyTorch's order of operations.
__host__ __device__ inline void adamw_value(float& value, float grad, float& first, float& second, const AdamWStep& s) {
  first += s.one_minus_beta1 * (grad - first);
  second = s.beta2 * second + s.one_minus_beta2 * grad * grad;
  const float denominator = sqrtf(second) / s.root_correction + s.epsilon;
  value = value * s.decay - s.step_size * first / denominator;
}

static __global__ void adamw(float* value, ConstReals grad, float* first, float* second, AdamWStep s, int n) {
  for (int i : grid_stride(n)) adamw_value(value[i], grad[i], first[i], second[i], s);
}

// Where parameters, their gradients and the optimizer's state are kept. Chapter 06 can keep them on the host.
enum class Place { device, host };

// An array on the device or in pinned host memory. Kernels, and copies with cudaMemcpyDefault, accept either.
template <typename T>
class PlacedBuffer {
 public:
  PlacedBuffer() = default;
  PlacedBuffer(int count, Memory kind, Place place)
      : device_(place == Place::device ? count : 0, kind), host_(place == Place::host ? count : 0) {}
  T* data() const { return host_.size() > 0 ? host_.data() : device_.data(); }

 private:
  DeviceBuffer<T> device_;
  HostBuffer<T> host_;
};

// Updates `count` parameters: those of a whole model, or a shard of them.
//
// A bfloat16 weight has eight bits of precision: changes of less than 1/512 of its value have no effect, and most steps
// are smaller. So the optimizer keeps a copy of the weights in float32, updates that copy, and rounds it to the weights
// that the model computes with.
class Optimizer {
 public:
  Optimizer(const Options& options, int count, cudaStream_t stream, Place place = Place::device)
      : kind_(options.optimizer),
        lr_(options.lr),
        weight_decay_(options.weight_decay),
        count_(count),
        place_(place),
        stream_(stream) {
    if (kMixedPrecision) exact_ = PlacedBuffer<float>(count, Memory::optimizer, place);
    if (kind_ != OptimizerKind::adamw) return;
    for (PlacedBuffer<float>* moment : {&first_, &second_}) {
      *moment = PlacedBuffer<float>(count, Memory::optimizer, place);
      if (place == Place::host) std::fill_n(moment->data(), count, 0.0f);
      if (place == Place::device) CUDA_CHECK(cudaMemsetAsync(moment->data(), 0, count * sizeof(float), stream));
    }
  }
  Optimizer(const Optimizer&) = delete;  // checkpoints and operations on the stream point to it
  Optimizer& operator=(const Optimizer&) = delete;

  // Returns the float32 weights [count], which checkpoints save: `values` itself or, with mixed precision, the
  // optimizer's own copy, which is initialized from `values` by the first call.
  float* weights(Real* values) {
    if (float* floats = as_floats_or_null(values)) return floats;
    if (!begun_) {
      const OnDevice on_device(device_);
      launch(to_floats, count_, stream_, exact_.data(), values, count_);
      begun_ = true;
    }
    return exact_.data();
  }

  // Returns the state that checkpoints save: both moments, [count] each; null for SGD.
  OptimizerState state(Real* values) {
    OptimizerState state{first_.data(), second_.data(), &steps_, {}};
    if (kMixedPrecision) {
      state.loaded = [this, values] { weights_changed(values); };
    }
    return state;
  }

  // Call after changing weights(values) other than by step(): renews the weights that the model computes with.
  void weights_changed(Real* values) {
    if (!kMixedPrecision) return;
    const OnDevice on_device(device_);
    round_weights(values);
  }

  // Enqueues one step: updates values[count] with grad[count], at `factor` times the options' learning rate.
  void step(Real* values, const Real* grad, double factor = 1) {
    const Range range("update", stream_);
    probe("01.F", "given to optimizer.step: factor of the learning rate", std::array{factor});
    const double lr = factor * lr_;
    float* value = weights(values);
    if (place_ == Place::host) return step_on_host(values, grad, lr);
    if (kind_ == OptimizerKind::sgd) {
      // TODO 01.7: Update with plain gradient descent: value -= lr·(grad + weight_decay·value).
      //   launch() the kernel sgd above for all parameters at once. It takes floats; lr and weight_decay_ are doubles.
      todo("01.7");
      // END TODO 01.7
    } else {
      const AdamWStep s = adamw_step(lr, weight_decay_, ++steps_);
      launch(adamw, count_, stream_, value, grad, first_.data(), second_.data(), s, count_);
    }
    if (kind_ == OptimizerKind::adamw) {
      probe("01.F", "mean of the gradient's squares", second_.data(), {count_}, stream_);
      probe("01.F", "parameters", value, {count_}, stream_);
      probe("01.8", "mean of the gradient's squares", second_.data(), {count_}, stream_);
    }
    probe(kind_ == OptimizerKind::sgd ? "01.7" : "01.8", "parameters", value, {count_}, stream_);
    if (kMixedPrecision) round_weights(values);
  }

 private:
  // With mixed precision, rounds the float32 weights to those that the model computes with. The float32 weights stay
  // exact: steps that are too small to change the rounded ones add up in them.
  void round_weights(Real* values) { launch(to_reals, count_, stream_, values, weights(values), count_); }

  // The arguments of a step, for when the stream reaches it: the program may be many steps ahead by then.
  struct HostStep {
    Optimizer* optimizer;
    Real* values;
    const Real* grad;
    float lr;
    AdamWStep adamw;
  };

  // Enqueues the update as an operation on the stream, so that the program does not wait for it.
  void step_on_host(Real* values, const Real* grad, double lr) {
    AdamWStep adamw{};
    if (kind_ == OptimizerKind::adamw) adamw = adamw_step(lr, weight_decay_, ++steps_);
    CUDA_CHECK(cudaLaunchHostFunc(
        stream_,
        [](void* data) {
          const std::unique_ptr<HostStep> step(static_cast<HostStep*>(data));
          step->optimizer->run_on_host(*step);
        },
        new HostStep{this, values, grad, static_cast<float>(lr), adamw}));
  }

  // Runs on one of CUDA's threads, which must not call CUDA.
  void run_on_host(const HostStep& step) {
    float* value = weights(step.values);
    if (kind_ == OptimizerKind::sgd) {
      const float weight_decay = static_cast<float>(weight_decay_);
      for (int i = 0; i < count_; ++i) sgd_value(value[i], step.grad[i], step.lr, weight_decay);
    } else {
      float *first = first_.data(), *second = second_.data();
      for (int i = 0; i < count_; ++i) adamw_value(value[i], step.grad[i], first[i], second[i], step.adamw);
    }
    if (kMixedPrecision) std::copy_n(value, count_, step.values);
  }

  OptimizerKind kind_;
  double lr_, weight_decay_;
  int count_;
  Place place_;
  cudaStream_t stream_;
  int device_ = current_device();       // the stream's device
  PlacedBuffer<float> exact_;           // the float32 weights, with mixed precision
  bool begun_ = false;                  // exact_ is initialized
  PlacedBuffer<float> first_, second_;  // AdamW's moments
  int steps_ = 0;                       // enqueued so far
};

// Adds to the checkpoints a model's parameters and the state of their optimizer.
inline void add_all(Training& training, const Model& model, Optimizer& optimizer) {
  float* weights = optimizer.weights(model.values());
  training.add_all(parts_of(model, weights), weights, optimizer.state(model.values()));
}

}  // namespace workshop
