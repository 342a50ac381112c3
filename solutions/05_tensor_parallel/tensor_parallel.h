// SPDX-License-Identifier: Apache-2.0
// Linear layers cut over the ranks of a tensor-parallel group, in pairs (Shoeybi et al., 2019).
//
//   x ─f─ column-parallel ─ activation ─ row-parallel ─g─ y
//
// The first layer of a pair is cut by columns of Wᵀ, which are rows of W [out, in]: a rank computes only its own
// features of the hidden layer. The second is cut by rows of Wᵀ, columns of W: it reads just these features, and what
// it computes is one rank's share of a sum. Between the two nothing is sent.
//
// What lies outside the pairs, norms, dropout and residuals in a transformer, works row by row. Either every rank does
// it for all rows or, with sequence parallelism (Korthikanti et al., 2022), for its own: the rows of a batch are P
// equal blocks, and rank r has the r-th. f and g lead from there into a pair and out again, and each is the other's
// gradient:
//
//                                  f forward     f backward       g forward        g backward
//   every rank has all rows        identity      all-reduce       all-reduce       identity
//   each rank has its own rows     all-gather    reduce-scatter   reduce-scatter   all-gather
#pragma once

#include <algorithm>
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

// A second stream, so that a layer's dx is summed over the ranks while its dW is computed.
class SideStream {
 public:
  // Returns the stream, which waits for what is enqueued on `compute` so far.
  cudaStream_t fork(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(forked_, compute));
    CUDA_CHECK(cudaStreamWaitEvent(stream_, forked_));
    return stream_;
  }
  // Makes `compute` wait for what is enqueued on the stream so far.
  void join(cudaStream_t compute) {
    CUDA_CHECK(cudaEventRecord(joined_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(compute, joined_));
  }

 private:
  Stream stream_{"side"};
  Event forked_, joined_;
};

// How a network is cut, and the buffers that its layers use one at a time.
class TensorParallelContext {
 public:
  // The group must outlive this.
  TensorParallelContext(const Group& group, const TensorParallelOptions& options)
      : group_(group), sequence_parallel_(options.sequence_parallel) {
    if (options.overlap) side_.emplace();
  }

