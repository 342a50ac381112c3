// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "model/recompute.h"

namespace workshop {
namespace {

// Consecutive layers, as one layer that keeps only its output.
class Recomputed : public Layer {
 public:
  Recomputed(std::vector<std::shared_ptr<Layer>> layers, SharedRoom room)
      : Layer(layers.front()->name, layers.front()->in, layers.back()->out),
        layers_(std::move(layers)),
        room_(std::move(room)),
        saved_(layers_.size()),
        cache_(layers_.size()) {
    collect_parameters();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (int size : layers_[i]->saved()) {
        places_.push_back({i, saved_[i].buffers.size(), size});
        saved_[i].buffers.emplace_back();
      }
    }
    std::stable_sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.size > b.size; });
  }

  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values;
    for (const auto& layer : layers_) {
      const std::vector<float> more = layer->initial_values(generator);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  }
  std::vector<int> saved() const override { return {out}; }
  int widest() const override {
    return largest([](const Layer& layer) { return layer.widest(); });
  }
  int rows() const override {
    return largest([](const Layer& layer) { return layer.rows(); });
  }

  void allocate(int max_samples, cudaStream_t stream) override {
    for (const auto& layer : layers_) layer->allocate(max_samples, stream);
    device_ = current_device();
    std::vector<DeviceBuffer<Real>>& room = (*room_)[device_];
    if (room.size() < places_.size()) room.resize(places_.size());
    for (std::size_t j = 0; j < places_.size(); ++j) {
      const std::size_t size = static_cast<std::size_t>(max_samples) * places_[j].size;
      DeviceBuffer<Real>& buffer = room[j];
      if (buffer.size() >= size) continue;
      buffer = {};  // free it first
      buffer = DeviceBuffer<Real>(size, Memory::activations);
    }
  }
  void bind(Real* values, Real* grads) override {
    int offset = 0;
    for (const auto& layer : layers_) {
      layer->bind(values == nullptr ? nullptr : values + offset, grads == nullptr ? nullptr : grads + offset);
      offset += layer->count();
    }
    collect_parameters();
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Lent lent(*this);
    const Real* output = pass(blas, x, samples, saved.batch);
    DeviceBuffer<Real>&kept = saved.buffers[0], &last = saved_.back().buffers.back();
    if (last.data() == output && last.size() == kept.size()) {
      std::swap(last, kept);  // no copy if the sizes are equal, as in groups of equal layers
    } else {
      CUDA_CHECK(cudaMemcpyAsync(kept.data(), output, static_cast<std::size_t>(samples) * out * sizeof(Real),
                                 cudaMemcpyDeviceToDevice, blas.stream()));
    }
    return kept.data();
  }

  // The repeated forward drops the same values: dropout depends only on the batch (dropout.h).
  Real* backward(const Saved& saved, const Gradients& g) override {
    const Lent lent(*this);
    pass(g.blas, saved.x, g.samples, saved.batch);
    Real *dy = g.dy, *spare = g.spare, *below = nullptr;
    for (int i = static_cast<int>(layers_.size()) - 1; i >= 0; --i) {
      const bool bottom = i == 0;
      below = layers_[i]->backward(saved_[i], {g.blas, g.ones, g.samples, g.accumulate, dy, spare,
                                               bottom ? g.dx : nullptr, !bottom || g.needs_dx});
      if (below == spare) std::swap(dy, spare);
    }
    return below;
  }

  // The data of earlier positions is kept in cache_, because there is only one sample.
  const Real* forward_position(const Blas& blas, const void* x, int position, Saved&) override {
    const Real* output = nullptr;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (cache_[i].buffers.empty()) {
        for (int size : layers_[i]->saved()) {
          cache_[i].buffers.emplace_back(DeviceBuffer<Real>(size, Memory::activations));
        }
      }
      x = output = layers_[i]->forward_position(blas, x, position, cache_[i]);
    }
    return output;
  }

 private:
  // Where a shared buffer is lent to: a buffer of a layer.
  struct Place {
    std::size_t layer, buffer;
    int size;  // floats per sample
  };

  // Lends the shared buffers to a group for the lifetime of this object.
  class Lent {
   public:
    explicit Lent(Recomputed& group) : group_(group) { exchange(); }
    ~Lent() { exchange(); }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    void exchange() {
      std::vector<DeviceBuffer<Real>>& room = (*group_.room_)[group_.device_];
      for (std::size_t j = 0; j < group_.places_.size(); ++j) {
        const Place& place = group_.places_[j];
        std::swap(room[j], group_.saved_[place.layer].buffers[place.buffer]);
      }
    }
    Recomputed& group_;
  };

  // Runs the forward pass of all layers. The shared buffers must be lent to this group.
  const Real* pass(const Blas& blas, const void* x, int samples, const Batch& batch) {
    const Real* output = nullptr;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      saved_[i].x = x;
      saved_[i].batch = batch;
      x = output = layers_[i]->forward(blas, x, samples, saved_[i]);
    }
    return output;
  }

  template <typename Size>
  int largest(const Size& size) const {
    int largest = 0;
    for (const auto& layer : layers_) largest = std::max(largest, size(*layer));
    return largest;
  }

  void collect_parameters() {
    parameters.clear();
    for (const auto& layer : layers_) {
      parameters.insert(parameters.end(), layer->parameters.begin(), layer->parameters.end());
    }
  }

  std::vector<std::shared_ptr<Layer>> layers_;
  SharedRoom room_;
  std::vector<Saved> saved_;  // indexed by layer; has buffers only while they are lent
  std::vector<Place> places_;
  int device_ = 0;
  std::vector<Saved> cache_;  // indexed by layer, for forward_position()
};

}  // namespace

std::shared_ptr<Layer> make_recomputed(std::vector<std::shared_ptr<Layer>> layers, SharedRoom room) {
  return std::make_shared<Recomputed>(std::move(layers), std::move(room));
}

}  // namespace workshop
