// A multilayer perceptron by hand: forward, loss, backward and update on cuBLAS and a few small kernels.
// Every later chapter cuts, copies or shards what is defined here.
//
// Matrices are row-major, as in C++ and PyTorch: an activation is [rows, width], one row a sample; a weight is
// [out, in], as nn.Linear keeps it, so that y = x Wᵀ + b. README.md derives every line of the backward pass.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "common/device.h"
#include "common/options.h"
#include "common/random.h"
#include "common/record.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// y[rows, cols] += bias[cols], the same bias for every row.
__global__ void add_bias(float* y, const float* bias, int rows, int cols) {
  for (int i : grid_stride(rows * cols)) y[i] += bias[i % cols];
}

__global__ void relu_forward(float* a, const float* z, int n) {
  for (int i : grid_stride(n)) a[i] = z[i] > 0 ? z[i] : 0;
}

// dz = da · relu'(z); dz may be da.
__global__ void relu_backward(float* dz, const float* da, const float* z, int n) {
  for (int i : grid_stride(n)) dz[i] = z[i] > 0 ? da[i] : 0;
}

// The exact GELU, z·Φ(z) with the normal distribution Φ (Hendrycks and Gimpel, 2016); not the tanh approximation.
__global__ void gelu_forward(float* a, const float* z, int n) {
  for (int i : grid_stride(n)) a[i] = 0.5f * z[i] * (1.0f + erff(z[i] * 0.70710678f));
}

// gelu'(z) = Φ(z) + z·φ(z)
__global__ void gelu_backward(float* dz, const float* da, const float* z, int n) {
  for (int i : grid_stride(n)) {
    const float cdf = 0.5f * (1.0f + erff(z[i] * 0.70710678f));
    const float pdf = 0.39894228f * expf(-0.5f * z[i] * z[i]);
    dz[i] = da[i] * (cdf + z[i] * pdf);
  }
}

__global__ void subtract(float* difference, const float* a, const float* b, int n) {
  for (int i : grid_stride(n)) difference[i] = a[i] - b[i];
}

__global__ void add_scaled(float* y, const float* x, float factor, int n) {
  for (int i : grid_stride(n)) y[i] += factor * x[i];
}

__global__ void fill(float* y, float value, int n) {
  for (int i : grid_stride(n)) y[i] = value;
}

// The optimizers' arithmetic is also there for the host: chapter 06 updates what it keeps in host memory.
__host__ __device__ inline void sgd_value(float& value, float grad, float lr, float weight_decay) {
  value -= lr * (grad + weight_decay * value);
}

__global__ void sgd(float* value, const float* grad, float lr, float weight_decay, int n) {
  for (int i : grid_stride(n)) sgd_value(value[i], grad[i], lr, weight_decay);
}

// What AdamW needs to know of step t = 1, 2, …
struct AdamWStep {
  float decay;            // 1 - lr·λ
  float beta1, beta2;     // of the running means
  float step_size;        // lr / (1 - β₁ᵗ)
  float root_correction;  // √(1 - β₂ᵗ)
  float epsilon;
};

inline AdamWStep adamw_step(double lr, double weight_decay, int t) {
  AdamWStep s{};
  // TODO 01.8: Fill in what AdamW needs to know of step number t.
  //   β₁ = 0.9, β₂ = 0.999, ε = 1e-8 are PyTorch's defaults. Why are the running means too small at first, and by
  //   which factors? Compute in double.
  todo("01.8");
  // END TODO 01.8
  return s;
}

// Decoupled weight decay (Loshchilov and Hutter, 2019), in PyTorch's order of operations.
__host__ __device__ inline void adamw_value(float& value, float grad, float& mean, float& square, const AdamWStep& s) {
  mean += (1.0f - s.beta1) * (grad - mean);
  square = s.beta2 * square + (1.0f - s.beta2) * grad * grad;
  const float denominator = sqrtf(square) / s.root_correction + s.epsilon;
  value = value * s.decay - s.step_size * mean / denominator;
}

__global__ void adamw(float* value, const float* grad, float* mean, float* square, AdamWStep s, int n) {
  for (int i : grid_stride(n)) adamw_value(value[i], grad[i], mean[i], square[i], s);
}

