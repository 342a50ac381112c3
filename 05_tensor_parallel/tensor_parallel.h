// SPDX-License-Identifier: Apache-2.0
// Pairs of linear layers, cut over the ranks of a tensor-parallel group (Shoeybi et al., 2019).
//
//   x ─f─ column-parallel ─ activation ─ row-parallel ─g─ y
//
// The first layer of a pair is cut by columns of Wᵀ, which are rows of W [out, in]: a rank computes only its own
// features of the hidden layer. The second is cut by rows of Wᵀ, which are columns of W: it reads exactly these
// features and computes one rank's share of a sum. Nothing is sent between the two.
//
// Norms, dropout and residuals of a transformer lie outside the pairs and work on each row separately. Either every
// rank does this for all rows or, with sequence parallelism (Korthikanti et al., 2022), only for its own: the rows of a
// batch are P equal blocks, and rank r has the r-th. f stands at the entry of a pair, g at its exit. The backward pass
// of one is the forward pass of the other:
//
//                                  f forward     f backward       g forward        g backward
//   every rank has all rows        identity      all-reduce       all-reduce       identity
//   each rank has its own rows     all-gather    reduce-scatter   reduce-scatter   all-gather
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/linear.h"
#include "05_tensor_parallel/shards.h"
#include "05_tensor_parallel/support/tensor_parallel_options.h"
#include "common/job/job.h"
#include "common/record/record.h"
#include "model/activation.h"

namespace workshop {

// ---- what the layers of a network share ----------------------------------------------------------------------------

// A second stream, on which a layer's dx is summed over the ranks while its dW is computed.
class SideStream {
 public:
  // Returns the stream, after making it wait for everything that is enqueued on `compute` so far.
  cudaStream_t fork(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(forked_, compute));
    CUDA_CHECK(cudaStreamWaitEvent(stream_, forked_));
    return stream_;
  }
  // Makes `compute` wait for everything that is enqueued on the stream so far.
  void join(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(joined_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(compute, joined_));
  }

 private:
  Stream stream_{"side", Priority::high};
  Event forked_, joined_;
};

// How a network is cut, and buffers that all its layers share: one layer uses them at a time.
class TensorParallelContext {
 public:
  // The group must outlive this.
  TensorParallelContext(const Group& group, const TensorParallelOptions& options)
      : group_(group), sequence_parallel_(options.sequence_parallel) {
    if (options.overlap) side_.emplace();
  }

  const Group& group() const { return group_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  // Outside the pairs, this rank has local_rows() of `rows` rows, from first_local_row() on.
  int local_rows(int rows) const { return sequence_parallel_ ? rows / group_.size() : rows; }
  int first_local_row(int rows) const { return sequence_parallel_ ? group_.rank() * local_rows(rows) : 0; }

  // Must be called before the functions below. `floats` is the size of the largest activation, of all ranks' rows.
  void allocate(int floats) {
    if (!sequence_parallel_ || gathered_.size() > 0) return;
    gathered_ = DeviceBuffer<Real>(floats, Memory::activations);
    share_ = DeviceBuffer<Real>(floats, Memory::activations);
  }
  // The buffer for the rows of all ranks. Only with sequence parallelism.
  Real* gathered() const { return gathered_.data(); }
  // Returns where to write this rank's share [rows, width] of a sum that goes to `sum` [local rows, width]. Without
  // sequence parallelism, this is `sum` itself.
  Real* share_of(Real* sum) const { return sequence_parallel_ ? share_.data() : sum; }

  // fork() returns a stream that may use everything computed on `compute` so far; join() makes `compute` wait for it.
  // Without --overlap, the stream is `compute` itself.
  cudaStream_t fork(cudaStream_t compute) { return side_ ? side_->fork(compute) : compute; }
  void join(cudaStream_t compute) {
    if (side_) side_->join(compute);
  }

 private:
  const Group& group_;
  bool sequence_parallel_;
  std::optional<SideStream> side_;
  DeviceBuffer<Real> gathered_, share_;
};

// ---- f and g -------------------------------------------------------------------------------------------------------

// f, at the entry of a pair. Megatron-LM calls it copy_to_tensor_model_parallel_region or, if it gathers rows,
// gather_from_sequence_parallel_region.
class CopyToTensorParallel {
 public:
  explicit CopyToTensorParallel(const TensorParallelContext& tp) : tp_(tp) {}

