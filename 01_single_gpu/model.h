// SPDX-License-Identifier: Apache-2.0
// A model as the strategies see it: layers one after the other, each with its parameters, forward and backward.
//
// Data, model, pipeline and fully sharded parallelism cut, copy and shard layers without knowing what they compute. A
// new kind of model is a new Layer, and a line in models.cu.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "blas.h"
#include "common/checkpoint.h"
#include "common/device.h"
#include "common/random.h"
#include "common/record.h"
#include "common/training.h"
#include "elementwise.h"
#include "precision.h"

namespace workshop {

// ---- parameters ----------------------------------------------------------------------------------------------------

// One parameter, as this rank holds it.
struct Parameter {
  Parameter() = default;
  Parameter(const std::string& name, const std::vector<int>& shape)
      : name(name), shape(shape), part(whole_tensor(name, shape, nullptr)) {}

  std::string name;                        // PyTorch's, such as "0.weight"
  std::vector<int> shape;                  // of what is held: [rows, columns] or [rows]
  Real *value = nullptr, *grad = nullptr;  // [rows(), columns()]
  TensorPart part{};  // which elements of the model's parameter these are: all of them, unless a layer holds a part

  int rows() const { return shape[0]; }
  int columns() const { return std::accumulate(shape.begin() + 1, shape.end(), 1, std::multiplies()); }
  int count() const { return rows() * columns(); }
  int whole_count() const { return std::accumulate(part.shape.begin(), part.shape.end(), 1, std::multiplies()); }
};

// ---- one layer -----------------------------------------------------------------------------------------------------

// What a layer's forward pass leaves for its backward pass. Not a part of the layer: a pipeline has several batches
// under way at a time.
struct Saved {
  const void* x = nullptr;  // the layer's input, held elsewhere
  Batch batch;              // which samples these are
  std::vector<DeviceBuffer<Real>> buffers;
};

// What a layer's backward pass works with.
struct Gradients {
  const Blas& blas;
  const Real* ones;  // as many as Layer::rows() of a full batch
  int samples;
  float accumulate;  // 1: add to the gradients of the parameters; 0: overwrite them
  Real* dy;          // the gradient of the layer's output, which may be overwritten
  Real* spare;       // room for as many floats
  Real* dx;          // where the gradient of the input must go; null: to dy or spare
  bool needs_dx;     // false: the input is the data, and its gradient is not asked for
};

// A unit of cutting: a linear layer with its activation, a pair of them, an attention block. Sizes are in floats per
// sample; x and y are [samples, in] and [samples, out].
class Layer {
 public:
  Layer(std::string name, int in, int out) : name(std::move(name)), in(in), out(out) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string name;
  const int in, out;
  std::vector<Parameter> parameters;  // in the order in which they lie in memory

  int count() const {  // floats of the parameters, as far as this rank holds them
    int count = 0;
    for (const Parameter& p : parameters) count += p.count();
    return count;
  }

  // The initial values of what this rank holds, [count()]. Draws the whole parameters, as PyTorch does.
  virtual std::vector<float> initial_values(Generator& generator) const = 0;
  // Floats per sample of each buffer in Saved.
  virtual std::vector<int> saved() const = 0;
  // Floats per sample of the largest gradient on its way through the layer.
  virtual int widest() const { return out; }
  // Rows per sample of the layer's matrices.
  virtual int rows() const { return 1; }
  // Takes what memory the layer needs beside its parameters and Saved, once, for batches of at most so many samples.
  virtual void allocate([[maybe_unused]] int max_samples, [[maybe_unused]] cudaStream_t stream) {}
  // Works with parameters and gradients that lie here from now on, count() floats each.
  virtual void bind(Real* values, Real* grads) {
    int offset = 0;
    for (Parameter& p : parameters) {
      p.value = values == nullptr ? nullptr : values + offset;
      p.grad = grads == nullptr ? nullptr : grads + offset;
      offset += p.count();
    }
  }