// ---- matrices ------------------------------------------------------------------------------------------------------

enum class Op { as_is, transposed };

// C[m, n] = op(A)[m, k] · op(B)[k, n] + beta·C, all row-major; beta is 0 or 1.
//
// cuBLAS is column-major: what it reads from a row-major matrix is the transpose. So it is asked for the transposed
// product Cᵀ = op(B)ᵀ · op(A)ᵀ: the operands change places, m and n too, and what it writes is the C that we want.
inline void gemm(cublasHandle_t blas, Op op_a, Op op_b, int m, int n, int k, const float* A, const float* B, float beta,
                 float* C) {
  const float one = 1.0f;
  const auto blas_op = [](Op op) { return op == Op::transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const int columns_a = op_a == Op::transposed ? m : k;
  const int columns_b = op_b == Op::transposed ? k : n;
  CUBLAS_CHECK(cublasSgemm(blas, blas_op(op_b), blas_op(op_a), n, m, k, &one, B, columns_b, A, columns_a, &beta, C, n));
}

// cuBLAS on one stream. All that work on a stream share a handle, because each handle has a workspace of its own on the
// device, of many megabytes, and nothing is gained by two where calls follow one after the other.
class Blas {
 public:
  explicit Blas(cudaStream_t stream) : handle_(handle_of(stream)), stream_(stream) {}
  operator cublasHandle_t() const { return handle_.get(); }
  cudaStream_t stream() const { return stream_; }

 private:
  using Handle = std::shared_ptr<std::remove_pointer_t<cublasHandle_t>>;

  static Handle handle_of(cudaStream_t stream) {
    static std::map<cudaStream_t, std::weak_ptr<Handle::element_type>> handles;
    Handle handle = handles[stream].lock();
    if (handle == nullptr) {
      cublasHandle_t created = nullptr;
      CUBLAS_CHECK(cublasCreate(&created));
      CUBLAS_CHECK(cublasSetStream(created, stream));
      handle.reset(created, cublasDestroy);
      handles[stream] = handle;
    }
    return handle;
  }

  Handle handle_;
  cudaStream_t stream_;
};

// ---- one layer -----------------------------------------------------------------------------------------------------

// y = x Wᵀ + b. Points into memory that somebody else holds.
struct Linear {
  std::string name;  // PyTorch's, such as "0": the parameters are 0.weight and 0.bias
  int in, out;
  float *weight, *bias;            // [out, in], [out]
  float *weight_grad, *bias_grad;  // likewise
};

// y[rows, out] from x[rows, in].
inline void linear_forward(const Blas& blas, const Linear& l, const float* x, float* y, int rows) {
  const cudaStream_t stream = blas.stream();
  // TODO 01.1: Multiply: y = x Wᵀ.
  //   One gemm(). y is [rows, out], x is [rows, in], the weight is [out, in]: which operand is transposed?
  todo("01.1");
  // END TODO 01.1
  probe("01.1", l.name + ": x W^T", y, {rows, l.out}, stream);
  // TODO 01.2: Add the bias to every row of y.
  //   launch() the kernel add_bias above for all elements of y: which of its sizes is the length of a row?
  todo("01.2");
  // END TODO 01.2
  probe("01.2", l.name + ": x W^T + b", y, {rows, l.out}, stream);
}

// The gradients of the layer's parameters from dy[rows, out], and, unless dx is null, dx[rows, in]. `accumulate` adds
// to the gradients that are there already (0 overwrites them, 1 adds). `ones` are `rows` ones.
inline void linear_backward(const Blas& blas, const Linear& l, const float* x, const float* dy, float* dx,
                            const float* ones, int rows, float accumulate) {
  const cudaStream_t stream = blas.stream();
  // TODO 01.3: The weight's gradient: dW = dyᵀ x, summed over the rows.
  //   One gemm(). dW is [out, in]: which operand is transposed now? Its beta is `accumulate`.
  todo("01.3");
  // END TODO 01.3
  probe("01.3", l.name + ".weight.grad", l.weight_grad, {l.out, l.in}, stream);
  // TODO 01.4: The bias' gradient: the sum of dy over its rows, db = dyᵀ 1.
  //   cublasSgemv(handle, op, m, n, &alpha, A, lda, x, incx, &beta, y, incy) with `ones`. For cuBLAS our dy is a
  //   column-major matrix of m = out rows, n = rows columns and leading dimension out: does it have to be transposed
  //   to give [out]? Its beta is `accumulate`.
  todo("01.4");
  // END TODO 01.4
  probe("01.4", l.name + ".bias.grad", l.bias_grad, {l.out}, stream);
  if (dx == nullptr) return;
  // TODO 01.5: The gradient that goes down to the layer below: dx = dy W.
  //   One gemm(). dx is [rows, in], dy is [rows, out], the weight is [out, in].
  todo("01.5");
  // END TODO 01.5
  probe("01.5", l.name + ": dy W", dx, {rows, l.in}, stream);
}

// ---- loss ----------------------------------------------------------------------------------------------------------

// Adds Σ(prediction - target)² / elements to *loss, and writes the gradient of that to gradient[n]. `elements` is n for
// a whole batch, and the n of the whole batch for each of its micro-batches. `scratch` is one float on the device.
inline void mse_loss(const Blas& blas, const float* prediction, const float* target, int n, int elements, float* loss,
                     float* gradient, float* scratch) {
  const cudaStream_t stream = blas.stream();
  launch(subtract, n, stream, gradient, prediction, target, n);
  // The sum stays on the device: a host that waited for it would stop the stream from running ahead.
  CUBLAS_CHECK(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_DEVICE));
  CUBLAS_CHECK(cublasSdot(blas, n, gradient, 1, gradient, 1, scratch));
  CUBLAS_CHECK(cublasSetPointerMode(blas, CUBLAS_POINTER_MODE_HOST));
  launch(add_scaled, 1, stream, loss, scratch, 1.0f / static_cast<float>(elements), 1);
  // TODO 01.6: Turn the differences in `gradient` into the gradient of the mean square, in place.
  //   What is the derivative of (p - t)² / elements by p? cublasSscal(handle, n, &factor, x, incx) scales a vector.
  todo("01.6");
  // END TODO 01.6
  probe("01.6", "gradient of the loss", gradient, {n}, stream);
}

