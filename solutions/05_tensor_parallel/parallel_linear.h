// Linear layers cut over the ranks of a tensor-parallel group, in pairs (Shoeybi et al., 2019).
//
//   x ─f─ column-parallel ─ activation ─ row-parallel ─g─ y
//
// The first layer of a pair is cut by columns of Wᵀ, which are rows of W [out, in]: a rank computes its features of the
// hidden layer and nothing else. The second is cut by rows of Wᵀ, columns of W: it reads just these features, and what
// it computes is a share of a sum over the ranks. Between the two nothing is sent. f and g are conjugate:
//
//            forward      backward
//   f        identity     all-reduce      each rank's share of dx is what went through its features
//   g        all-reduce   identity        dy/d(share) = 1 on every rank
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "01_single_gpu/mlp.h"
#include "shards.h"

namespace workshop {

// ---- the two layers ------------------------------------------------------------------------------------------------

// Chapter 01's view of this rank's part of a layer; in and out are those of the part.
inline Linear linear_part(const std::string& name, const ShardedParameter& weight, const ShardedParameter& bias) {
  return {name, weight.columns, weight.rows, weight.value, bias.value, weight.grad, bias.grad};
}

// y[rows, l.out], this rank's features, from the whole x[rows, l.in]. f is the identity here, so that is chapter 01's
// layer with fewer outputs.
inline void column_parallel_forward(const Blas& blas, const Linear& l, const float* x, float* y, int rows) {
  linear_forward(blas, l, x, y, rows);
}

// The gradients of this rank's part of the layer from dy[rows, l.out], and the whole dx[rows, l.in], the same on every
// rank of the group.
inline void column_parallel_backward(const Blas& blas, const TensorGroup& group, const Linear& l, const float* x,
                                     const float* dy, float* dx, const float* ones, int rows, float accumulate) {
  linear_backward(blas, l, x, dy, dx, ones, rows, accumulate);
  // TODO 05.4: Add the ranks' shares of dx up, in place (f, backward).
  //   So far dx is what reached x through this rank's features. One NCCL call over the group, for rows * l.in floats,
  //   on blas.stream().
  NCCL_CHECK(ncclAllReduce(dx, dx, rows * l.in, ncclFloat, ncclSum, group.comm, blas.stream()));
  // END TODO 05.4
  probe("05.4", l.name + ": dy W, summed over the ranks", dx, {rows, l.in}, blas.stream());
}

// The whole y[rows, l.out], the same on every rank, from this rank's features x[rows, l.in].
inline void row_parallel_forward(const Blas& blas, const TensorGroup& group, const Linear& l, const float* x, float* y,
                                 int rows) {
  const cudaStream_t stream = blas.stream();
  gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 0, y);
  // TODO 05.3: Add the ranks' shares of the product up, in place (g, forward), and add the bias to every row.
  //   So far y is this rank's share of x Wᵀ. One NCCL call over the group, for rows * l.out floats, and the kernel
  //   add_bias as in TODO 01.2. Every rank has the whole bias: in which order?
  NCCL_CHECK(ncclAllReduce(y, y, rows * l.out, ncclFloat, ncclSum, group.comm, stream));
  launch(add_bias, rows * l.out, stream, y, l.bias, rows, l.out);
  // END TODO 05.3
  probe("05.3", l.name + ": x W^T + b, summed over the ranks", y, {rows, l.out}, stream);
}

// The gradients of this rank's part of the layer from the whole dy[rows, l.out], and those of this rank's features in
// dx[rows, l.in]. g is the identity here, so that is chapter 01's layer with fewer inputs. The bias' gradient is whole.
inline void row_parallel_backward(const Blas& blas, const Linear& l, const float* x, const float* dy, float* dx,
                                  const float* ones, int rows, float accumulate) {
  linear_backward(blas, l, x, dy, dx, ones, rows, accumulate);
}

// ---- activations ---------------------------------------------------------------------------------------------------