  // Returns the output, which is in `saved` and stays valid with it.
  virtual const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) = 0;
  // The gradients of the parameters. Returns where that of the input is; null if it is not needed.
  virtual Real* backward(const Saved& saved, const Gradients& gradients) = 0;

  // For a model that writes: the output at this position of a single sample, of which `saved` has the positions before.
  virtual const Real* forward_position([[maybe_unused]] const Blas& blas, [[maybe_unused]] const void* x,
                                       [[maybe_unused]] int position, [[maybe_unused]] Saved& saved) {
    fail(kFailed, "layer %s knows no positions", name.c_str());
  }
};

// The end of a model: compares the output with the targets.
class Loss {
 public:
  virtual ~Loss() = default;
  // Floats per sample that add() needs as scratch, one at least in all.
  virtual int scratch() const { return 0; }
  // Adds this batch's share of the mean over `samples_of_step` samples to *loss, and writes the gradient of that by the
  // output to gradient[samples, out]. `scratch` is one float on the device.
  virtual void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
                   Real* gradient, float* scratch) const = 0;
  // Adds the number of samples with the right answer, over `samples_of_step`, to *correct: of a model that chooses one
  // of several answers.
  virtual void add_correct([[maybe_unused]] const Blas& blas, [[maybe_unused]] const Real* output,
                           [[maybe_unused]] const void* y, [[maybe_unused]] int samples,
                           [[maybe_unused]] int samples_of_step, [[maybe_unused]] float* correct,
                           [[maybe_unused]] float* scratch) const {
    fail(kFailed, "this model knows no right answers");
  }
};

// All layers of a model, as every rank knows them, with no memory on the device yet.
struct Network {
  std::vector<std::shared_ptr<Layer>> layers;
  std::shared_ptr<const Loss> loss;
  std::shared_ptr<TokenDataset> text = nullptr;          // that it is trained on, if any
  std::vector<std::string> vocabulary = {};              // of the text
  double best_test_loss = 0;                             // that any model can reach on it; 0: unknown
  double operations = 0;                                 // of the matrix products for a token, forward and backward
  std::shared_ptr<const ImageDataset> images = nullptr;  // that it is trained on, if any

  DataSource data() const { return {input_size(), output_size(), text, operations, best_test_loss, images}; }
  int depth() const { return static_cast<int>(layers.size()); }
  int input_size() const { return layers.front()->in; }   // floats per sample
  int output_size() const { return layers.back()->out; }  // likewise
  // Of the parameters of each layer, whole: so all ranks of a tensor-parallel group cut the network at the same places.
  std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> counts;
    for (const auto& layer : layers) {
      std::int64_t& count = counts.emplace_back(0);
      for (const Parameter& p : layer->parameters) count += p.whole_count();
    }
    return counts;
  }
};

// "--layers is '6,4,2', 2 layers": how a line begins that says what is wrong with their number.
inline std::string layers_of(const Options& options, const Network& network) {
  const std::string layers = std::to_string(network.depth()) + " layers";
  if (options.model == ModelKind::alexnet) return "--model is 'alexnet', " + layers;
  if (options.model == ModelKind::mlp) return "--layers is '" + options.layers_text() + "', " + layers;
  return "--blocks is '" + std::to_string(options.gpt.blocks) + "', which makes " + layers;
}

// ---- the model -----------------------------------------------------------------------------------------------------

// What the forward pass of one batch leaves for its backward pass.
struct Activations {
  int samples = 0;
  const Real* output = nullptr;
  std::vector<Saved> layers;
  DeviceBuffer<Real> x;  // with mixed precision: the samples, where they are floats
};

// Floats in a model's flat arrays, [offset, offset + count).
struct Extent {
  int offset, count;
};

// Layers [first, last) of a network.
struct LayerRange {
  int first, last;
};

// Where a model's parameters and gradients are: in memory of its own, or where bind() says.
enum class Storage { own, bound };