// ---- the network ---------------------------------------------------------------------------------------------------

struct Parameter {
  std::string name;  // PyTorch's, such as "0.weight"
  float *value, *grad;
  std::vector<int> shape;
  int count;
};

// What the forward pass of one batch leaves for its backward pass. The model does not hold it itself: a pipeline has
// several batches under way at a time.
struct Activations {
  const float* x = nullptr;  // the input, [rows, in], held by somebody else
  int rows = 0;
  std::vector<DeviceBuffer<float>> z, a;  // of each layer, before and after the activation; a is empty without one
};

// Where a model's parameters and gradients are: in buffers of its own, or where place() puts them.
enum class Storage { own, placed };

// Linear layers with an activation between them. All parameters lie one after the other in one buffer, layer by layer,
// weight then bias, and the gradients in another: an optimizer is one launch, and a bucket of gradients is a range.
class Mlp {
 public:
  // `widths` are those of --layers; a batch has at most `max_rows` rows. A model may hold a part of the layers,
  // [first, last), for a rank that has the others elsewhere: layer i goes from widths[i] to widths[i + 1].
  Mlp(const std::vector<int>& widths, Activation activation, int max_rows, cudaStream_t stream, int first = 0,
      int last = -1, Storage storage = Storage::own)
      : widths_(widths),
        activation_(activation),
        first_(first),
        last_(last < 0 ? total() : last),
        max_rows_(max_rows),
        blas_(stream),
        ones_(max_rows, Memory::data),
        scratch_(1, Memory::data) {
    int widest = 0;
    for (int i = first_; i < last_; ++i) {
      count_ += (widths[i] + 1) * widths[i + 1];
      widest = std::max(widest, widths[i + 1]);
    }
    for (auto& gradient : gradients_) gradient = DeviceBuffer<float>(max_rows * widest, Memory::activations);
    for (int i = first_; i < last_; ++i) add_layer(i);
    if (storage == Storage::own) {
      own_values_ = DeviceBuffer<float>(count_, Memory::parameters);
      own_grads_ = DeviceBuffer<float>(count_, Memory::gradients);
      place(own_values_.data(), own_grads_.data());
    }
    launch(fill, max_rows, stream, ones_.data(), 1.0f, max_rows);
  }

