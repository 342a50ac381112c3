// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism with column-parallel layers only: every rank computes its features of every layer, and an
// all-gather gives all ranks the whole output. This is simpler than pairs, but needs an all-gather and a reduce-scatter
// for every layer, where tensor_parallel.cu needs two all-reduces for every two layers.
//
// Activations are transposed here, [features, rows]. So the features of a rank are one block of memory, the blocks of
// all ranks lie in the order of the ranks, and all-gather and reduce-scatter work on them in place. In a row-major
// [rows, features], they would be columns, which must be packed before each call and unpacked after it.
#include <algorithm>
#include <memory>
#include <vector>

#include "01_single_gpu/mlp.h"
#include "01_single_gpu/optimizer.h"
#include "05_tensor_parallel/shards.h"
#include "05_tensor_parallel/tensor_parallel.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

namespace {

// y[rows, cols] += bias[rows]: one bias per row.
__global__ void add_bias_to_columns(Reals y, ConstReals bias, int rows, int cols) {
  for (int i : grid_stride(rows * cols)) y[i] += bias[i / cols];
}

// A linear layer and the activation that follows it, if any. x is [in, samples] or, for the network's first layer, the
// samples themselves, [samples, in]. y is [out, samples], whole on every rank. Of the gradients dy and dx, a rank needs
// only the block of its own features; dx is the dy of the layer below.
class GatheredLayer : public ParallelLayer {
 public:
  // The number of ranks must divide `out` and, unless this is the first layer, `in`.
  GatheredLayer(const std::shared_ptr<const Layer>& whole, bool first, Activation activation, const Group& group)
      : ParallelLayer({whole}, whole->in, whole->out, {Cut::rows, Cut::rows}, group),
        features_(whole->out / group.size()),
        x_op_(first ? Op::transposed : Op::as_is),
        activation_(activation),
        group_(group) {}

  // This rank's features before the activation, and all features after it.
  std::vector<int> saved() const override { return {activated() ? features_ : 0, out}; }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    linear_ = linear_of(name, parameters[0], parameters[1]);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    Real* whole = saved.buffers[1].data();
    const int count = features_ * samples;       // elements of this rank's features
    Real* part = whole + group_.rank() * count;  // [features, samples]
    Real* z = activated() ? saved.buffers[0].data() : part;
    // Zᵀ = W Xᵀ: chapter 01's y = x Wᵀ, transposed.
    gemm(blas, Op::as_is, x_op_, features_, samples, in, linear_.weight, static_cast<const Real*>(x), 0, z);
    launch(add_bias_to_columns, count, stream, z, linear_.bias, features_, samples);
    if (activated()) activation_forward(activation_, part, z, count, stream);
    // TODO 05.8: Gather all ranks' `part` into `whole`, so that every rank has the whole output of this layer.
    //   One NCCL call over group_, on `stream`. What is its count? The call works in place: `part` already lies where
    //   this rank's block belongs.
    todo("05.8");
    // END TODO 05.8
    probe("05.8", {name, ": output, of all ranks"}, whole, {out, samples}, stream);
    if (activated()) {
      probe("05.J", {name, ": this rank's features before the activation"}, saved.buffers[0].data(),
            {features_, samples}, stream);
    }
    return whole;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const cudaStream_t stream = g.blas.stream();
    const Range range({"backward ", name}, stream);
    Real* dx = g.needs_dx ? g.spare : nullptr;  // [in, samples]
    const int count = features_ * g.samples;
    Real* dz = g.dy;  // [features, samples]
    // TODO 05.9: Make dz point to the gradient of this rank's features: the backward pass of the all-gather.
    //   g.dy is [out, samples], the gradient of the whole output. Every rank computed the same loss from the same
    //   output: what would be wrong with a reduce-scatter here? (In all layers but the last, only this rank's block of
    //   g.dy contains anything.)
    todo("05.9");
    // END TODO 05.9
    probe("05.9", {name, ": gradient of this rank's features"}, dz, {features_, g.samples}, stream);
    if (activated()) activation_backward(activation_, dz, saved.buffers[0].data(), count, stream);
    const Op x_op = x_op_ == Op::as_is ? Op::transposed : Op::as_is;
    gemm(g.blas, Op::as_is, x_op, features_, in, g.samples, dz, static_cast<const Real*>(saved.x), g.accumulate,
         linear_.weight_grad);
    gemm(g.blas, Op::as_is, Op::transposed, 1, features_, g.samples, g.ones, dz, g.accumulate, linear_.bias_grad);
    if (dx != nullptr) {
      // This rank's share of dx: what comes back through its features.
      gemm(g.blas, Op::transposed, Op::as_is, in, g.samples, features_, linear_.weight, dz, 0, dx);
      const int count_below = in / group_.size() * g.samples;
      Real* mine = dx + group_.rank() * count_below;  // [in/P, samples]
      // TODO 05.10: Sum the ranks' shares of dx, and give each rank the sum for its own features of x, in `mine`.
      //   This is the conjugate of the all-gather: one NCCL call over group_, on `stream`. It works in place: `mine` is
      //   this rank's block of dx.
      todo("05.10");
      // END TODO 05.10
    }
    probe("05.K", {name, ": gradient of this rank's part of W"}, linear_.weight_grad, {features_, in}, stream);
    probe("05.K", {name, ": gradient of this rank's part of b"}, linear_.bias_grad, {features_}, stream);
    if (dx != nullptr) {
      const int features = in / group_.size();  // of x, on this rank
      probe("05.10", {name, ": W^T dz, summed over the ranks"}, dx + group_.rank() * features * g.samples,
            {features, g.samples}, stream);
    }
    return dx;
  }