  const Group& group() const { return group_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  // How many of `rows` rows this rank has outside the pairs, and the first of them.
  int local_rows(int rows) const { return sequence_parallel_ ? rows / group_.size() : rows; }
  int first_local_row(int rows) const { return sequence_parallel_ ? group_.rank() * local_rows(rows) : 0; }

  // Call this before the rest, for at most so many floats in all rows.
  void allocate(int floats) {
    if (!sequence_parallel_ || gathered_.size() > 0) return;
    gathered_ = DeviceBuffer<Real>(floats, Memory::activations);
    share_ = DeviceBuffer<Real>(floats, Memory::activations);
  }
  // With sequence parallelism: room for the rows of all ranks.
  Real* gathered() const { return gathered_.data(); }
  // Where to write this rank's share [rows, width] of a sum that belongs to `sum` [local rows, width]: there, if every
  // rank has all rows.
  Real* share_of(Real* sum) const { return sequence_parallel_ ? share_.data() : sum; }

  // A stream on which to sum what `compute` has computed so far, and how `compute` waits for it.
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

// f, where a pair begins. Megatron-LM calls it copy_to_tensor_model_parallel_region or, where it gathers rows,
// gather_from_sequence_parallel_region.
class CopyToTensorParallel {
 public:
  explicit CopyToTensorParallel(const TensorParallelContext& tp) : tp_(tp) {}

  // Returns all rows [rows, width], from this rank's x[local rows, width]. Valid until f or g gathers the next ones.
  const Real* forward(const Real* x, int rows, int width, cudaStream_t stream) const {
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of x
    const Real* all = x;
    // TODO 05.2: f, forward: make `all` point to the rows of all ranks.
    //   Without sequence parallelism x has them already. With it, tp_.sequence_parallel(), gather them in
    //   tp_.gathered(), in the order of the ranks, by one NCCL call over `comm` on `stream`. x has `count` numbers, of
    //   the type kReal.
    if (tp_.sequence_parallel()) {
      NCCL_CHECK(ncclAllGather(x, tp_.gathered(), count, kReal, comm, stream));
      all = tp_.gathered();
    }
    // END TODO 05.2
    probe("05.2", "f: rows of all ranks", all, {rows, width}, stream);
    return all;
  }

  // dx[local rows, width], the gradient of f's input, from `share` [rows, width]: what reached it through this rank's
  // features. `share` is tp.share_of(dx).
  void backward(const Real* share, Real* dx, int rows, int width, cudaStream_t stream) const {
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of dx
    // TODO 05.7: f, backward: add up the ranks' shares of dx.
    //   All ranks have worked with the same x, each with its own features, so the gradient of x is the sum of what the
    //   ranks have found. Without sequence parallelism every rank needs all of it: one NCCL call over `comm` on
    //   `stream`, from `share` to dx, which are the same memory then. With it, only its own rows: which call is that?
    //   dx has `count` numbers either way.
    if (tp_.sequence_parallel()) {
      NCCL_CHECK(ncclReduceScatter(share, dx, count, kReal, ncclSum, comm, stream));
    } else {
      NCCL_CHECK(ncclAllReduce(share, dx, count, kReal, ncclSum, comm, stream));
    }
    // END TODO 05.7
    probe("05.7", "f: gradient of x, summed over the ranks", dx, {tp_.local_rows(rows), width}, stream);
  }

 private:
  const TensorParallelContext& tp_;
};

// g, where a pair ends. Megatron-LM calls it reduce_from_tensor_model_parallel_region or, where it deals out rows,
// reduce_scatter_to_sequence_parallel_region.
class ReduceFromTensorParallel {
 public:
  explicit ReduceFromTensorParallel(const TensorParallelContext& tp) : tp_(tp) {}

  // y[local rows, width] from this rank's `share` [rows, width] of it, which is tp.share_of(y).
  void forward(const Real* share, Real* y, int rows, int width, cudaStream_t stream) const {
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of y
    // TODO 05.4: g, forward: add up the ranks' shares of y.
    //   One NCCL call. g is f read backward: what does that say about this function, in either mode?
    if (tp_.sequence_parallel()) {
      NCCL_CHECK(ncclReduceScatter(share, y, count, kReal, ncclSum, comm, stream));
    } else {
      NCCL_CHECK(ncclAllReduce(share, y, count, kReal, ncclSum, comm, stream));
    }
    // END TODO 05.4
    probe("05.4", "g: sum of the ranks' shares", y, {tp_.local_rows(rows), width}, stream);
  }

  // Returns the gradient [rows, width] of this rank's share, from dy[local rows, width]. Valid as long as f's.
  const Real* backward(const Real* dy, int rows, int width, cudaStream_t stream) const {
    const ncclComm_t comm = tp_.group().comm();
    const int count = tp_.local_rows(rows) * width;  // of dy
    const Real* all = dy;
    // TODO 05.5: g, backward: make `all` point to the gradient of this rank's share.
    //   y is a sum of shares, so what is its derivative by one of them? And which rows of dy does this rank need for
    //   it, in either mode?
    if (tp_.sequence_parallel()) {
      NCCL_CHECK(ncclAllGather(dy, tp_.gathered(), count, kReal, comm, stream));
      all = tp_.gathered();
    }
    // END TODO 05.5
    probe("05.5", "g: gradient of this rank's share", all, {rows, width}, stream);
    return all;
  }

 private:
  const TensorParallelContext& tp_;
};

// ---- the two layers ------------------------------------------------------------------------------------------------

// A column-parallel layer: y[rows, l.out], this rank's features of all rows, from x[local rows, l.in]. Behind f that is
// chapter 01's layer, with fewer outputs.
inline void column_parallel_forward(const TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                    Real* y, int rows) {
  const CopyToTensorParallel f(tp);
  linear_forward(blas, l, f.forward(x, rows, l.in, blas.stream()), y, rows);
}

// The gradients of this rank's part of the layer from dy[rows, l.out], and dx[local rows, l.in].
inline void column_parallel_backward(TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                     const Real* dy, Real* dx, const Real* ones, int rows, float accumulate) {
  const CopyToTensorParallel f(tp);
  const cudaStream_t compute = blas.stream();
  // The rows of all ranks once more: to have kept them would have cost what sequence parallelism saves.
  const Real* all = f.forward(x, rows, l.in, compute);
  Real* share = tp.share_of(dx);
  // TODO 05.6: The backward pass of the layer, in which dx travels while dW is computed.
  //   linear_backward_input(blas, l, dy, dx, rows) of chapter 01 gives this rank's `share` of dx. f.backward(share, dx,
  //   rows, l.in, stream) sums it on any stream: tp.fork(compute) is one that waits for what `compute` has computed so
  //   far. Meanwhile linear_backward_parameters(blas, l, x, dy, ones, rows, accumulate) needs `all` rows of x.
  //   tp.join(compute) lets `compute` wait for the sum: when is it needed?
  linear_backward_input(blas, l, dy, share, rows);
  f.backward(share, dx, rows, l.in, tp.fork(compute));
  linear_backward_parameters(blas, l, all, dy, ones, rows, accumulate);
  tp.join(compute);
  // END TODO 05.6
  probe("05.6", {l.name, ": gradient of x"}, dx, {tp.local_rows(rows), l.in}, compute);
  probe("05.6", {l.name, ": gradient of this rank's part of W"}, l.weight_grad, {l.out, l.in}, compute);
}

// A row-parallel layer: y[local rows, l.out] from this rank's features x[rows, l.in] of all rows.
inline void row_parallel_forward(const TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                 Real* y, int rows) {
  const ReduceFromTensorParallel g(tp);
  const cudaStream_t stream = blas.stream();
  Real* share = tp.share_of(y);
  // TODO 05.3: Multiply, sum over the ranks with g, and add the bias.
  //   This rank's `share` [rows, l.out] is a product x Wᵀ, by gemm() as in TODO 01.1. g.forward(share, y, rows, l.out,
  //   stream) sums the shares. Every rank has the whole bias [l.out], and adds it to each of its rows with the kernel
  //   add_bias as in TODO 01.2: before the sum or after it, and to how many rows?
  gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 0, share);
  g.forward(share, y, rows, l.out, stream);
  const int local = tp.local_rows(rows);
  launch(add_bias, local * l.out, stream, y, l.bias, local, l.out);
  // END TODO 05.3
  probe("05.3", {l.name, ": x W^T, summed over the ranks, + b"}, y, {tp.local_rows(rows), l.out}, stream);
}

// The gradients of this rank's part of the layer from dy[local rows, l.out], and dx[rows, l.in]. Behind g that is
// chapter 01's layer, with fewer inputs. The gradient of the bias is whole on every rank, because dy has all rows then.
inline void row_parallel_backward(const TensorParallelContext& tp, const Blas& blas, const Linear& l, const Real* x,
                                  const Real* dy, Real* dx, const Real* ones, int rows, float accumulate) {
  const ReduceFromTensorParallel g(tp);
  linear_backward(blas, l, x, g.backward(dy, rows, l.out, blas.stream()), dx, ones, rows, accumulate);
}

// ---- layers of a network -------------------------------------------------------------------------------------------

// A layer of which this rank holds a part: `cuts` says how the parameters of `whole` are cut, one after the other.
// These are one or several layers of chapter 01, which draw the initial values and compute nothing.
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

// A column- and a row-parallel layer, each with the activation that follows it, if any. All ranks of the group make the
// same calls, with the same samples.
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

  // Of both layers, before and after the activation.
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

  // The gradient of x is computed and summed even where it is not asked for: below a pair of a real network there is
  // never the data, but another pair, a norm or an embedding.
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
