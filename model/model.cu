// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/device/launch.h"
#include "common/options/options.h"
#include "common/record/record.h"
#include "model/deferred_weights.h"
#include "model/elementwise.h"
#include "model/model.h"

namespace workshop {

// ---- parameters ----------------------------------------------------------------------------------------------------

namespace {

int product(const int* begin, const int* end) { return std::accumulate(begin, end, 1, std::multiplies()); }

// Returns the address `offset` elements after the start of `array`; null if `array` is null.
Real* behind(Real* array, int offset) { return array == nullptr ? nullptr : array + offset; }

// Places the parameters one after the other in these arrays.
void bind_parameters(std::vector<Parameter>& parameters, Real* values, Real* grads) {
  int offset = 0;
  for (Parameter& p : parameters) {
    p.value = behind(values, offset);
    p.grad = behind(grads, offset);
    offset += p.count();
  }
}

}  // namespace

Parameter::Parameter(const std::string& name, const std::vector<int>& shape)
    : name(name), shape(shape), part(whole_tensor(name, shape, nullptr)) {}

int Parameter::columns() const { return product(shape.data() + 1, shape.data() + shape.size()); }
int Parameter::whole_count() const { return product(part.shape.data(), part.shape.data() + part.shape.size()); }

// ---- layers and losses ---------------------------------------------------------------------------------------------

int Layer::count() const {
  int count = 0;
  for (const Parameter& p : parameters) count += p.count();
  return count;
}

void Layer::allocate(int, cudaStream_t) {}

void Layer::bind(Real* values, Real* grads) { bind_parameters(parameters, values, grads); }

const Real* Layer::forward_position(const Blas&, const void*, int, Saved&) {
  fail(kFailed, "layer %s has no forward_position()", name.c_str());
}

void Loss::add_correct(const Blas&, const Real*, const void*, int, int, float*, float*) const {
  fail(kFailed, "this model does not count right answers");
}

// ---- the network ---------------------------------------------------------------------------------------------------

std::vector<std::int64_t> Network::counts() const {
  std::vector<std::int64_t> counts;
  for (const auto& layer : layers) {
    std::int64_t& count = counts.emplace_back(0);
    for (const Parameter& p : layer->parameters) count += p.whole_count();
  }
  return counts;
}

std::string layers_of(const Options& options, const Network& network) {
  const std::string layers = std::to_string(network.depth()) + " layers";
  if (options.model == ModelKind::alexnet) return "--model is 'alexnet', " + layers;
  if (options.model == ModelKind::mlp) return "--layers is '" + options.layers_text() + "', " + layers;
  return "--blocks is '" + std::to_string(options.gpt.blocks) + "', which makes " + layers;
}

// ---- the model -----------------------------------------------------------------------------------------------------

Model::Model(const Network& network, int max_samples, cudaStream_t stream, LayerRange range, Storage storage)
    : network_(network),
      first_(range.first),
      max_samples_(max_samples),
      rounds_x_(kMixedPrecision && range.first == 0 && network.text == nullptr),
      blas_(stream),
      scratch_(std::max(1, max_samples * network.loss->scratch()), Memory::data) {
  int widest = 0, rows = 0;
  for (int i = range.first; i < range.last; ++i) {
    Layer& layer = *layers_.emplace_back(network.layers[i]);
    extents_.push_back({count_, layer.count()});
    count_ += layer.count();
    widest = std::max(widest, layer.widest());
    rows = std::max(rows, layer.rows());
    layer.allocate(max_samples, stream);
    parameters_.insert(parameters_.end(), layer.parameters.begin(), layer.parameters.end());
  }
  for (auto& gradient : gradients_) gradient = DeviceBuffer<Real>(max_samples * widest, Memory::activations);
  ones_ = DeviceBuffer<Real>(max_samples * rows, Memory::data);
  launch(fill, max_samples * rows, stream, ones_.data(), 1.0f, max_samples * rows);
  if (storage == Storage::own) {
    own_values_ = DeviceBuffer<Real>(count_, Memory::parameters);
    own_grads_ = DeviceBuffer<Real>(count_, Memory::gradients);
  }
  bind(own_values_.data(), own_grads_.data());
}

void Model::bind(Real* values, Real* grads) {
  values_ = values;
  grads_ = grads;
  bind_parameters(parameters_, values, grads);
  for (int i = 0; i < depth(); ++i) {
    layers_[i]->bind(behind(values, extents_[i].offset), behind(grads, extents_[i].offset));
  }
}

std::vector<float> Model::initial_values(std::uint64_t seed) const {
  Generator generator(seed);
  std::vector<float> values;
  for (int i = 0; i < first_ + depth(); ++i) {
    const std::vector<float> layer = network_.layers[i]->initial_values(generator);
    if (i >= first_) values.insert(values.end(), layer.begin(), layer.end());
  }
  return values;
}

void Model::initialize(std::uint64_t seed) {
  const std::vector<float> drawn = initial_values(seed);
  const std::vector<Real> values(drawn.begin(), drawn.end());
  CUDA_CHECK(cudaMemcpyAsync(values_, values.data(), count_ * sizeof(Real), cudaMemcpyHostToDevice, blas_.stream()));
  CUDA_CHECK(cudaStreamSynchronize(blas_.stream()));
}

Activations Model::make_activations() const {
  Activations activations;
  if (rounds_x_) activations.x = DeviceBuffer<Real>(max_samples_ * input_size(), Memory::data);
  for (const auto& layer : layers_) {
    Saved& saved = activations.layers.emplace_back();
    for (int size : layer->saved())  // not in a helper: error messages name the line that allocated a buffer
      saved.buffers.emplace_back(DeviceBuffer<Real>(max_samples_ * size, Memory::activations));
  }
  return activations;
}

const Real* Model::forward(const Batch& batch, Activations& activations) {
  const void* x = batch.x;
  activations.samples = batch.samples;
  if (rounds_x_) {
    const int count = batch.samples * input_size();
    launch(to_reals, count, blas_.stream(), activations.x.data(), static_cast<const float*>(x), count);
    x = activations.x.data();
  }
  for (int i = 0; i < depth(); ++i) {
    Saved& saved = activations.layers[i];
    saved.x = x;
    saved.batch = batch;
    x = activations.output = layers_[i]->forward(blas_, x, batch.samples, saved);
  }
  return activations.output;
}

const Real* Model::forward_position(const void* x, int position, Activations& activations) {
  for (int i = 0; i < depth(); ++i) {
    x = layers_[i]->forward_position(blas_, x, position, activations.layers[i]);
  }
  return static_cast<const Real*>(x);
}

void Model::loss(const Activations& activations, const void* y, int samples_of_step, float* loss) {
  network_.loss->add(blas_, activations.output, y, activations.samples, samples_of_step, loss, output_gradient(),
                     scratch_.data());
  if (float* correct = activations.layers.back().batch.correct; correct != nullptr) {
    network_.loss->add_correct(blas_, activations.output, y, activations.samples, samples_of_step, correct,
                               scratch_.data());
  }
}

void Model::backward(const Activations& activations, bool accumulate, const std::function<void(int)>& ready, Real* dx) {
  go_back(activations, accumulate, /*later=*/nullptr, ready, dx);
}

void Model::backward(const Activations& activations, bool accumulate, DeferredWeights& later, Real* dx) {
  go_back(activations, accumulate, &later, {}, dx);
}

void Model::backward(DeferredWeights& later, bool accumulate, const std::function<void(int)>& ready) {
  for (int i = depth() - 1; i >= 0; --i) {
    later.compute(i, accumulate ? 1.0f : 0.0f);
    if (ready) ready(i);
  }
  later.clear();
}

DeferredWeights Model::make_deferred() const {
  std::size_t room = 0;
  for (const auto& layer : layers_) room += static_cast<std::size_t>(max_samples_) * layer->deferred();
  return {depth(), room};
}

void Model::go_back(const Activations& activations, bool accumulate, DeferredWeights* later,
                    const std::function<void(int)>& ready, Real* dx) {
  Real *dy = gradients_[0].data(), *spare = gradients_[1].data();
  for (int i = depth() - 1; i >= 0; --i) {
    const bool bottom = i == 0;
    if (later != nullptr) later->begin_layer(i);
    const Real* below = layers_[i]->backward(
        activations.layers[i], {blas_, ones_.data(), activations.samples, accumulate ? 1.0f : 0.0f, dy, spare,
                                bottom ? dx : nullptr, !bottom || dx != nullptr, later});
    if (below == spare) std::swap(dy, spare);
    if (ready) ready(i);
  }
}

// ---- checkpoints and records ---------------------------------------------------------------------------------------

std::vector<TensorPart> parts_of(const std::vector<Parameter>& parameters, float* weights) {
  std::vector<TensorPart> parts;
  for (const Parameter& p : parameters) {
    parts.push_back(p.part);
    parts.back().values = weights;
    if (weights != nullptr) weights += p.count();
  }
  return parts;
}

std::vector<TensorPart> parts_of(const Model& model, float* weights) { return parts_of(model.parameters(), weights); }

void record_whole(int replica, const Parameter& p, const Real* values, cudaStream_t stream) {
  if (const float* floats = as_floats_or_null(values))
    return record_parameter(replica, p.name, floats, p.part.shape, stream);
  const DeviceBuffer<float> floats(p.whole_count(), Memory::data);
  launch(to_floats, p.whole_count(), stream, floats.data(), values, p.whole_count());
  record_parameter(replica, p.name, floats.data(), p.part.shape, stream);
}

void record_parameters(const Model& model, int replica, cudaStream_t stream) {
  for (const Parameter& p : model.parameters()) record_whole(replica, p, p.value, stream);
}

}  // namespace workshop
