// SPDX-License-Identifier: Apache-2.0
// A model as the strategies see it: a sequence of layers, each with parameters, a forward and a backward pass.
//
// Data, model, pipeline and fully sharded parallelism cut, copy and shard layers without knowing what they compute. To
// add a new kind of model, write a Layer and add a line to models.cu.
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

class DeferredWeights;
class Generator;
class Options;

// ---- parameters ----------------------------------------------------------------------------------------------------

// One parameter, as this rank holds it.
struct Parameter {
  Parameter() = default;
  Parameter(const std::string& name, const std::vector<int>& shape);

  std::string name;                        // as in PyTorch, such as "0.weight"
  std::vector<int> shape;                  // of the part held: [rows, columns] or [rows]
  Real *value = nullptr, *grad = nullptr;  // [rows(), columns()]
  TensorPart part{};  // which elements of the model's parameter are held: all, unless the layer is cut

  int rows() const { return shape[0]; }
  int columns() const;
  int count() const { return rows() * columns(); }
  int whole_count() const;  // elements of the model's parameter
};

// ---- one layer -----------------------------------------------------------------------------------------------------

// The data that a layer's forward pass leaves for its backward pass. It is not part of the layer, because a pipeline
// has several micro-batches in flight at a time.
struct Saved {
  const void* x = nullptr;  // the layer's input, held elsewhere
  Batch batch;              // which samples these are
  std::vector<DeviceBuffer<Real>> buffers;
  std::vector<int> numbers;  // on the host
};

// The arguments of a layer's backward pass.
struct Gradients {
  const Blas& blas;
  const Real* ones;  // ones, one per row of a full batch (Layer::rows())
  int samples;
  float accumulate;                  // 1: add to the gradients of the parameters; 0: overwrite them
  Real* dy;                          // the gradient of the layer's output; may be overwritten
  Real* spare;                       // scratch of the same size
  Real* dx;                          // where to write the gradient of the input; null: to dy or spare
  bool needs_dx;                     // false: the input is the data, whose gradient nobody needs
  DeferredWeights* later = nullptr;  // where linear layers leave the gradients of their weights; null: compute them now
};

// The smallest unit that a model is cut into: a linear layer with its activation, a pair of them, an attention block.
// Sizes are in floats per sample; x and y are [samples, in] and [samples, out].
class Layer {
 public:
  Layer(std::string name, int in, int out) : name(std::move(name)), in(in), out(out) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string name;
  const int in, out;
  std::vector<Parameter> parameters;  // in memory order

  int count() const;  // floats in the parameters that this rank holds

  // Returns the initial values of the parameters that this rank holds, [count()]. Draws values for the whole
  // parameters, in PyTorch's order, so that the generator's state does not depend on how the layer is cut.
  virtual std::vector<float> initial_values(Generator& generator) const = 0;
  // Returns the floats per sample of each buffer in Saved.
  virtual std::vector<int> saved() const = 0;
  // Returns the floats per sample of the largest gradient inside the layer.
  virtual int widest() const { return out; }
  // Returns the rows per sample of the layer's matrices.
  virtual int rows() const { return 1; }
  // Returns the floats per sample that backward() keeps in Gradients::later.
  virtual int deferred() const { return 0; }
  // Allocates the memory that the layer needs in addition to its parameters and Saved, for at most `max_samples`
  // samples. Called once.
  virtual void allocate(int max_samples, cudaStream_t stream);
  // Uses the parameters and gradients at these addresses from now on, count() floats each.
  virtual void bind(Real* values, Real* grads);

  // Returns the output. It lies in `saved` and is valid as long as `saved` is.
  virtual const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) = 0;
  // Computes the gradients of the parameters. Returns the address of the gradient of the input; null if not needed.
  virtual Real* backward(const Saved& saved, const Gradients& gradients) = 0;

  // For generating text: returns the output at one position of a single sample. `saved` holds the earlier positions.
  virtual const Real* forward_position(const Blas& blas, const void* x, int position, Saved& saved);
};

// The loss at the end of a model: compares the output with the targets.
class Loss {
 public:
  virtual ~Loss() = default;
  // Returns the floats per sample that add() needs as scratch. Even if this is 0, Model provides at least one float.
  virtual int scratch() const { return 0; }
  // Adds this batch's share of the mean loss over `samples_of_step` samples to *loss, and writes the gradient of that
  // share with respect to the output to gradient[samples, out]. `scratch` is on the device, as large as scratch() says.
  virtual void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
                   Real* gradient, float* scratch) const = 0;
  // Adds the number of samples with the right answer, divided by `samples_of_step`, to *correct. Only for models that
  // choose one of several answers.
  virtual void add_correct(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step,
                           float* correct, float* scratch) const;
};

// All layers of a model, the same on every rank, without memory on the device.
struct Network {
  std::vector<std::shared_ptr<Layer>> layers;
  std::shared_ptr<const Loss> loss;
  std::shared_ptr<TokenDataset> text = nullptr;          // the training text, if any
  std::vector<std::string> vocabulary = {};              // of the text
  double best_test_loss = 0;                             // the lowest that any model can reach on the text; 0: unknown
  double operations = 0;                                 // of the matrix products per token, forward and backward
  std::shared_ptr<const ImageDataset> images = nullptr;  // the training images, if any

  DataSource data() const { return {input_size(), output_size(), text, operations, best_test_loss, images}; }
  int depth() const { return static_cast<int>(layers.size()); }
  int input_size() const { return layers.front()->in; }   // floats per sample
  int output_size() const { return layers.back()->out; }  // floats per sample
  // Returns the number of elements in each layer's whole parameters, not just in the parts held. It is the same on
  // every rank, so all ranks of a tensor-parallel group cut the network at the same places.
  std::vector<std::int64_t> counts() const;
};