  // Has the model work with parameters and gradients that lie elsewhere, count() floats each, from now on. Work that is
  // enqueued already goes on with the old ones.
  void place(float* values, float* grads) {
    values_ = values;
    grads_ = grads;
    int offset = 0;
    const auto take = [&](Parameter& p) {
      p.value = values + offset;
      p.grad = grads + offset;
      offset += p.count;
    };
    for (int i = 0; i < depth(); ++i) {
      Parameter &weight = parameters_[2 * i], &bias = parameters_[2 * i + 1];
      take(weight);
      take(bias);
      Linear& l = layers_[i];
      l = {l.name, l.in, l.out, weight.value, bias.value, weight.grad, bias.grad};
    }
  }

  // PyTorch's initial parameters for this seed of its default generator: drawn for all layers, returned for those held,
  // in the order in which they lie in values().
  std::vector<float> initial_values(std::uint64_t seed) const {
    Generator generator(seed);
    std::vector<float> values;
    for (int i = 0; i < total(); ++i) {
      std::vector<float> weight(widths_[i] * widths_[i + 1]), bias(widths_[i + 1]);
      init_linear(generator, widths_[i], widths_[i + 1], weight.data(), bias.data());
      if (i < first_ || i >= last_) continue;
      values.insert(values.end(), weight.begin(), weight.end());
      values.insert(values.end(), bias.begin(), bias.end());
    }
    return values;
  }

