// SPDX-License-Identifier: Apache-2.0
// A transformer block over the ranks of a tensor-parallel group (Shoeybi et al., 2019): attention and MLP are pairs of
// a column- and a row-parallel layer.
//
//   x ─ norm ─f─ q, k, v ─ heads ─ out_proj ─g─ dropout ─ + ─ norm ─f─ linear1 ─ GELU ─ linear2 ─g─ dropout ─ + ─ y
//                └── this rank's H/P heads ──┘                  └── this rank's 4E/P features ──┘
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "01_single_gpu/transformer.h"
#include "parallel_layer.h"

namespace workshop {

// Chapter 01's block, of which this rank holds H/P heads and 4E/P features of the MLP, and whole norms and biases of
// the row-parallel layers. x and y are its rows of [samples·T, E]: all of them, or with sequence parallelism its own.
class ParallelBlock : public ParallelLayer {
 public:
  // The group must divide the heads and, with sequence parallelism, T.
  ParallelBlock(const std::shared_ptr<const Layer>& whole, int number, const GptOptions& options, std::uint64_t seed,
                const std::shared_ptr<TensorParallel>& cut)
      : ParallelLayer(whole, cut->own(options.context) * options.width, cut->own(options.context) * options.width,
                      {Split::rows, Split::rows, Split::columns, Split::none, Split::rows, Split::rows, Split::columns,
                       Split::none, Split::none, Split::none, Split::none, Split::none},
                      cut),
        T_(options.context),
        E_(options.width),
        heads_{options.context, options.heads / cut->group().size(), options.width / options.heads},
        dropout_(options.dropout),
        seed_(seed),
        number_(number) {
    for (int i : {0, 1}) parameters[i].pieces = 3;  // queries, keys and values, of each the rank's heads
  }

  // As Values lists them.
  std::vector<int> saved() const override {
    const int statistics = reals_spanning(2 * cut_->own(T_)), features = T_ * heads_.features();
    return {out, statistics, 3 * features, probabilities(), features, out,
            out, statistics, 4 * features, 4 * features,    out};
  }
  // The gradients that backward() has beside each other in dy and spare.
  int widest() const override { return std::max(4 * T_ * heads_.features(), out + std::max(out, probabilities())); }
  int rows() const override { return T_; }
  void allocate(int max_samples, cudaStream_t) override {
    cut_->allocate(max_samples * T_ * E_);
    norm_gradients_.allocate(*cut_, 4 * E_);
    if (dropout_ > 0) dropped_ = DeviceBuffer<Real>(max_samples * probabilities(), Memory::activations);
  }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const std::vector<Parameter>& p = parameters;
    in_proj_ = linear_part(name + ".self_attn.in_proj", p[0], p[1]);
    out_proj_ = linear_part(name + ".self_attn.out_proj", p[2], p[3]);
    linear1_ = linear_part(name + ".linear1", p[4], p[5]);
    linear2_ = linear_part(name + ".linear2", p[6], p[7]);
    norm1_ = norm_gradients_.redirected(norm_of(name + ".norm1", p[8], p[9]), 0);
    norm2_ = norm_gradients_.redirected(norm_of(name + ".norm2", p[10], p[11]), 2 * E_);
  }