 private:
  bool activated() const { return activation_ != Activation::none; }

  int features_;  // of the output, on this rank
  Op x_op_;       // turns x into [in, samples]
  Activation activation_;
  const Group& group_;
  Linear linear_{};  // this rank's part
};

// Chapter 01's loss for an output [out, samples]. All ranks have the whole output, and each computes the whole loss and
// its gradient.
class TransposedError : public Loss {
 public:
  explicit TransposedError(int out) : out_(out), rows_(out) {}
  int scratch() const override { return out_ + 1 + rows_.scratch(); }
  void add(const Blas& blas, const Real* output, const void* y, int samples, int samples_of_step, float* loss,
           Real* gradient, float* scratch) const override {
    // The loss is a sum over all elements, in any order that output and targets share. So the targets, [samples, out],
    // are transposed. For cuBLAS they are a column-major [out, samples].
    const float one = 1.0f, zero = 0.0f;
    float* target = scratch;
    CUBLAS_CHECK(cublasSgeam(blas, CUBLAS_OP_T, CUBLAS_OP_N, samples, out_, &one, static_cast<const float*>(y), out_,
                             &zero, target, samples, target, samples));
    rows_.add(blas, output, target, samples, samples_of_step, loss, gradient, scratch + samples * out_);
  }

 private:
  int out_;
  MeanSquaredError rows_;
};

// Chapter 01's MLP. Ends the job with status 2 unless the number of ranks divides all widths but the input's.
Network make_gathered_mlp(const std::vector<int>& widths, Activation activation, const Group& group) {
  for (std::size_t i = 1; i < widths.size(); ++i) {
    if (widths[i] % group.size() == 0) continue;
    usage_error("--layers has a layer with %d outputs; expected a multiple of the %d ranks", widths[i], group.size());
  }
  Network network = make_mlp(widths, activation);
  for (int i = 0; i < network.depth(); ++i) {
    network.layers[i] = std::make_shared<GatheredLayer>(network.layers[i], i == 0,
                                                        i + 1 < network.depth() ? activation : Activation::none, group);
  }
  network.loss = std::make_shared<TransposedError>(widths.back());
  return network;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel_gather", "Trains an MLP of column-parallel layers only.");
  options.shuffle = false;
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_gathered_mlp(options.layers, options.activation, job.group());
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);

  Training training(options, job, {.reports = job.rank() == 0}, network.data(), stream);
  add_all(training, model, optimizer);

  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      optimizer.step(model.values(), model.grads());
    }
    training.evaluate([&](const Batch& batch, float* loss) {  // every rank has the whole loss
      model.forward(batch, activations);
      model.loss(activations, batch.y, training.evaluated(), loss);
    });
  }
  record_parameters(model.parameters(), job.rank(), job.group(), stream);
}
