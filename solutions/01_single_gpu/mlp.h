// SPDX-License-Identifier: Apache-2.0
// A multilayer perceptron: linear layers with an activation between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/linear.h"
#include "01_single_gpu/mean_squared_error.h"
#include "common/base/random.h"
#include "model/activation.h"
#include "model/model.h"

namespace workshop {

// A linear layer and the activation that follows it, if any.
class MlpLayer : public Layer {
 public:
  MlpLayer(const std::string& name, int in, int out, Activation activation)
      : Layer(name, in, out), activation_(activation) {
    parameters = {{name + ".weight", {out, in}}, {name + ".bias", {out}}};
  }

  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count());
    init_linear(generator, in, out, values.data(), values.data() + in * out);
    return values;
  }
  // The values before and after the activation.
  std::vector<int> saved() const override { return activated() ? std::vector{out, out} : std::vector{out}; }
  int deferred() const override { return activated() ? 0 : out; }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    linear_ = linear_of(name, parameters[0], parameters[1]);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    Real* z = saved.buffers[0].data();
    linear_forward(blas, linear_, static_cast<const Real*>(x), z, samples);
    if (!activated()) return z;
    Real* a = saved.buffers[1].data();
    activation_forward(activation_, a, z, samples * out, blas.stream());
    return a;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Range range({"backward ", name}, g.blas.stream());
    if (activated()) activation_backward(activation_, g.dy, saved.buffers[0].data(), g.samples * out, g.blas.stream());
    Real* dx = !g.needs_dx ? nullptr : g.dx != nullptr ? g.dx : g.spare;
    Real* place = activated() ? saved.buffers[0].data() : nullptr;
    linear_backward(g, linear_, static_cast<const Real*>(saved.x), g.dy, dx, g.samples, place);
    return dx;
  }

 private:
  bool activated() const { return activation_ != Activation::none; }

  Activation activation_;
  Linear linear_{};
};

// The name of layer i in nn.Sequential, which counts activations as modules.
inline std::string layer_name(int i, Activation activation) {
  return std::to_string(activation == Activation::none ? i : 2 * i);
}

// Makes linear layers of these widths, all but the last followed by the activation.
inline Network make_mlp(const std::vector<int>& widths, Activation activation) {
  Network network;
  const int depth = static_cast<int>(widths.size()) - 1;
  for (int i = 0; i < depth; ++i) {
    network.layers.push_back(std::make_shared<MlpLayer>(layer_name(i, activation), widths[i], widths[i + 1],
                                                        i + 1 < depth ? activation : Activation::none));
  }
  network.loss = std::make_shared<MeanSquaredError>(widths.back());
  return network;
}

}  // namespace workshop