  // Gives the parameters their initial values. Waits for the stream.
  void initialize(std::uint64_t seed) {
    const std::vector<float> values = initial_values(seed);
    CUDA_CHECK(cudaMemcpyAsync(values_, values.data(), count_ * sizeof(float), cudaMemcpyHostToDevice, blas_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(blas_.stream()));
  }

  Activations make_activations() const {
    Activations activations;
    for (int i = 0; i < depth(); ++i) {
      activations.z.emplace_back(max_rows_ * layers_[i].out, Memory::activations);
      activations.a.emplace_back(activated(i) ? max_rows_ * layers_[i].out : 0, Memory::activations);
    }
    return activations;
  }

  // The output [rows, out] for x[rows, in], kept in `activations` with all that backward() needs.
  const float* forward(const float* x, int rows, Activations& activations) {
    activations.x = x;
    activations.rows = rows;
    for (int i = 0; i < depth(); ++i) {
      const Range range("forward " + layers_[i].name, blas_.stream());
      linear_forward(blas_, layers_[i], input(activations, i), activations.z[i].data(), rows);
      if (!activated(i)) continue;
      launch(activation_ == Activation::relu ? relu_forward : gelu_forward, rows * layers_[i].out, blas_.stream(),
             activations.a[i].data(), activations.z[i].data(), rows * layers_[i].out);
    }
    return input(activations, depth());
  }

  // Adds the mean square error over `elements` to *loss and writes its gradient to output_gradient().
  void loss(const Activations& activations, const float* target, int elements, float* loss) {
    const int n = activations.rows * layers_.back().out;
    mse_loss(blas_, input(activations, depth()), target, n, elements, loss, output_gradient(), scratch_.data());
  }

  // The gradients of all parameters from output_gradient(), from the last layer down to the first, and that of x in
  // dx[rows, in] unless it is null. `accumulate` adds to the parameters' gradients that are there. `ready(i)` is called
  // as soon as the work for the gradients of layer i is enqueued.
  void backward(const Activations& activations, bool accumulate = false, const std::function<void(int)>& ready = {},
                float* dx = nullptr) {
    float *dz = gradients_[0].data(), *below = gradients_[1].data();
    for (int i = depth() - 1; i >= 0; --i) {
      {
        const Range range("backward " + layers_[i].name, blas_.stream());
        const int n = activations.rows * layers_[i].out;
        if (activated(i)) {
          launch(activation_ == Activation::relu ? relu_backward : gelu_backward, n, blas_.stream(), dz, dz,
                 activations.z[i].data(), n);
        }
        linear_backward(blas_, layers_[i], input(activations, i), dz, i > 0 ? below : dx, ones_.data(),
                        activations.rows, accumulate ? 1.0f : 0.0f);
        std::swap(dz, below);
      }
      if (ready) ready(i);
    }
  }

  int depth() const { return static_cast<int>(layers_.size()); }  // layers held
  const std::vector<Linear>& layers() const { return layers_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  float* values() const { return values_; }  // [count()]
  float* grads() const { return grads_; }    // [count()]
  int count() const { return count_; }
  // The gradient of the output [rows, out], for backward() to start from, which overwrites it.
  float* output_gradient() { return gradients_[0].data(); }

 private:
  int total() const { return static_cast<int>(widths_.size()) - 1; }

  void add_layer(int i) {
    // nn.Sequential counts its activations too.
    const std::string name = std::to_string(activation_ == Activation::none ? i : 2 * i);
    const int in = widths_[i], out = widths_[i + 1];
    layers_.push_back({name, in, out, nullptr, nullptr, nullptr, nullptr});
    parameters_.push_back({name + ".weight", nullptr, nullptr, {out, in}, in * out});
    parameters_.push_back({name + ".bias", nullptr, nullptr, {out}, out});
  }

  // Every layer is followed by the activation but the last of the whole network.
  bool activated(int i) const { return activation_ != Activation::none && first_ + i + 1 < total(); }

  // What layer i reads: the output of the one below. That of the layer above the last is the output of the model.
  const float* input(const Activations& activations, int i) const {
    if (i == 0) return activations.x;
    return activated(i - 1) ? activations.a[i - 1].data() : activations.z[i - 1].data();
  }

  std::vector<int> widths_;
  Activation activation_;
  int first_, last_, max_rows_;
  Blas blas_;
  int count_ = 0;
  float *values_ = nullptr, *grads_ = nullptr;
  DeviceBuffer<float> own_values_, own_grads_, ones_, scratch_;
  DeviceBuffer<float> gradients_[2];  // on its way down: of this layer's output, of the one below
  std::vector<Linear> layers_;
  std::vector<Parameter> parameters_;
};

// ---- optimizer -----------------------------------------------------------------------------------------------------

// SGD or AdamW for `count` parameters, which may be the whole model or a shard of it.
class ParameterUpdate {
 public:
  ParameterUpdate(const Options& options, int count, cudaStream_t stream)
      : optimizer_(options.optimizer),
        lr_(options.lr),
        weight_decay_(options.weight_decay),
        count_(count),
        stream_(stream) {
    if (optimizer_ != Optimizer::adamw) return;
    for (DeviceBuffer<float>* state : {&mean_, &square_}) {
      *state = DeviceBuffer<float>(count, Memory::optimizer);
      CUDA_CHECK(cudaMemsetAsync(state->data(), 0, state->bytes(), stream));
    }
  }

  // What AdamW keeps from step to step, [count] each; null for SGD.
  float* mean() const { return mean_.data(); }
  float* square() const { return square_.data(); }
  // Goes on after a number of steps that another process has made, from a checkpoint.
  void set_steps(int steps) { steps_ = steps; }

  // One step: updates value[count] with grad[count].
  void step(float* value, const float* grad) {
    const Range range("update", stream_);
    if (optimizer_ == Optimizer::sgd) {
      // TODO 01.7: Update with plain gradient descent: value -= lr·(grad + weight_decay·value).
      //   launch() the kernel sgd above for all parameters at once.
      todo("01.7");
      // END TODO 01.7
    } else {
      const AdamWStep s = adamw_step(lr_, weight_decay_, ++steps_);
      launch(adamw, count_, stream_, value, grad, mean_.data(), square_.data(), s, count_);
    }
    probe(optimizer_ == Optimizer::sgd ? "01.7" : "01.8", "parameters", value, {count_}, stream_);
  }

 private:
  Optimizer optimizer_;
  double lr_, weight_decay_;
  int count_;
  cudaStream_t stream_;
  DeviceBuffer<float> mean_, square_;  // AdamW's running means of the gradient and of its square
  int steps_ = 0;
};

}  // namespace workshop