// The layers of a network that a rank holds, with their memory. All parameters lie one after the other in one flat
// array, layer by layer, and the gradients in another: an optimizer is one launch, and a bucket of gradients is a
// range.
class Model {
 public:
  // For batches of at most `max_samples` samples. A layer of a network is held by one model of a process.
  Model(const Network& network, int max_samples, cudaStream_t stream)
      : Model(network, max_samples, stream, {0, network.depth()}) {}
  Model(const Network& network, int max_samples, cudaStream_t stream, LayerRange range, Storage storage = Storage::own)
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
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // ---- parameters ----
  const std::vector<Extent>& layers() const { return extents_; }  // where the parameters of each layer lie
  const std::vector<Parameter>& parameters() const { return parameters_; }
  Real* values() const { return values_; }  // [count()]
  Real* grads() const { return grads_; }    // [count()]
  int count() const { return count_; }

  // Has the model work with parameters and gradients that lie here from now on, count() floats each. Work that is
  // enqueued already goes on with the old ones.
  void bind(Real* values, Real* grads) {
    values_ = values;
    grads_ = grads;
    int offset = 0;
    for (Parameter& p : parameters_) {
      p.value = values == nullptr ? nullptr : values + offset;
      p.grad = grads == nullptr ? nullptr : grads + offset;
      offset += p.count();
    }
    for (int i = 0; i < depth(); ++i) {
      const int first = extents_[i].offset;
      layers_[i]->bind(values == nullptr ? nullptr : values + first, grads == nullptr ? nullptr : grads + first);
    }
  }

  // PyTorch's initial values for this seed of its default generator, [count()]: drawn for the whole network, so that it
  // is the same one however it is cut.
  std::vector<float> initial_values(std::uint64_t seed) const {
    Generator generator(seed);
    std::vector<float> values;
    for (int i = 0; i < first_ + depth(); ++i) {
      const std::vector<float> layer = network_.layers[i]->initial_values(generator);
      if (i >= first_) values.insert(values.end(), layer.begin(), layer.end());
    }
    return values;
  }