// Returns the start of an error message about the number of layers, such as "--layers is '6,4,2', 2 layers".
std::string layers_of(const Options& options, const Network& network);

// ---- the model -----------------------------------------------------------------------------------------------------

// The data that the forward pass of one batch leaves for its backward pass.
struct Activations {
  int samples = 0;
  const Real* output = nullptr;
  std::vector<Saved> layers;
  DeviceBuffer<Real> x;  // only with mixed precision and samples of floats: the samples, rounded to Reals
};

// The range [offset, offset + count) of a model's flat arrays.
struct Extent {
  int offset, count;
};

// Layers [first, last) of a network.
struct LayerRange {
  int first, last;
};

// Where a model's parameters and gradients lie: in its own memory, or where bind() puts them.
enum class Storage { own, bound };

// The layers of a network that a rank holds, with their memory. All parameters lie in one flat array, layer by layer,
// and all gradients in a second one: an optimizer is a single launch, and a bucket of gradients is a range.
class Model {
 public:
  // For batches of at most `max_samples` samples. Only one Model of a process may hold a given layer.
  Model(const Network& network, int max_samples, cudaStream_t stream)
      : Model(network, max_samples, stream, {0, network.depth()}) {}
  Model(const Network& network, int max_samples, cudaStream_t stream, LayerRange range, Storage storage = Storage::own);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // ---- parameters ----
  const std::vector<Extent>& layers() const { return extents_; }  // the range of each layer's parameters
  const std::vector<Parameter>& parameters() const { return parameters_; }
  Real* values() const { return values_; }  // [count()]
  Real* grads() const { return grads_; }    // [count()]
  int count() const { return count_; }

  // Makes the model use the parameters and gradients at these addresses from now on, count() floats each. Work that is
  // already enqueued still uses the old ones.
  void bind(Real* values, Real* grads);

  // Returns PyTorch's initial values for this seed of its default generator, [count()]. Draws them for the whole
  // network, so that they do not depend on how it is cut.
  std::vector<float> initial_values(std::uint64_t seed) const;
  // Sets the parameters to their initial values. Waits for the stream.
  void initialize(std::uint64_t seed);

  // ---- one batch ----
  int depth() const { return static_cast<int>(layers_.size()); }  // layers held
  int input_size() const { return layers_.front()->in; }          // floats per sample
  int output_size() const { return layers_.back()->out; }         // floats per sample

  Activations make_activations() const;

  // Returns the output [samples, output_size()] for batch.x. Keeps it in `activations`, with everything that backward()
  // needs. batch.x is [samples, input_size()], or whatever else the first layer reads, such as tokens.
  const Real* forward(const Batch& batch, Activations& activations);
  // Returns the output at one more position of a sample. `activations` holds the earlier positions.
  const Real* forward_position(const void* x, int position, Activations& activations);

  // Adds this batch's share of the mean loss over `samples_of_step` samples to *loss, and writes the gradient of that
  // share with respect to the output to output_gradient(). Only for a model that holds the network's last layer.
  void loss(const Activations& activations, const void* y, int samples_of_step, float* loss);

  // Starting from output_gradient(), computes the gradients of all parameters, last layer first, and writes the
  // gradient of x to dx[samples, input_size()] unless dx is null. With `accumulate`, adds to the parameters' gradients
  // instead of overwriting them. Calls ready(i) as soon as the work for the gradients of layer i is enqueued.
  void backward(const Activations& activations, bool accumulate = false, const std::function<void(int)>& ready = {},
                Real* dx = nullptr);

  // The same in two parts, for a zero-bubble pipeline. The first computes the gradient of x and what is cheap, and
  // leaves the gradients of the linear layers' parameters in `later`, which make_deferred() has made. Until the second
  // part, the activations and x must stay as they are.
  void backward(const Activations& activations, bool accumulate, DeferredWeights& later, Real* dx);
  // The second part: computes what is left, last layer first, and empties `later`.
  void backward(DeferredWeights& later, bool accumulate, const std::function<void(int)>& ready = {});
  DeferredWeights make_deferred() const;

  // The gradient of the output, [samples, output_size()]. backward() starts from it and overwrites it.
  Real* output_gradient() { return gradients_[0].data(); }

 private:
  void go_back(const Activations& activations, bool accumulate, DeferredWeights* later,
               const std::function<void(int)>& ready, Real* dx);

  Network network_;
  std::vector<std::shared_ptr<Layer>> layers_;  // the layers held
  int first_;                                   // index of the first of them in the network
  int max_samples_;
  bool rounds_x_;  // the input consists of floats, to be rounded to Reals before the network's first layer
  Blas blas_;
  int count_ = 0;
  Real *values_ = nullptr, *grads_ = nullptr;
  DeviceBuffer<Real> own_values_, own_grads_, ones_;
  DeviceBuffer<float> scratch_;
  DeviceBuffer<Real> gradients_[2];  // during backward(): of the current layer's output and of its input
  std::vector<Extent> extents_;
  std::vector<Parameter> parameters_;
};

// ---- checkpoints and records ---------------------------------------------------------------------------------------

// Returns the parts that a checkpoint saves for these parameters, whose float32 values lie one after the other at
// `weights`.
std::vector<TensorPart> parts_of(const std::vector<Parameter>& parameters, float* weights);
std::vector<TensorPart> parts_of(const Model& model, float* weights);

// Records a whole parameter, [p.whole_count()], as that of replica `replica`.
void record_whole(int replica, const Parameter& p, const Real* values, cudaStream_t stream);

// Records the parameters of a model that holds them whole, as those of replica `replica`.
void record_parameters(const Model& model, int replica, cudaStream_t stream);

}  // namespace workshop
