// SPDX-License-Identifier: Apache-2.0
// Activation recomputation (Chen et al., 2016): of a layer, only the output is kept until the backward pass, which
// begins with the layer's forward pass once more.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model.h"

namespace workshop {

// What one layer at a time leaves: room that all recomputed layers of a kind share, on each device that has some.
using SharedActivations = std::shared_ptr<std::map<int, std::vector<DeviceBuffer<Real>>>>;

class Recomputed : public Layer {
 public:
  // The last buffer of what `layer` saves must be its output.
  Recomputed(std::shared_ptr<Layer> layer, SharedActivations room)
      : Layer(layer->name, layer->in, layer->out), layer_(std::move(layer)), room_(std::move(room)) {
    parameters = layer_->parameters;
  }

  std::vector<float> initial_values(Generator& generator) const override { return layer_->initial_values(generator); }
  std::vector<int> saved() const override { return {out}; }
  int widest() const override { return layer_->widest(); }
  int rows() const override { return layer_->rows(); }

  void allocate(int max_samples, cudaStream_t stream) override {
    layer_->allocate(max_samples, stream);
    device_ = current_device();
    std::vector<DeviceBuffer<Real>>& room = (*room_)[device_];
    if (!room.empty()) return;
    for (int size : layer_->saved()) room.emplace_back(DeviceBuffer<Real>(max_samples * size, Memory::activations));
  }
  void bind(Real* values, Real* grads) override {
    layer_->bind(values, grads);
    parameters = layer_->parameters;
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Lent lent(*this, saved);
    layer_->forward(blas, x, samples, lent.saved);
    std::swap(lent.saved.buffers.back(), saved.buffers[0]);  // the output stays
    return saved.buffers[0].data();
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Lent lent(*this, saved);
    layer_->forward(g.blas, saved.x, g.samples, lent.saved);
    return layer_->backward(lent.saved, g);
  }

  // What earlier positions have left is kept here: there is one sample.
  const Real* forward_position(const Blas& blas, const void* x, int position, Saved&) override {
    if (cache_.buffers.empty()) {
      for (int size : layer_->saved()) cache_.buffers.emplace_back(DeviceBuffer<Real>(size, Memory::activations));
    }
    return layer_->forward_position(blas, x, position, cache_);
  }

 private:
  // The shared room, lent to this layer as long as this lives.
  struct Lent {
    Lent(const Recomputed& layer, const Saved& like) : room((*layer.room_)[layer.device_]) {
      saved.x = like.x;
      saved.batch = like.batch;
      saved.buffers.swap(room);
    }
    ~Lent() { saved.buffers.swap(room); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

    std::vector<DeviceBuffer<Real>>& room;
    mutable Saved saved;
  };

  std::shared_ptr<Layer> layer_;
  SharedActivations room_;
  int device_ = 0;
  Saved cache_;
};

}  // namespace workshop