  // Returns the rows of all ranks, [rows, width]. `x` [local rows, width] is this rank's. The result is valid until f
  // or g gathers again.
  const Real* forward(const Real* x, int rows, int width, cudaStream_t stream) const {
    const Real* all = x;
    probe("05.B", "given to f.forward: x", x, {tp_.local_rows(rows), width}, stream);
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of x
    // TODO 05.2: f, forward: make `all` point to the rows of all ranks.
    //   Without sequence parallelism, x already has them: do nothing. With it (tp_.sequence_parallel()), gather the
    //   ranks' rows into tp_.gathered(), in the order of the ranks, with one NCCL call over `comm` on `stream`. x has
    //   `count` elements of type kReal.
    todo("05.2");
    // END TODO 05.2
    probe("05.2", "f: rows, all is x, all is tp_.gathered()",
          std::array<int, 3>{rows, all == x, all == tp_.gathered()});
    probe("05.2", "f: rows of all ranks", all, {rows, width}, stream);
    return all;
  }

  // Computes dx[local rows, width], the gradient of f's input. `share` [rows, width] is the part of it that came back
  // through this rank's features; it must be tp.share_of(dx).
  void backward(const Real* share, Real* dx, int rows, int width, cudaStream_t stream) const {
    probe("05.7", "given to f.backward: rows, width, share is tp.share_of(dx), dx is share",
          std::array<int, 4>{rows, width, share == tp_.share_of(dx), dx == share});
    probe("05.7", "given to f.backward: share", share, {rows, width}, stream);
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of dx
    // TODO 05.7: f, backward: sum the ranks' shares of dx.
    //   All ranks used the same x, each with its own features, so the gradient of x is the sum of the ranks' shares.
    //   Without sequence parallelism every rank needs the whole sum: one NCCL call over `comm` on `stream`, from
    //   `share` to dx, which are the same memory here. With it, a rank needs only its own rows of the sum: which call
    //   is that? dx has `count` elements in both cases.
    todo("05.7");
    // END TODO 05.7
    probe("05.7", "f: gradient of x, summed over the ranks", dx, {tp_.local_rows(rows), width}, stream);
  }

 private:
  const TensorParallelContext& tp_;
};

// g, at the exit of a pair. Megatron-LM calls it reduce_from_tensor_model_parallel_region or, if it scatters rows,
// reduce_scatter_to_sequence_parallel_region.
class ReduceFromTensorParallel {
 public:
  explicit ReduceFromTensorParallel(const TensorParallelContext& tp) : tp_(tp) {}

  // Computes y[local rows, width], the sum of the ranks' shares. `share` [rows, width] must be tp.share_of(y).
  void forward(const Real* share, Real* y, int rows, int width, cudaStream_t stream) const {
    probe("05.4", "given to g.forward: rows, width, share is tp.share_of(y), y is share",
          std::array<int, 4>{rows, width, share == tp_.share_of(y), y == share});
    probe("05.4", "given to g.forward: share", share, {rows, width}, stream);
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of y
    // TODO 05.4: g, forward: sum the ranks' shares of y.
    //   One NCCL call from `share` to y in each mode. g's forward pass is f's backward pass (TODO 05.7).
    todo("05.4");
    // END TODO 05.4
    probe("05.4", "g: sum of the ranks' shares", y, {tp_.local_rows(rows), width}, stream);
  }

  // Returns the gradient [rows, width] of this rank's share, given dy[local rows, width]. It is valid until f or g
  // gathers again.
  const Real* backward(const Real* dy, int rows, int width, cudaStream_t stream) const {
    const Real* all = dy;
    probe("05.E", "given to g.backward: dy", dy, {tp_.local_rows(rows), width}, stream);
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of dy
    // TODO 05.5: g, backward: make `all` point to the gradient of this rank's share.
    //   y is the sum of the shares: what is its derivative with respect to one of them? The share has all rows. Which
    //   rows of dy does this rank already have, in each mode?
    todo("05.5");
    // END TODO 05.5
    probe("05.5", "g: rows, all is dy, all is tp_.gathered()",
          std::array<int, 3>{rows, all == dy, all == tp_.gathered()});
    probe("05.5", "g: gradient of this rank's share", all, {rows, width}, stream);
    return all;
  }