inline void activation_forward(Activation activation, float* a, const float* z, int n, cudaStream_t stream) {
  launch(activation == Activation::relu ? relu_forward : gelu_forward, n, stream, a, z, n);
}

// Turns the gradient of a into that of z, in place.
inline void activation_backward(Activation activation, float* da, const float* z, int n, cudaStream_t stream) {
  launch(activation == Activation::relu ? relu_backward : gelu_backward, n, stream, da, da, z, n);
}

// ---- a network of pairs --------------------------------------------------------------------------------------------

// Ends the job with status 2 unless --layers is made of pairs whose inner widths `ranks` ranks divide.
inline void require_pairs(const std::vector<int>& widths, int ranks) {
  const int layers = static_cast<int>(widths.size()) - 1;
  if (layers % 2 != 0) {
    usage_error("--layers has " + std::to_string(layers) + (layers == 1 ? " layer" : " layers") +
                "; expected an even number, in pairs of a column- and a row-parallel one, such as 6,4,2");
  }
  for (int i = 1; i < layers; i += 2) {
    if (widths[i] % ranks == 0) continue;
    usage_error("--layers has a width of " + std::to_string(widths[i]) + " inside a pair; expected a multiple of the " +
                std::to_string(ranks) + " ranks");
  }
}

// Chapter 01's Mlp over the ranks of a group: layers 0, 2, 4, … are column-parallel, layers 1, 3, 5, … row-parallel.
// All its methods are to be called by all ranks of the group, with the same rows of the batch.
class ParallelMlp {
 public:
  // `widths` are those of --layers, with require_pairs(); a batch has at most `max_rows` rows. Layers [first, last) are
  // held, as in Mlp; both are even.
  ParallelMlp(const std::vector<int>& widths, Activation activation, int max_rows, const TensorGroup& group,
              cudaStream_t stream, int first = 0, int last = -1, Storage storage = Storage::own)
      : widths_(widths),
        activation_(activation),
        first_(first),
        last_(last < 0 ? total() : last),
        max_rows_(max_rows),
        group_(group),
        blas_(stream),
        parameters_(group, stream),
        ones_(max_rows, Memory::data),
        scratch_(1, Memory::data) {
    for (int i = first_; i < last_; ++i) {
      const Split split = column_parallel(i) ? Split::rows : Split::columns;
      parameters_.add(name(i) + ".weight", {widths[i + 1], widths[i]}, split);
      parameters_.add(name(i) + ".bias", {widths[i + 1]}, column_parallel(i) ? Split::rows : Split::none);
    }
    if (storage == Storage::own) parameters_.allocate();
    int widest = 0;
    for (int i = 0; i < last_ - first_; ++i) {
      layers_.push_back(linear_part(name(first_ + i), parameters_[2 * i], parameters_[2 * i + 1]));
      widest = std::max({widest, layers_[i].in, layers_[i].out});
    }
    for (auto& gradient : gradients_) gradient = DeviceBuffer<float>(max_rows * widest, Memory::activations);
    launch(fill, max_rows, stream, ones_.data(), 1.0f, max_rows);
  }

  // As Mlp's, for this rank's parts.
  void place(float* values, float* grads) {
    parameters_.place(values, grads);
    for (int i = 0; i < depth(); ++i) {
      layers_[i] = linear_part(layers_[i].name, parameters_[2 * i], parameters_[2 * i + 1]);
    }
  }

  // PyTorch's initial parameters for this seed: drawn for all layers and all ranks, of which this rank keeps its parts.
  void initialize(std::uint64_t seed) {
    Generator generator(seed);
    for (int i = 0; i < total(); ++i) {
      std::vector<float> weight(widths_[i] * widths_[i + 1]), bias(widths_[i + 1]);
      init_linear(generator, widths_[i], widths_[i + 1], weight.data(), bias.data());
      if (i < first_ || i >= last_) continue;
      parameters_.load(2 * (i - first_), weight);
      parameters_.load(2 * (i - first_) + 1, bias);
    }
  }

