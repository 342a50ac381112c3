// SPDX-License-Identifier: Apache-2.0
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
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/mlp.h"
#include "common/job.h"
#include "shards.h"

namespace workshop {

// ---- f and g -------------------------------------------------------------------------------------------------------

// A second stream for f's all-reduces in the backward pass, so that a layer's dx travels while its dW is computed.
class SideStream {
 public:
  // The stream, once it has what `compute` has enqueued so far; join() lets that wait for what comes to it.
  cudaStream_t fork(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(forked_, compute));
    CUDA_CHECK(cudaStreamWaitEvent(stream_, forked_));
    return stream_;
  }
  void join(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(joined_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(compute, joined_));
  }

 private:
  Stream stream_{"side"};
  Event forked_, joined_;
};

// f, backward: every rank gets the whole dx[rows, l.in].
inline void f_backward(const Group& group, const Linear& l, Real* dx, int rows, cudaStream_t stream) {
  // TODO 05.4: Add the ranks' shares of dx up, in place (f, backward).
  //   So far dx is what reached x through this rank's features. One NCCL call over the group, for the rows * l.in
  //   numbers, which are kReal, on `stream`.
  NCCL_CHECK(ncclAllReduce(dx, dx, rows * l.in, kReal, ncclSum, group.comm(), stream));
  // END TODO 05.4
  probe("05.4", {l.name, ": dy W, summed over the ranks"}, dx, {rows, l.in}, stream);
}

// g, forward, and the bias: every rank gets the whole y[rows, l.out].
inline void g_forward(const Group& group, const Linear& l, Real* y, int rows, cudaStream_t stream) {
  // TODO 05.3: Add the ranks' shares of the product up, in place (g, forward), and add the bias to every row.
  //   So far y is this rank's share of x Wᵀ. One NCCL call over group.comm(), on `stream`, for the rows * l.out
  //   numbers, which are kReal, and the kernel add_bias as in TODO 01.2 (docs/calls.md). Every rank has the whole bias:
  //   in which order?
  NCCL_CHECK(ncclAllReduce(y, y, rows * l.out, kReal, ncclSum, group.comm(), stream));
  launch(add_bias, rows * l.out, stream, y, l.bias, rows, l.out);
  // END TODO 05.3
  probe("05.3", {l.name, ": x W^T + b, summed over the ranks"}, y, {rows, l.out}, stream);
}

// ---- the two layers ------------------------------------------------------------------------------------------------

// y[rows, l.out], this rank's features, from the whole x[rows, l.in]. f is the identity here, so that is chapter 01's
// layer with fewer outputs.
inline void column_parallel_forward(const Blas& blas, const Linear& l, const Real* x, Real* y, int rows) {
  linear_forward(blas, l, x, y, rows);
}

// The gradients of this rank's part of the layer from dy[rows, l.out], and the whole dx[rows, l.in], the same on every
// rank of the group; dx comes first and, with a side stream, is summed while the rest is computed.
inline void column_parallel_backward(const Blas& blas, const Group& group, const Linear& l, const Real* x,
                                     const Real* dy, Real* dx, const Real* ones, int rows, float accumulate,
                                     SideStream* side = nullptr) {
  linear_backward_input(blas, l, dy, dx, rows);
  f_backward(group, l, dx, rows, side != nullptr ? side->fork(blas.stream()) : blas.stream());
  linear_backward_parameters(blas, l, x, dy, ones, rows, accumulate);
  if (side != nullptr) side->join(blas.stream());
}

// The whole y[rows, l.out], the same on every rank, from this rank's features x[rows, l.in].
inline void row_parallel_forward(const Blas& blas, const Group& group, const Linear& l, const Real* x, Real* y,
                                 int rows) {
  gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 0, y);
  g_forward(group, l, y, rows, blas.stream());
}

// The gradients of this rank's part of the layer from the whole dy[rows, l.out], and those of this rank's features in
// dx[rows, l.in]. g is the identity here, so that is chapter 01's layer with fewer inputs. The bias' gradient is whole.
inline void row_parallel_backward(const Blas& blas, const Linear& l, const Real* x, const Real* dy, Real* dx,
                                  const Real* ones, int rows, float accumulate) {
  linear_backward(blas, l, x, dy, dx, ones, rows, accumulate);
}

// ---- a network of pairs --------------------------------------------------------------------------------------------

// Ends the job with status 2 unless --layers is made of pairs whose inner widths `ranks` ranks divide.
inline void require_pairs(const std::vector<int>& widths, int ranks) {
  const int layers = static_cast<int>(widths.size()) - 1;
  if (layers % 2 != 0) {
    usage_error(
        "--layers has %d layer%s; expected an even number, in pairs of a column- and a row-parallel one, "
        "such as 6,4,2",
        layers, layers == 1 ? "" : "s");
  }
  for (int i = 1; i < layers; i += 2) {
    if (widths[i] % ranks == 0) continue;
    usage_error("--layers has a width of %d inside a pair; expected a multiple of the %d ranks", widths[i], ranks);
  }
}