 private:
  const TensorParallelContext& tp_;
};

// ---- the two layers ------------------------------------------------------------------------------------------------

// Forward pass of a column-parallel layer: computes y[rows, l.out], this rank's features of all rows, from
// x[local rows, l.in]. After f, this is chapter 01's layer with fewer outputs.
inline void column_parallel_forward(const TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                    Real* y, int rows) {
  probe("05.2", {"given to column_parallel_forward: ", l.name}, x, {tp.local_rows(rows), l.in}, blas.stream());
  const CopyToTensorParallel f(tp);
  linear_forward(blas, l, f.forward(x, rows, l.in, blas.stream()), y, rows);
  probe("05.F", {l.name, ": this rank's features"}, y, {rows, l.out}, blas.stream());
}

// Computes the gradients of this rank's part of the layer, and dx[local rows, l.in], from dy[rows, l.out].
inline void column_parallel_backward(TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                     const Real* dy, Real* dx, const Real* ones, int rows, float accumulate) {
  const cudaStream_t compute = blas.stream();
  probe("05.6", {"given to column_parallel_backward: ", l.name}, dy, {rows, l.out}, compute);
  const CopyToTensorParallel f(tp);
  // Gathers the rows of all ranks again: keeping them since the forward pass would cost what sequence parallelism
  // saves.
  const Real* all = f.forward(x, rows, l.in, compute);
  Real* share = tp.share_of(dx);
  // TODO 05.6: Compute the layer's gradients, and sum dx over the ranks while dW is computed.
  //   Chapter 01's linear_backward_input(blas, l, dy, dx, rows) computes dx: here, this rank's `share` of it.
  //   f.backward(share, dx, rows, l.in, stream) sums it on the stream that tp.fork(compute) returns, which waits for
  //   everything enqueued on `compute` before the fork. Meanwhile, compute dW with linear_backward_parameters(blas, l,
  //   x, dy, ones, rows, accumulate), whose argument x is `all` here: the rows of x of all ranks. Then make `compute`
  //   wait for the sum, with tp.join(compute).
  todo("05.6");
  // END TODO 05.6
  probe("05.6", {l.name, ": gradient of x"}, dx, {tp.local_rows(rows), l.in}, compute);
  probe("05.6", {l.name, ": gradient of this rank's part of W"}, l.weight_grad, {l.out, l.in}, compute);
}

// Forward pass of a row-parallel layer: computes y[local rows, l.out] from x[rows, l.in], this rank's features of all
// rows.
inline void row_parallel_forward(const TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                 Real* y, int rows) {
  const cudaStream_t stream = blas.stream();
  probe("05.3", {"given to row_parallel_forward: ", l.name}, x, {rows, l.in}, stream);
  const ReduceFromTensorParallel g(tp);
  Real* share = tp.share_of(y);
  // TODO 05.3: Multiply, sum over the ranks with g, and add the bias.
  //   Compute this rank's `share` [rows, l.out] = x Wᵀ with gemm(), as in TODO 01.1. Sum the shares with
  //   g.forward(share, y, rows, l.out, stream). Every rank has the whole bias [l.out]. Add it to each row of the
  //   sum that this rank has, with the kernel add_bias, as in TODO 01.2: how many are these?
  todo("05.3");
  // END TODO 05.3
  probe("05.3", {l.name, ": x W^T, summed over the ranks, + b"}, y, {tp.local_rows(rows), l.out}, stream);
}

// Computes the gradients of this rank's part of the layer, and dx[rows, l.in], from dy[local rows, l.out]. After g,
// this is chapter 01's layer with fewer inputs. The gradient of the bias is whole on every rank, because g's backward
// pass returns all rows.
inline void row_parallel_backward(const TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                  const Real* dy, Real* dx, const Real* ones, int rows, float accumulate) {
  probe("05.5", {"given to row_parallel_backward: ", l.name}, dy, {tp.local_rows(rows), l.out}, blas.stream());
  const ReduceFromTensorParallel g(tp);
  linear_backward(blas, l, x, g.backward(dy, rows, l.out, blas.stream()), dx, ones, rows, accumulate);
  probe("05.I", {l.name, ": gradient of this rank's features"}, dx, {rows, l.in}, blas.stream());
  probe("05.I", {l.name, ": gradient of this rank's part of W"}, l.weight_grad, {l.out, l.in}, blas.stream());
  probe("05.I", {l.name, ": gradient of the bias"}, l.bias_grad, {l.out}, blas.stream());
}

// ---- layers of a network -------------------------------------------------------------------------------------------

// This rank's part of one or several layers of chapter 01. `cuts` says how each of their parameters is cut, in their
// order. The whole layers only draw the initial values; they compute nothing.
class ParallelLayer : public Layer {
 public:
  using Whole = std::vector<std::shared_ptr<const Layer>>;

