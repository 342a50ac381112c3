// SPDX-License-Identifier: Apache-2.0
// What the layers of a language model have in common that are sharded across a tensor-parallel group: f and g around
// the parts that are cut, and parameters that are parts of those of a whole layer.
//
// Between the parts that are cut, norms, dropout and residuals work row by row. Every rank does that for all rows or,
// with sequence parallelism (Korthikanti et al., 2022), for its own: the B·T rows of a batch are P equal blocks, of
// which rank r has the r-th. Which sample a row belongs to does not matter there.
//
//                                  f forward     f backward       g forward        g backward
//   every rank has all rows        identity      all-reduce       all-reduce       identity
//   each rank has its own rows     all-gather    reduce-scatter   reduce-scatter   all-gather
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/layer_norm.h"
#include "01_single_gpu/model.h"
#include "tensor_parallel.h"
#include "shards.h"

namespace workshop {

// ---- f and g -------------------------------------------------------------------------------------------------------

// How a network is cut. All of its layers share this, and the room in it, which one of them at a time works in.
class TensorParallel {
 public:
  // The group must live as long, and so must `side`: null for everything on one stream.
  TensorParallel(const Group& group, SideStream* side, bool sequence_parallel)
      : group_(group), side_(side), sequence_parallel_(sequence_parallel) {}

  const Group& group() const { return group_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  // How many of `rows` rows this rank has between the parts that are cut, and from which one on.
  int own(int rows) const { return sequence_parallel_ ? rows / group_.size() : rows; }
  int first_own(int rows) const { return sequence_parallel_ ? group_.rank() * own(rows) : 0; }

  // Call before the rest, for rows of at most so many floats in all.
  void allocate(int floats) {
    if (!sequence_parallel_ || whole_.size() > 0) return;
    whole_ = DeviceBuffer<Real>(floats, Memory::activations);
    share_ = DeviceBuffer<Real>(floats, Memory::activations);
  }

  // A column-parallel layer: this rank's features y[rows, l.out] of all rows from its own rows x[own, l.in].
  void column_forward(const Blas& blas, const Linear& l, const Real* x, Real* y, int rows) {
    column_parallel_forward(blas, l, gather(x, rows, l.in, blas.stream()), y, rows);
  }
  // The gradients of this rank's part of it, and dx[own, l.in].
  void column_backward(const Blas& blas, const Linear& l, const Real* x, const Real* dy, Real* dx, const Real* ones,
                       int rows, float accumulate) {
    if (!sequence_parallel_) {
      return column_parallel_backward(blas, group_, l, x, dy, dx, ones, rows, accumulate, side_);
    }
    // The rows of all ranks again: to have kept them would have cost what this technique is to save.
    const Real* whole = gather(x, rows, l.in, blas.stream());
    linear_backward_input(blas, l, dy, share_.data(), rows);
    scatter(share_.data(), dx, rows, l.in, side_ != nullptr ? side_->fork(blas.stream()) : blas.stream());
    linear_backward_parameters(blas, l, whole, dy, ones, rows, accumulate);
    if (side_ != nullptr) side_->join(blas.stream());
  }

  // A row-parallel layer: this rank's rows y[own, l.out] from its features x[rows, l.in] of all rows.
  void row_forward(const Blas& blas, const Linear& l, const Real* x, Real* y, int rows) {
    if (!sequence_parallel_) return row_parallel_forward(blas, group_, l, x, y, rows);
    gemm(blas, Op::as_is, Op::transposed, rows, l.out, l.in, x, l.weight, 0, share_.data());
    scatter(share_.data(), y, rows, l.out, blas.stream());
    launch(add_bias, own(rows) * l.out, blas.stream(), y, l.bias, own(rows), l.out);
  }
  // The gradients of this rank's part of it, and dx[rows, l.in], from dy[own, l.out]. The bias' gradient is whole: it
  // is formed from the rows of all ranks.
  void row_backward(const Blas& blas, const Linear& l, const Real* x, const Real* dy, Real* dx, const Real* ones,
                    int rows, float accumulate) {
    row_parallel_backward(blas, l, x, gather(dy, rows, l.out, blas.stream()), dx, ones, rows, accumulate);
  }

  // g without a bias: has `compute` write this rank's share of the sums to where it is told, [rows, width], and adds
  // the ranks' shares up, each rank for its own rows y[own, width].
  template <typename Compute>
  void sum(Real* y, int rows, int width, cudaStream_t stream, const Compute& compute) {
    compute(sequence_parallel_ ? share_.data() : y);
    if (sequence_parallel_) return scatter(share_.data(), y, rows, width, stream);
    NCCL_CHECK(ncclAllReduce(y, y, rows * width, kReal, ncclSum, group_.comm(), stream));
  }

  // The rows [rows, width] of all ranks, each of which has its own, [own, width]. Valid until the next call.
  const Real* gather(const Real* own_rows, int rows, int width, cudaStream_t stream) {
    if (!sequence_parallel_) return own_rows;
    Real* whole = whole_.data();
    const int count = own(rows) * width;
    // TODO 05.25: Gather the rows of all ranks: f forward, g backward.
    //   From own_rows to whole, in the order of the ranks. One NCCL call over group_.comm(), on `stream`, with `count`.
    NCCL_CHECK(ncclAllGather(own_rows, whole, count, kReal, group_.comm(), stream));
    // END TODO 05.25
    probe("05.25", "rows of all ranks", whole, {rows, width}, stream);
    return whole;
  }

  // Adds up what the ranks have seen of the gradients of norms: `count` floats from `seen` on of this one's rows, which
  // are overwritten. Adds the sums to `grads`, or overwrites them if `accumulate` is 0.
  void sum_norm_gradients(Real* seen, Real* grads, int count, float accumulate, cudaStream_t stream) const {
    // TODO 05.27: Sum the norms' gradients in `seen` over the ranks, in place.
    //   One NCCL call. Norms are replicas, but each rank's have seen its own rows alone. Why is `seen` not `grads`
    //   itself, where a step has several micro-batches? And why do the biases of the row-parallel layers, replicas too,
    //   need no sum?
    NCCL_CHECK(ncclAllReduce(seen, seen, count, kReal, ncclSum, group_.comm(), stream));
    // END TODO 05.27
    probe("05.27", "gradients of norms, summed over the ranks", seen, {count}, stream);
    if (accumulate > 0) {
      launch(add_scaled, count, stream, grads, seen, 1.0f, count);
    } else {
      CUDA_CHECK(cudaMemcpyAsync(grads, seen, count * sizeof(Real), cudaMemcpyDeviceToDevice, stream));
    }
  }

 private:
  // The sums y[own, width] of all ranks' shares [rows, width].
  void scatter(const Real* share, Real* y, int rows, int width, cudaStream_t stream) const {
    const int count = own(rows) * width;
    // TODO 05.26: Add the ranks' shares up, each rank for its own rows: g forward, f backward.
    //   From `share` to y, which has `count` floats: half of an all-reduce. One NCCL call over group_.comm(), on
    //   `stream`.
    NCCL_CHECK(ncclReduceScatter(share, y, count, kReal, ncclSum, group_.comm(), stream));
    // END TODO 05.26
    probe("05.26", "sums of this rank's rows", y, {own(rows), width}, stream);
  }

  const Group& group_;
  SideStream* side_;
  bool sequence_parallel_;
  DeviceBuffer<Real> whole_, share_;  // with sequence parallelism: rows of all ranks, a share of their sums
};

// ---- a layer -------------------------------------------------------------------------------------------------------

// A layer of which this rank holds a part: as `splits` says, parameter by parameter, of those of `whole`, chapter 01's,
// which draws the initial values and computes nothing.
class ParallelLayer : public Layer {
 public:
  ParallelLayer(std::shared_ptr<const Layer> whole, int in, int out, const std::vector<Split>& splits,
                std::shared_ptr<TensorParallel> cut)
      : Layer(whole->name, in, out), cut_(std::move(cut)), whole_(std::move(whole)) {
    for (std::size_t i = 0; i < splits.size(); ++i) {
      const Parameter& p = whole_->parameters[i];
      parameters.push_back(sharded(p.name, p.shape, splits[i], cut_->group()));
    }
  }