  Activations make_activations() const {
    Activations activations;
    for (int i = 0; i < depth(); ++i) {
      activations.z.emplace_back(max_rows_ * layers_[i].out, Memory::activations);
      activations.a.emplace_back(activated(i) ? max_rows_ * layers_[i].out : 0, Memory::activations);
    }
    return activations;
  }

  // The whole output [rows, out] for x[rows, in], the same on every rank of the group.
  const float* forward(const float* x, int rows, Activations& activations) {
    activations.x = x;
    activations.rows = rows;
    for (int i = 0; i < depth(); ++i) {
      const Linear& l = layers_[i];
      const Range range("forward " + l.name, blas_.stream());
      float* z = activations.z[i].data();
      if (column_parallel(i)) {
        column_parallel_forward(blas_, l, input(activations, i), z, rows);
      } else {
        row_parallel_forward(blas_, group_, l, input(activations, i), z, rows);
      }
      if (activated(i)) activation_forward(activation_, activations.a[i].data(), z, rows * l.out, blas_.stream());
    }
    return input(activations, depth());
  }

  // As Mlp's. Every rank of the group computes the same.
  void loss(const Activations& activations, const float* target, int elements, float* loss) {
    const int n = activations.rows * layers_.back().out;
    mse_loss(blas_, input(activations, depth()), target, n, elements, loss, output_gradient(), scratch_.data());
  }

  // As Mlp's: the gradients of this rank's parts from output_gradient(), and that of x in dx[rows, in]. Where dx is
  // null it is computed all the same and its sum formed: what lies below a pair of a real network is never the data,
  // but another pair, a norm or an embedding.
  void backward(const Activations& activations, bool accumulate = false, const std::function<void(int)>& ready = {},
                float* dx = nullptr) {
    const int rows = activations.rows;
    const float beta = accumulate ? 1.0f : 0.0f;
    float *dz = gradients_[0].data(), *below = gradients_[1].data();
    for (int i = depth() - 1; i >= 0; --i) {
      const Linear& l = layers_[i];
      {
        const Range range("backward " + l.name, blas_.stream());
        if (activated(i)) {
          activation_backward(activation_, dz, activations.z[i].data(), rows * l.out, blas_.stream());
        }
        float* to = i == 0 && dx != nullptr ? dx : below;
        if (column_parallel(i)) {
          column_parallel_backward(blas_, group_, l, input(activations, i), dz, to, ones_.data(), rows, beta);
        } else {
          row_parallel_backward(blas_, l, input(activations, i), dz, to, ones_.data(), rows, beta);
        }
        std::swap(dz, below);
      }
      if (ready) ready(i);
    }
  }

  int depth() const { return static_cast<int>(layers_.size()); }  // layers held
  const std::vector<Linear>& layers() const { return layers_; }   // this rank's parts of them
  const ShardedParameters& parameters() const { return parameters_; }
  float* values() const { return parameters_.values(); }  // [count()]
  float* grads() const { return parameters_.grads(); }    // [count()]
  int count() const { return parameters_.count(); }
  // The gradient of the output [rows, out], for backward() to start from, which overwrites it.
  float* output_gradient() { return gradients_[0].data(); }

 private:
  int total() const { return static_cast<int>(widths_.size()) - 1; }
  static bool column_parallel(int i) { return i % 2 == 0; }
  // nn.Sequential counts its activations too.
  std::string name(int i) const { return std::to_string(activation_ == Activation::none ? i : 2 * i); }
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
  TensorGroup group_;
  Blas blas_;
  ShardedParameters parameters_;
  DeviceBuffer<float> ones_, scratch_;
  DeviceBuffer<float> gradients_[2];  // on its way down: of this layer's output, of the one below
  std::vector<Linear> layers_;
};

}  // namespace workshop