  const Real* forward(const Blas& blas, const void* input, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    const auto* x = static_cast<const Real*>(input);
    const Values v(saved);
    const int rows = samples * T_, own = cut_->own(rows), n = own * E_, features = T_ * heads_.features();
    norm_forward(norm1_, x, v.normed1, v.statistics1, own, stream);
    cut_->column_forward(blas, in_proj_, v.normed1, v.attention.qkv, rows);
    attention_forward(blas, heads_, v.attention, samples, 0, T_, on_heads(saved.batch), dropped_.data());
    cut_->row_forward(blas, out_proj_, v.attention.context, v.residual, rows);
    on_rows(Block::attention_place, saved.batch, rows).apply(v.residual, v.residual, samples, out, stream);
    launch(add_scaled, n, stream, v.residual, x, 1.0f, n);

    norm_forward(norm2_, v.residual, v.normed2, v.statistics2, own, stream);
    cut_->column_forward(blas, linear1_, v.normed2, v.z, rows);
    activation_forward(Activation::gelu, v.a, v.z, 4 * samples * features, stream);
    on_features(saved.batch).apply(v.a, v.a, samples, 4 * features, stream);
    cut_->row_forward(blas, linear2_, v.a, v.y, rows);
    on_rows(Block::mlp_place, saved.batch, rows).apply(v.y, v.y, samples, out, stream);
    launch(add_scaled, n, stream, v.y, v.residual, 1.0f, n);
    return v.y;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Blas& blas = g.blas;
    const cudaStream_t stream = blas.stream();
    const Range range({"backward ", name}, stream);
    const Values v(saved);
    const int rows = g.samples * T_, own = cut_->own(rows), features = T_ * heads_.features();
    // Beside dy, in the same buffer, and in spare: what is on its way through the branches.
    Real *dy = g.dy, *beside = g.dy + own * E_, *spare = g.spare;
    const float norm_accumulate = norm_gradients_.accumulate(g);
    const auto column = [&](const Linear& l, const Real* x, const Real* dy, Real* dx) {
      cut_->column_backward(blas, l, x, dy, dx, g.ones, rows, g.accumulate);
    };
    const auto row = [&](const Linear& l, const Real* x, const Real* dy, Real* dx) {
      cut_->row_backward(blas, l, x, dy, dx, g.ones, rows, g.accumulate);
    };

    row(linear2_, v.a, branch(on_rows(Block::mlp_place, saved.batch, rows), dy, beside, g.samples, stream), spare);
    on_features(saved.batch).apply(spare, spare, g.samples, 4 * features, stream);
    activation_backward(Activation::gelu, spare, v.z, 4 * g.samples * features, stream);
    column(linear1_, v.normed2, spare, beside);
    norm_backward(norm2_, v.residual, v.statistics2, beside, dy, dy, own, norm_accumulate, stream);

    row(out_proj_, v.attention.context,
        branch(on_rows(Block::attention_place, saved.batch, rows), dy, beside, g.samples, stream), spare);
    const AttentionValues gradients = {spare + g.samples * features, beside, spare};
    attention_backward(blas, heads_, v.attention, gradients, g.samples, on_heads(saved.batch), dropped_.data());
    column(in_proj_, v.normed1, gradients.qkv, beside);
    Real* dx = g.dx != nullptr ? g.dx : dy;
    norm_backward(norm1_, static_cast<const Real*>(saved.x), v.statistics1, beside, dy, dx, own, norm_accumulate,
                  stream);
    norm_gradients_.sum(*cut_, parameters[8].grad, g);
    return dx;
  }

 private:
  // What the forward pass leaves. R: rows of the batch, r: of this rank between the parts that are cut; F = E/P.
  struct Values {
    explicit Values(const Saved& saved) {
      const auto at = [&](int i) { return saved.buffers[i].data(); };
      const auto statistics = [&](int i) { return statistics_in(saved.buffers[i]); };
      normed1 = at(0);
      statistics1 = statistics(1);
      attention = {at(2), at(3), at(4)};
      residual = at(5);
      normed2 = at(6);
      statistics2 = statistics(7);
      z = at(8);
      a = at(9);
      y = at(10);
    }
    Real *normed1, *residual, *normed2, *y;  // [r, E]
    Real *z, *a;                             // [R, 4F]
    RowStatistics statistics1, statistics2;  // [r]
    AttentionValues attention;               // [R, 3F], this rank's heads, [R, F]
  };

  // Dropout drops what one process would: each rank says which values it has.
  Dropout dropout(Block::Place place, const Batch& batch, DropoutPart part) const {
    return {dropout_, seed_, number_, place, batch, part};
  }
  Dropout on_heads(const Batch& batch) const {
    return dropout(Block::probability_place, batch, nth_of(probabilities()));
  }
  Dropout on_features(const Batch& batch) const {
    return dropout(Block::activation_place, batch, nth_of(4 * heads_.features()));
  }
  Dropout on_rows(Block::Place place, const Batch& batch, int rows) const {
    return dropout(place, batch, {cut_->own(rows) * E_, rows * E_, cut_->first_own(rows) * E_});
  }
  // This rank's of P equal parts of `count` values each.
  DropoutPart nth_of(int count) const { return {count, count * cut_->group().size(), count * cut_->group().rank()}; }

  // The gradient that goes into a branch, which is dy but for what was dropped at its end: that is in `room` then.
  const Real* branch(const Dropout& dropped, const Real* dy, Real* room, int samples, cudaStream_t stream) const {
    if (!dropped.active()) return dy;
    dropped.apply(room, dy, samples, out, stream);
    return room;
  }

  int probabilities() const { return heads_.count * T_ * T_; }  // of a sample, on this rank

  int T_, E_;    // positions, width
  Heads heads_;  // of this rank
  double dropout_;
  std::uint64_t seed_;
  int number_;
  Linear in_proj_{}, out_proj_{}, linear1_{}, linear2_{};  // this rank's parts
  LayerNorm norm1_{}, norm2_{};
  NormGradients norm_gradients_;
  DeviceBuffer<Real> dropped_;  // probabilities
};

}  // namespace workshop
