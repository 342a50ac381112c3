// SPDX-License-Identifier: Apache-2.0
// AlexNet (Krizhevsky, 2014) as in torchvision: five convolutions with few parameters and nearly all of the arithmetic,
// and three linear layers with nearly all of the parameters.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/convolution.h"
#include "01_single_gpu/cross_entropy.h"
#include "01_single_gpu/dropout.h"
#include "01_single_gpu/pooling.h"
#include "common/base/random.h"
#include "common/data/images.h"
#include "model/activation.h"
#include "model/model.h"

namespace workshop {

// ---- layers --------------------------------------------------------------------------------------------------------

// Memory for the windows of one layer at a time, by device. All convolutions of a model share it.
using WindowRoom = std::shared_ptr<std::map<int, DeviceBuffer<Real>>>;

// The pooling after a convolution and its ReLU.
struct Pooling {
  bool largest = false;  // max pooling of 3 by 3, at every second place
  int cells = 0;         // then average pooling to `cells` by `cells`; 0: none
};

// A convolution, its ReLU, and the pooling after it. Maps are channels last, except for averages, which are
// [channels, cells, cells].
class ConvolutionLayer : public Layer {
 public:
  ConvolutionLayer(const std::string& name, const Map& in, int channels, const Windows& windows, const Pooling& pooling,
                   WindowRoom room)
      : ConvolutionLayer(name, in, map_of(in, windows, channels), windows, pooling, std::move(room)) {}

  // Returns the floats of all windows of a sample, the largest of its buffers.
  int windows_size() const { return convolution_.windows_size(); }
  // Returns the shape of the output, for the next layer.
  const Map& map() const { return pools_ ? max_pool_.out : convolution_.out; }

  std::vector<float> initial_values(Generator& generator) const override {
    const int row = convolution_.row(), channels = convolution_.out.channels;
    std::vector<float> values(count());
    init_linear(generator, row, channels, values.data(), values.data() + row * channels);  // nn.Conv2d's are the same
    return values;
  }
  // The output of the ReLU; that of max pooling and the pixels it came from; the averages.
  std::vector<int> saved() const override {
    std::vector<int> sizes = {convolution_.out.size()};
    if (pools_) sizes.insert(sizes.end(), {map().size(), reals_spanning(map().size())});
    if (averages_) sizes.push_back(out);
    return sizes;
  }
  int widest() const override { return std::max(convolution_.out.size(), out); }
  int rows() const override { return convolution_.out.pixels(); }

  void allocate(int max_samples, cudaStream_t) override {
    const std::size_t size = static_cast<std::size_t>(max_samples) * convolution_.windows_size();
    device_ = current_device();
    DeviceBuffer<Real>& room = (*room_)[device_];
    if (room.size() >= size) return;
    room = {};  // freed before the larger one is allocated
    room = DeviceBuffer<Real>(size, Memory::activations);
  }
  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const Parameter &weight = parameters[0], &bias = parameters[1];
    convolution_.linear = {name,        convolution_.row(), convolution_.out.channels, weight.value, bias.value,
                           weight.grad, bias.grad};
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    Real* y = saved.buffers[0].data();
    convolution_forward(blas, convolution_, static_cast<const Real*>(x), y, windows(), samples);
    activation_forward(Activation::relu, y, y, samples * convolution_.out.size(), stream);
    if (pools_) {
      max_pool(max_pool_, y, saved.buffers[1].data(), pixels(saved), samples, stream);
      y = saved.buffers[1].data();
    }
    if (!averages_) return y;
    average_pool(average_pool_, y, saved.buffers.back().data(), samples, stream);
    return saved.buffers.back().data();
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    Real *dy = g.dy, *below = g.spare;
    if (averages_) {
      average_pool_gradient(average_pool_, dy, below, g.samples, stream);
      std::swap(dy, below);
    }
    if (pools_) {
      max_pool_gradient(max_pool_, dy, pixels(saved), below, g.samples, stream);
      std::swap(dy, below);
    }
    // The output of a ReLU serves as its input: both are above 0 at the same places.
    activation_backward(Activation::relu, dy, saved.buffers[0].data(), g.samples * convolution_.out.size(), stream);
    Real* dx = !g.needs_dx ? nullptr : g.dx != nullptr ? g.dx : below;
    convolution_backward(g.blas, convolution_, static_cast<const Real*>(saved.x), dy, dx, windows(), g.ones, g.samples,
                         g.accumulate);
    return dx;
  }

 private:
  ConvolutionLayer(const std::string& name, const Map& in, const Map& out, const Windows& windows,
                   const Pooling& pooling, WindowRoom room)
      : Layer(name, in.size(), size_of(out, pooling)),
        pools_(pooling.largest),
        averages_(pooling.cells > 0),
        convolution_{{}, in, out, windows},
        max_pool_{name, out, map_of(out, kPooled, out.channels), kPooled},
        average_pool_{name, map(), pooling.cells},
        room_(std::move(room)) {
    parameters = {{name + ".weight", {out.channels, in.channels, windows.size, windows.size}},
                  {name + ".bias", {out.channels}}};
  }

  static constexpr Windows kPooled = {3, 2, 0};

