// SPDX-License-Identifier: Apache-2.0
// Compares gradients with central differences of the loss.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "common/job/job.h"
#include "model/model.h"

namespace workshop {

// Returns the mean square error of one batch, computed on the host in double precision.
inline double loss_of(Model& model, Activations& activations, const Batch& batch, cudaStream_t stream) {
  const Real* output = model.forward(batch, activations);
  const std::size_t count = static_cast<std::size_t>(batch.samples) * model.output_size();
  std::vector<Real> prediction(count);
  std::vector<float> target(count);
  CUDA_CHECK(cudaMemcpyAsync(prediction.data(), output, count * sizeof(Real), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaMemcpyAsync(target.data(), batch.y, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = static_cast<float>(prediction[i]);
    sum += std::pow(value - target[i], 2);
  }
  return sum / static_cast<double>(count);
}

// Returns (loss(w + h) - loss(w - h)) / 2h for one parameter w at `place` on the device. Its value must be `value`, and
// is restored. Ranks that compute the loss together must call this together; those that do not hold w pass null.
inline double central_difference(Real* place, float value, float h, const std::function<double()>& loss,
                                 cudaStream_t stream) {
  // On the stream, because cudaMemcpy from pageable memory may return before the device has the data.
  const auto set = [&](float shifted) {
    if (place == nullptr) return;
    const Real written = shifted;
    CUDA_CHECK(cudaMemcpyAsync(place, &written, sizeof written, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  };
  const float above = value + h, below = value - h;  // rounded to float32, so not exactly 2h apart
  set(above);
  const double loss_above = loss();
  set(below);
  const double loss_below = loss();
  set(value);
  return (loss_above - loss_below) / (static_cast<double>(above) - below);
}

// Compares the gradients of a batch with central differences of its loss, for up to 100 values of each parameter. Ends
// the program unless all agree. Rounding and the kinks of a ReLU cause differences below the tolerance, mistakes cause
// differences of the order of 1.
inline void require_gradients(Model& model, Activations& activations, const Batch& batch, cudaStream_t stream) {
  constexpr float h = 5e-4f;
  constexpr double tolerance = 5e-2;
  DeviceBuffer<float> loss(1, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, sizeof(float), stream));
  model.forward(batch, activations);
  model.loss(activations, batch.y, batch.samples, loss.data());
  model.backward(activations);
  CUDA_CHECK(cudaStreamSynchronize(stream));

  bool agree = true;
  for (const Parameter& p : model.parameters()) {
    const int count = p.count();
    std::vector<Real> grad(count), value(count);
    CUDA_CHECK(cudaMemcpyAsync(grad.data(), p.grad, count * sizeof(Real), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(value.data(), p.value, count * sizeof(Real), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    double error = 0, norm = 0;
    for (int i = 0; i < count; i += (count + 99) / 100) {
      const double difference = central_difference(
          p.value + i, value[i], h, [&] { return loss_of(model, activations, batch, stream); }, stream);
      error += std::pow(difference - static_cast<float>(grad[i]), 2);
      norm += std::pow(difference, 2);
    }
    error = std::sqrt(error / norm);
    const bool good = error <= tolerance;
    print0("%-10s  relative difference %.1e  %s\n", p.name.c_str(), error, good ? "agrees" : "WRONG");
    agree = agree && good;
  }
  if (!agree) fail(kFailed, "the gradients are wrong");
}

// The option --gradient-check.
class GradientCheck {
 public:
  // Adds the option. Call before parse().
  explicit GradientCheck(Options& options) : model_(options.model) {
    options.add_flag("--gradient-check", wanted_, "compare the gradients with central differences, then train");
  }
  GradientCheck(const GradientCheck&) = delete;  // the options point into it

  // With --gradient-check, compares the gradients of the first batch. Call before the training.
  void require(Model& model, Activations& activations, Training& training, cudaStream_t stream) const {
    if (!wanted_) return;
    if (model_ != ModelKind::mlp) usage_error("--gradient-check is for --model mlp alone");
    if (kMixedPrecision) usage_error("--gradient-check is for --precision fp32 alone");  // rounding is too coarse
    require_gradients(model, activations, training.first_samples(), stream);
  }

 private:
  const ModelKind& model_;  // set by parse()
  bool wanted_ = false;
};

}  // namespace workshop