  std::vector<float> initial_values(Generator& generator) const override {
    const std::vector<float> all = whole_->initial_values(generator);
    std::vector<float> values;
    auto from = all.begin();
    for (const Parameter& p : parameters) {
      const auto to = from + p.whole_count();
      const std::vector<float> part = cut({from, to}, p, cut_->group());
      values.insert(values.end(), part.begin(), part.end());
      from = to;
    }
    return values;
  }

 protected:
  std::shared_ptr<TensorParallel> cut_;

 private:
  std::shared_ptr<const Layer> whole_;
};

// The gradients of a layer's norms, whose parameters lie one after the other in its array. With sequence parallelism
// they are formed beside it, from this rank's rows, and summed over the ranks.
class NormGradients {
 public:
  // `count` floats.
  void allocate(const TensorParallel& cut, int count) {
    count_ = count;
    if (cut.sequence_parallel()) seen_ = DeviceBuffer<Real>(count, Memory::data);
  }
  // The layer's first norm begins with `first`. `l` is one of its norms, `offset` floats behind that.
  LayerNorm redirected(LayerNorm l, int offset) const {
    if (seen_.size() == 0) return l;
    l.gamma_grad = seen_.data() + offset;
    l.beta_grad = l.gamma_grad + l.width;
    return l;
  }
  // What a norm's backward pass is told.
  float accumulate(const Gradients& g) const { return seen_.size() > 0 ? 0.0f : g.accumulate; }
  // Call behind the layer's last norm; `grads` is where the gradients of all its norms belong.
  void sum(const TensorParallel& cut, Real* grads, const Gradients& g) {
    if (seen_.size() > 0) cut.sum_norm_gradients(seen_.data(), grads, count_, g.accumulate, g.blas.stream());
  }

 private:
  int count_ = 0;
  DeviceBuffer<Real> seen_;
};

}  // namespace workshop