  static Map map_of(const Map& in, const Windows& windows, int channels) {
    return {channels, windows.count(in.height), windows.count(in.width)};
  }
  static int size_of(const Map& out, const Pooling& pooling) {
    if (pooling.cells > 0) return out.channels * pooling.cells * pooling.cells;
    return (pooling.largest ? map_of(out, kPooled, out.channels) : out).size();
  }
  Real* windows() const { return room_->at(device_).data(); }
  // The pixels' numbers, ints, are kept in a buffer of Reals.
  static int* pixels(const Saved& saved) { return static_cast<int*>(static_cast<void*>(saved.buffers[2].data())); }

  bool pools_, averages_;
  Convolution convolution_;
  MaxPool max_pool_;
  AveragePool average_pool_;
  WindowRoom room_;
  int device_ = 0;
};

// Dropout, a linear layer, and its ReLU.
class DropoutLinear : public Layer {
 public:
  // `number` is the layer's number in the network; it makes its masks differ from those of other layers.
  DropoutLinear(const std::string& name, int in, int out, bool relu, double dropout, std::uint64_t seed, int number)
      : Layer(name, in, out), relu_(relu), probability_(dropout), seed_(seed), number_(number) {
    parameters = {{name + ".weight", {out, in}}, {name + ".bias", {out}}};
  }

  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count());
    init_linear(generator, in, out, values.data(), values.data() + in * out);
    return values;
  }
  // The output, and the input after dropout.
  std::vector<int> saved() const override { return probability_ > 0 ? std::vector{out, in} : std::vector{out}; }
  int deferred() const override { return out; }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const Parameter &weight = parameters[0], &bias = parameters[1];
    linear_ = {name, in, out, weight.value, bias.value, weight.grad, bias.grad};
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    if (const Dropout dropout = dropout_of(saved); dropout.active()) {
      dropout.apply(saved.buffers[1].data(), static_cast<const Real*>(x), samples, in, stream);
    }
    Real* y = saved.buffers[0].data();
    linear_forward(blas, linear_, input(saved), y, samples);
    if (relu_) activation_forward(Activation::relu, y, y, samples * out, stream);
    return y;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    if (relu_) activation_backward(Activation::relu, g.dy, saved.buffers[0].data(), g.samples * out, stream);
    Real* dx = !g.needs_dx ? nullptr : g.dx != nullptr ? g.dx : g.spare;
    linear_backward(g, linear_, input(saved), g.dy, dx, g.samples);
    if (dx != nullptr) dropout_of(saved).apply(dx, dx, g.samples, in, stream);  // the same mask
    return dx;
  }

 private:
  Dropout dropout_of(const Saved& saved) const { return {probability_, seed_, number_, /*place=*/0, saved.batch}; }
  // Returns the input of the linear layer.
  const Real* input(const Saved& saved) const {
    return dropout_of(saved).active() ? saved.buffers[1].data() : static_cast<const Real*>(saved.x);
  }

  bool relu_;
  double probability_;
  std::uint64_t seed_;
  int number_;
  Linear linear_{};
};

// ---- the network ---------------------------------------------------------------------------------------------------

// Returns the largest stride of the first convolution (4 as in torchvision, 2 or 1) with which no map is empty: three
// poolings need a first map of at least 15 by 15.
inline int first_stride(int image_size) {
  for (int stride : {4, 2}) {
    if (Windows{11, stride, 2}.count(image_size) >= 15) return stride;
  }
  return 1;
}

inline Network make_alexnet(const Options& options) {
  const ImageOptions& o = options.images;
  struct Shape {
    int place, channels;  // place: in torchvision's nn.Sequential
    Windows windows;
    Pooling pooling;
  };
  constexpr int kCells = 6;
  const Shape shapes[] = {{0, 64, {11, first_stride(o.size), 2}, {true}},
                          {3, 192, {5, 1, 2}, {true}},
                          {6, 384, {3, 1, 1}, {}},
                          {8, 256, {3, 1, 1}, {}},
                          {10, 256, {3, 1, 1}, {true, kCells}}};
  Network network;
  network.images = std::make_shared<ImageDataset>(images_of(options));
  const auto room = std::make_shared<WindowRoom::element_type>();
  Map map = {3, o.size, o.size, /*channels_last=*/false};
  for (const Shape& s : shapes) {
    const auto layer = std::make_shared<ConvolutionLayer>("features." + std::to_string(s.place), map,
                                                          s.channels / o.shrink, s.windows, s.pooling, room);
    network.layers.push_back(layer);
    require_product(
        {{"--batch-size", options.batch_size}, {"the windows of layer " + layer->name, layer->windows_size()}});
    map = layer->map();
  }
  const int hidden = 4096 / o.shrink;
  const auto add = [&](int place, int out, bool hidden_layer) {
    const int number = network.depth(), in = network.output_size();
    network.layers.push_back(std::make_shared<DropoutLinear>(
        "classifier." + std::to_string(place), in, out,
        /*relu=*/hidden_layer, hidden_layer ? options.gpt.dropout : 0, options.seed, number));
  };
  add(1, hidden, true);
  add(4, hidden, true);
  add(6, o.classes, false);
  network.loss = std::make_shared<CrossEntropy>(1, o.classes);
  return network;
}

}  // namespace workshop