  // Gives the parameters their initial values. Waits for the stream.
  void initialize(std::uint64_t seed) {
    const std::vector<float> drawn = initial_values(seed);
    const std::vector<Real> values(drawn.begin(), drawn.end());
    CUDA_CHECK(cudaMemcpyAsync(values_, values.data(), count_ * sizeof(Real), cudaMemcpyHostToDevice, blas_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(blas_.stream()));
  }

  // ---- one batch ----
  int depth() const { return static_cast<int>(layers_.size()); }  // layers held
  int input_size() const { return layers_.front()->in; }          // floats per sample
  int output_size() const { return layers_.back()->out; }         // likewise

  Activations make_activations() const {
    Activations activations;
    if (rounds_x_) activations.x = DeviceBuffer<Real>(max_samples_ * input_size(), Memory::data);
    for (const auto& layer : layers_) {
      Saved& saved = activations.layers.emplace_back();
      for (int size : layer->saved())  // made here: messages name the line that has allocated something
        saved.buffers.emplace_back(DeviceBuffer<Real>(max_samples_ * size, Memory::activations));
    }
    return activations;
  }

  // The output [samples, output_size()] for batch.x, kept in `activations` with all that backward() needs. batch.x is
  // [samples, input_size()], or what else the first layer reads.
  const Real* forward(const Batch& batch, Activations& activations) {
    const void* x = batch.x;
    activations.samples = batch.samples;
    if (rounds_x_) x = as_reals(x, activations.x, batch.samples * input_size(), blas_.stream());
    for (int i = 0; i < depth(); ++i) {
      Saved& saved = activations.layers[i];
      saved.x = x;
      saved.batch = batch;
      x = activations.output = layers_[i]->forward(blas_, x, batch.samples, saved);
    }
    return activations.output;
  }

  // The output at one more position of a sample, of which `activations` has the positions before.
  const Real* forward_position(const void* x, int position, Activations& activations) {
    for (int i = 0; i < depth(); ++i) {
      x = layers_[i]->forward_position(blas_, x, position, activations.layers[i]);
    }
    return static_cast<const Real*>(x);
  }

  // Adds this batch's share of the mean over `samples_of_step` samples to *loss, and writes the gradient of that by the
  // output to output_gradient(). For a model that holds the network's last layer.
  void loss(const Activations& activations, const void* y, int samples_of_step, float* loss) {
    network_.loss->add(blas_, activations.output, y, activations.samples, samples_of_step, loss, output_gradient(),
                       scratch_.data());
    if (float* correct = activations.layers.back().batch.correct; correct != nullptr) {
      network_.loss->add_correct(blas_, activations.output, y, activations.samples, samples_of_step, correct,
                                 scratch_.data());
    }
  }

  // The gradients of all parameters from output_gradient(), from the last layer down to the first, and that of x in
  // dx[samples, input_size()] unless it is null. `accumulate` adds to the parameters' gradients that are there. Calls
  // ready(i) as soon as the work for the gradients of layer i is enqueued.
  void backward(const Activations& activations, bool accumulate = false, const std::function<void(int)>& ready = {},
                Real* dx = nullptr) {
    Real *dy = gradients_[0].data(), *spare = gradients_[1].data();
    for (int i = depth() - 1; i >= 0; --i) {
      const bool bottom = i == 0;
      const Real* below = layers_[i]->backward(
          activations.layers[i], {blas_, ones_.data(), activations.samples, accumulate ? 1.0f : 0.0f, dy, spare,
                                  bottom ? dx : nullptr, !bottom || dx != nullptr});
      if (below == spare) std::swap(dy, spare);
      if (ready) ready(i);
    }
  }

  // The gradient of the output [samples, output_size()], for backward() to start from, which overwrites it.
  Real* output_gradient() { return gradients_[0].data(); }

 private:
  Network network_;
  std::vector<std::shared_ptr<Layer>> layers_;  // those held
  int first_;                                   // of them in the network
  int max_samples_;
  bool rounds_x_;  // to Reals, before the network's first layer
  Blas blas_;
  int count_ = 0;
  Real *values_ = nullptr, *grads_ = nullptr;
  DeviceBuffer<Real> own_values_, own_grads_, ones_;
  DeviceBuffer<float> scratch_;
  DeviceBuffer<Real> gradients_[2];  // on its way down: of this layer's output, of the one below
  std::vector<Extent> extents_;
  std::vector<Parameter> parameters_;
};

// ---- what is left of a training run --------------------------------------------------------------------------------

// What a checkpoint keeps of parameters that lie one after the other in float32, from `weights` on.
inline std::vector<TensorPart> parts_of(const std::vector<Parameter>& parameters, float* weights) {
  std::vector<TensorPart> parts;
  for (const Parameter& p : parameters) {
    parts.push_back(p.part);
    parts.back().values = weights;
    if (weights != nullptr) weights += p.count();
  }
  return parts;
}
inline std::vector<TensorPart> parts_of(const Model& model, float* weights) {
  return parts_of(model.parameters(), weights);
}

// Records a whole parameter, [p.whole_count()], as that of replica number `replica`.
inline void record_whole(int replica, const Parameter& p, const Real* values, cudaStream_t stream) {
  if (const float* floats = if_floats(values)) return record_parameter(replica, p.name, floats, p.part.shape, stream);
  const DeviceBuffer<float> floats(p.whole_count(), Memory::data);
  launch(to_floats, p.whole_count(), stream, floats.data(), values, p.whole_count());
  record_parameter(replica, p.name, floats.data(), p.part.shape, stream);
}

// Records the parameters of a model that holds them whole, as those of replica number `replica`.
inline void record_parameters(const Model& model, int replica, cudaStream_t stream) {
  for (const Parameter& p : model.parameters()) record_whole(replica, p, p.value, stream);
}

}  // namespace workshop