// A column- and a row-parallel layer, each with the activation that follows it, if any. All ranks of the group make the
// same calls, with the same samples.
class ParallelPair : public Layer {
 public:
  ParallelPair(const std::string& column_name, const std::string& row_name, int in, int hidden, int out,
               Activation inner, Activation outer, const Group& group, SideStream* side)
      : Layer(column_name, in, out),
        row_name_(row_name),
        features_(hidden / group.size()),
        inner_(inner),
        outer_(outer),
        group_(group),
        side_(side) {
    parameters = {sharded(column_name + ".weight", {hidden, in}, Split::rows, group),
                  sharded(column_name + ".bias", {hidden}, Split::rows, group),
                  sharded(row_name + ".weight", {out, hidden}, Split::columns, group),
                  sharded(row_name + ".bias", {out}, Split::none, group)};
  }

  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values;
    append_initial(values, generator, parameters[0], parameters[1], group_);
    append_initial(values, generator, parameters[2], parameters[3], group_);
    return values;
  }
  // Of both layers, before and after the activation.
  std::vector<int> saved() const override {
    return {features_, inner_ == Activation::none ? 0 : features_, out, outer_ == Activation::none ? 0 : out};
  }
  int widest() const override { return std::max({in, features_, out}); }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    column_ = linear_part(name, parameters[0], parameters[1]);
    row_ = linear_part(row_name_, parameters[2], parameters[3]);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    Real *z = saved.buffers[0].data(), *a = saved.buffers[1].data();
    Real *y = saved.buffers[2].data(), *activated = saved.buffers[3].data();
    {
      const Range range({"forward ", name}, blas.stream());
      column_parallel_forward(blas, column_, static_cast<const Real*>(x), z, samples);
      if (a != nullptr) activation_forward(inner_, a, z, samples * features_, blas.stream());
    }
    const Range range({"forward ", row_name_}, blas.stream());
    row_parallel_forward(blas, group_, row_, a != nullptr ? a : z, y, samples);
    if (activated == nullptr) return y;
    activation_forward(outer_, activated, y, samples * out, blas.stream());
    return activated;
  }

  // The gradient of x is computed and summed even where it is not asked for: what lies below a pair of a real network
  // is never the data, but another pair, a norm or an embedding.
  Real* backward(const Saved& saved, const Gradients& g) override {
    const Real *z = saved.buffers[0].data(), *a = saved.buffers[1].data(), *y = saved.buffers[2].data();
    const cudaStream_t stream = g.blas.stream();
    Real* hidden = g.spare;  // gradient of this rank's features
    {
      const Range range({"backward ", row_name_}, stream);
      if (outer_ != Activation::none) activation_backward(outer_, g.dy, y, g.samples * out, stream);
      row_parallel_backward(g.blas, row_, a != nullptr ? a : z, g.dy, hidden, g.ones, g.samples, g.accumulate);
    }
    const Range range({"backward ", name}, stream);
    if (a != nullptr) activation_backward(inner_, hidden, z, g.samples * features_, stream);
    Real* dx = g.dx != nullptr ? g.dx : g.dy;
    column_parallel_backward(g.blas, group_, column_, static_cast<const Real*>(saved.x), hidden, dx, g.ones, g.samples,
                             g.accumulate, side_);
    return dx;
  }

 private:
  std::string row_name_;
  int features_;  // of the hidden layer, on this rank
  Activation inner_, outer_;
  const Group& group_;
  SideStream* side_;         // null: everything on one stream
  Linear column_{}, row_{};  // this rank's parts
};

// Chapter 01's MLP over the ranks of a group, which must live as long, as must `side`: layers 0, 2, 4, … are
// column-parallel, layers 1, 3, 5, … row-parallel. Ends the job with status 2 unless require_pairs() holds.
inline Network make_parallel_mlp(const std::vector<int>& widths, Activation activation, const Group& group,
                                 SideStream* side = nullptr) {
  require_pairs(widths, group.size());
  Network network;
  const int depth = static_cast<int>(widths.size()) - 1;
  for (int i = 0; i < depth; i += 2) {
    network.layers.push_back(std::make_shared<ParallelPair>(
        layer_name(i, activation), layer_name(i + 1, activation), widths[i], widths[i + 1], widths[i + 2], activation,
        i + 2 < depth ? activation : Activation::none, group, side));
  }
  network.loss = std::make_shared<MeanSquaredError>(widths.back());
  return network;
}

}  // namespace workshop
