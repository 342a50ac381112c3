// SPDX-License-Identifier: Apache-2.0
// A model as the strategies see it: layers one after the other, each with its parameters, forward and backward.
//
// Data, model, pipeline and fully sharded parallelism cut, copy and shard layers without knowing what they compute. A
// new kind of model is a new Layer, and a line in models.cu.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/parts.h"
#include "common/data/batch.h"
#include "common/data/data_source.h"
#include "common/device/device.h"
#include "model/blas.h"
#include "model/precision.h"

namespace workshop {

class Generator;
class Options;

// ---- parameters ----------------------------------------------------------------------------------------------------

// One parameter, as this rank holds it.
struct Parameter {
  Parameter() = default;
  Parameter(const std::string& name, const std::vector<int>& shape);

  std::string name;                        // PyTorch's, such as "0.weight"
  std::vector<int> shape;                  // of what is held: [rows, columns] or [rows]
  Real *value = nullptr, *grad = nullptr;  // [rows(), columns()]
  TensorPart part{};  // which elements of the model's parameter these are: all of them, unless a layer holds a part

  int rows() const { return shape[0]; }
  int columns() const;
  int count() const { return rows() * columns(); }
  int whole_count() const;  // of the model's parameter
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

  int count() const;  // floats of the parameters, as far as this rank holds them

  // The initial values of what this rank holds, [count()]. Draws the whole parameters, as PyTorch does.
  virtual std::vector<float> initial_values(Generator& generator) const = 0;
  // Floats per sample of each buffer in Saved.
  virtual std::vector<int> saved() const = 0;
  // Floats per sample of the largest gradient on its way through the layer.
  virtual int widest() const { return out; }
  // Rows per sample of the layer's matrices.
  virtual int rows() const { return 1; }
  // Takes what memory the layer needs beside its parameters and Saved, once, for batches of at most so many samples.
  virtual void allocate(int max_samples, cudaStream_t stream);
  // Works with parameters and gradients that lie here from now on, count() floats each.
  virtual void bind(Real* values, Real* grads);

  // Returns the output, which is in `saved` and stays valid with it.
  virtual const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) = 0;
  // The gradients of the parameters. Returns where that of the input is; null if it is not needed.
  virtual Real* backward(const Saved& saved, const Gradients& gradients) = 0;

  // For a model that writes: the output at this position of a single sample, of which `saved` has the positions before.
  virtual const Real* forward_position(const Blas& blas, const void* x, int position, Saved& saved);
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
  virtual void add_correct(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step,
                           float* correct, float* scratch) const;
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
  std::vector<std::int64_t> counts() const;
};

// "--layers is '6,4,2', 2 layers": how a line begins that says what is wrong with their number.
std::string layers_of(const Options& options, const Network& network);

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
  Model(const Network& network, int max_samples, cudaStream_t stream, LayerRange range, Storage storage = Storage::own);
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
  void bind(Real* values, Real* grads);

  // PyTorch's initial values for this seed of its default generator, [count()]: drawn for the whole network, so that it
  // is the same one however it is cut.
  std::vector<float> initial_values(std::uint64_t seed) const;
  // Gives the parameters their initial values. Waits for the stream.
  void initialize(std::uint64_t seed);

  // ---- one batch ----
  int depth() const { return static_cast<int>(layers_.size()); }  // layers held
  int input_size() const { return layers_.front()->in; }          // floats per sample
  int output_size() const { return layers_.back()->out; }         // likewise

  Activations make_activations() const;

  // The output [samples, output_size()] for batch.x, kept in `activations` with all that backward() needs. batch.x is
  // [samples, input_size()], or what else the first layer reads.
  const Real* forward(const Batch& batch, Activations& activations);
  // The output at one more position of a sample, of which `activations` has the positions before.
  const Real* forward_position(const void* x, int position, Activations& activations);

  // Adds this batch's share of the mean over `samples_of_step` samples to *loss, and writes the gradient of that by the
  // output to output_gradient(). For a model that holds the network's last layer.
  void loss(const Activations& activations, const void* y, int samples_of_step, float* loss);

  // The gradients of all parameters from output_gradient(), from the last layer down to the first, and that of x in
  // dx[samples, input_size()] unless it is null. `accumulate` adds to the parameters' gradients that are there. Calls
  // ready(i) as soon as the work for the gradients of layer i is enqueued.
  void backward(const Activations& activations, bool accumulate = false, const std::function<void(int)>& ready = {},
                Real* dx = nullptr);

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
std::vector<TensorPart> parts_of(const std::vector<Parameter>& parameters, float* weights);
std::vector<TensorPart> parts_of(const Model& model, float* weights);

// Records a whole parameter, [p.whole_count()], as that of replica number `replica`.
void record_whole(int replica, const Parameter& p, const Real* values, cudaStream_t stream);

// Records the parameters of a model that holds them whole, as those of replica number `replica`.
void record_parameters(const Model& model, int replica, cudaStream_t stream);

}  // namespace workshop