  ParallelLayer(Whole whole, int in, int out, const std::vector<Cut>& cuts, const Group& group)
      : Layer(whole.front()->name, in, out), whole_(std::move(whole)) {
    auto cut = cuts.begin();
    for (const auto& layer : whole_) {
      for (const Parameter& p : layer->parameters) parameters.push_back(shard(p.name, p.shape, *cut++, group));
    }
  }

  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values;
    auto p = parameters.begin();
    for (const auto& layer : whole_) {
      const std::vector<float> drawn = layer->initial_values(generator);
      for (std::size_t at = 0; at < drawn.size(); at += p++->whole_count()) {
        const std::vector<float> mine = values_of(p->part, drawn.data() + at);
        values.insert(values.end(), mine.begin(), mine.end());
      }
    }
    return values;
  }

 private:
  Whole whole_;
};

// A column- and a row-parallel layer, each with the activation that follows it, if any. All ranks of the group must
// make the same calls with the same samples.
class ParallelPair : public ParallelLayer {
 public:
  ParallelPair(const std::shared_ptr<const Layer>& column, const std::shared_ptr<const Layer>& row, Activation inner,
               Activation outer, const std::shared_ptr<TensorParallelContext>& tp)
      : ParallelLayer({column, row}, column->in, row->out, {Cut::rows, Cut::rows, Cut::columns, Cut::none},
                      tp->group()),
        row_name_(row->name),
        features_(row->in / tp->group().size()),
        inner_(inner),
        outer_(outer),
        tp_(tp) {}

  // The outputs of both layers, before and after the activation.
  std::vector<int> saved() const override {
    return {features_, inner_ == Activation::none ? 0 : features_, out, outer_ == Activation::none ? 0 : out};
  }
  int widest() const override { return std::max({in, features_, out}); }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    column_ = linear_of(name, parameters[0], parameters[1]);
    row_ = linear_of(row_name_, parameters[2], parameters[3]);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    Real *z = saved.buffers[0].data(), *a = saved.buffers[1].data();
    Real *y = saved.buffers[2].data(), *activated = saved.buffers[3].data();
    {
      const Range range({"forward ", name}, blas.stream());
      column_parallel_forward(*tp_, blas, column_, static_cast<const Real*>(x), z, samples);
      if (a != nullptr) activation_forward(inner_, a, z, samples * features_, blas.stream());
    }
    const Range range({"forward ", row_name_}, blas.stream());
    row_parallel_forward(*tp_, blas, row_, a != nullptr ? a : z, y, samples);
    if (activated == nullptr) return y;
    activation_forward(outer_, activated, y, samples * out, blas.stream());
    return activated;
  }

  // Computes and sums the gradient of x even if the caller does not need it, so that a pair costs what it costs in a
  // real network, where another pair, a norm or an embedding lies below it.
  Real* backward(const Saved& saved, const Gradients& g) override {
    const Real *z = saved.buffers[0].data(), *a = saved.buffers[1].data(), *y = saved.buffers[2].data();
    const cudaStream_t stream = g.blas.stream();
    Real* hidden = g.spare;  // gradient of this rank's features
    {
      const Range range({"backward ", row_name_}, stream);
      if (outer_ != Activation::none) activation_backward(outer_, g.dy, y, g.samples * out, stream);
      row_parallel_backward(*tp_, g.blas, row_, a != nullptr ? a : z, g.dy, hidden, g.ones, g.samples, g.accumulate);
    }
    const Range range({"backward ", name}, stream);
    if (a != nullptr) activation_backward(inner_, hidden, z, g.samples * features_, stream);
    Real* dx = g.dx != nullptr ? g.dx : g.dy;
    column_parallel_backward(*tp_, g.blas, column_, static_cast<const Real*>(saved.x), hidden, dx, g.ones, g.samples,
                             g.accumulate);
    return dx;
  }

 private:
  std::string row_name_;
  int features_;  // of the hidden layer, on this rank
  Activation inner_, outer_;
  std::shared_ptr<TensorParallelContext> tp_;
  Linear column_{}, row_{};  // this rank's parts
};

}  // namespace workshop
