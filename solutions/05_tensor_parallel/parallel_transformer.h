// SPDX-License-Identifier: Apache-2.0
// A transformer block, cut over the ranks of a tensor-parallel group (Shoeybi et al., 2019): attention and MLP are
// pairs of a column- and a row-parallel layer.
//
//   x ─ norm ─f─ q, k, v ─ heads ─ out_proj ─g─ dropout ─ + ─ norm ─f─ linear1 ─ GELU ─ linear2 ─g─ dropout ─ + ─ y
//                └── this rank's H/P heads ──┘                  └── this rank's 4E/P features ──┘
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "01_single_gpu/transformer.h"
#include "05_tensor_parallel/tensor_parallel.h"
#include "model/elementwise.h"

namespace workshop {

// The gradients of a layer's norms, whose parameters lie one after the other. With sequence parallelism, a rank
// computes them from its own rows in a separate buffer, and sum() adds them over the ranks.
class NormGradients {
 public:
  // `count` is the number of all parameters of the layer's norms.
  void allocate(const TensorParallelContext& tp, int count) {
    count_ = count;
    if (tp.sequence_parallel()) local_ = DeviceBuffer<Real>(count, Memory::data);
  }
  // Returns `norm` with its gradients in the separate buffer, if there is one, from element `offset` on.
  LayerNorm redirected(LayerNorm norm, int offset) const {
    if (local_.size() == 0) return norm;
    norm.gamma_grad = local_.data() + offset;
    norm.beta_grad = norm.gamma_grad + norm.width;
    return norm;
  }
  // Returns the argument `accumulate` of norm_backward(): the separate buffer is overwritten in every micro-batch.
  float accumulate(const Gradients& g) const { return local_.size() > 0 ? 0.0f : g.accumulate; }

  // Adds the gradients of this micro-batch to `grads` [count] or, in the first micro-batch of a step, sets them. Must
  // be called after the backward pass of all of the layer's norms.
  void sum(const TensorParallelContext& tp, Real* grads, const Gradients& g) {
    if (!tp.sequence_parallel()) return;
    const cudaStream_t stream = g.blas.stream();
    Real* local = local_.data();
    probe("05.R", "given to norm_gradients_.sum: this rank's gradients", local, {count_}, stream);
    // WRITE 05.R: Sum local[count_] over the ranks, in place, and put the sums into `grads`.
    //   In the first micro-batch of a step, g.accumulate is 0: the sums replace what is in grads[count_]. In the
    //   others, they are added to it, with the kernel add_scaled(y, x, factor, n). One NCCL call over
    //   tp.group().comm(), and everything on `stream`.
    // TODO 05.16: Sum local[count_] over the ranks, and put the sums into `grads`.
    //   The norms are replicas, but each rank has computed their gradients from its own rows. Sum `local` in place,
    //   with one NCCL call over the group. Then, if g.accumulate > 0, add the sums to `grads` with the kernel
    //   add_scaled(y, x, factor, n); otherwise copy them there (cudaMemcpyAsync counts bytes). Why not sum `grads`
    //   itself, if a step has several micro-batches? Why do the biases behind g, which are replicas too, need no sum?
    NCCL_CHECK(ncclAllReduce(local, local, count_, kReal, ncclSum, tp.group().comm(), stream));
    if (g.accumulate > 0) {
      launch(add_scaled, count_, stream, grads, local, 1.0f, count_);
    } else {
      CUDA_CHECK(cudaMemcpyAsync(grads, local, count_ * sizeof(Real), cudaMemcpyDeviceToDevice, stream));
    }
    // END TODO 05.16
    // END WRITE 05.R
    probe("05.16", "gradients of norms, of this micro-batch", local, {count_}, stream);
    probe("05.16", "gradients of norms", grads, {count_}, stream);
  }

 private:
  int count_ = 0;
  DeviceBuffer<Real> local_;
};

// Adds to a block's values the features of this rank's part of the MLP, before and after GELU.
struct ParallelBlockValues : BlockValues {
  ParallelBlockValues(const Saved& saved, const Heads& heads, int width)
      : BlockValues(saved, heads, width), z(saved.buffers[9].data()), a(saved.buffers[10].data()) {}
  Real *z, *a;  // [rows, 4·features]
};

// This rank's part of chapter 01's block: H/P heads and 4E/P features of the MLP. The norms and the biases of the
// row-parallel layers are whole. x and y are rows of [samples·T, E]: all of them or, with sequence parallelism, this
// rank's own.
class ParallelBlock : public ParallelLayer {
 public:
  // `positions` are those that this rank has of each sample: all T, unless chapter 08 cuts the sequence. `attention` is
  // that of this rank's heads. The number of ranks must divide the heads and, with sequence parallelism, the positions.
  ParallelBlock(const std::shared_ptr<const Layer>& whole, int number, const GptOptions& options, std::uint64_t seed,
                const Positions& positions, std::shared_ptr<Attention> attention,
                const std::shared_ptr<TensorParallelContext>& tp)
      : ParallelLayer({whole}, tp->local_rows(positions.count) * options.width,
                      tp->local_rows(positions.count) * options.width,
                      {Cut::heads, Cut::heads, Cut::columns, Cut::none, Cut::rows, Cut::rows, Cut::columns, Cut::none,
                       Cut::none, Cut::none, Cut::none, Cut::none},
                      tp->group()),
        tp_(tp),
        positions_(positions),
        T_(positions.count),
        E_(options.width),
        owned_attention_(std::move(attention)),
        attention_(*owned_attention_),
        heads_(attention_.heads()),
        dropout_(options.dropout),
        seed_(seed),
        number_(number) {}

  std::vector<int> saved() const override {
    const int features = 4 * T_ * heads_.features();
    return BlockValues::sizes(attention_, E_, tp_->local_rows(T_), {features, features});
  }
  // The larger of what backward() holds in `spare` and in the buffer of `dy`, which also has room for `beside`.
  int widest() const override {
    return std::max(4 * T_ * heads_.features(), out + std::max(out, attention_.scratch()));
  }
  int rows() const override { return T_; }
  void allocate(int max_samples, cudaStream_t) override {
    tp_->allocate(max_samples * T_ * E_);
    norm_gradients_.allocate(*tp_, 4 * E_);
    attention_.allocate(max_samples);
  }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const std::vector<Parameter>& p = parameters;
    in_proj_ = linear_of(name + ".self_attn.in_proj", p[0], p[1]);
    out_proj_ = linear_of(name + ".self_attn.out_proj", p[2], p[3]);
    linear1_ = linear_of(name + ".linear1", p[4], p[5]);
    linear2_ = linear_of(name + ".linear2", p[6], p[7]);
    norm1_ = norm_gradients_.redirected(norm_of(name + ".norm1", p[8], p[9]), 0);
    norm2_ = norm_gradients_.redirected(norm_of(name + ".norm2", p[10], p[11]), 2 * E_);
  }

  const Real* forward(const Blas& blas, const void* input, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    const auto* x = static_cast<const Real*>(input);
    const ParallelBlockValues v(saved, heads_, E_);
    const int rows = samples * T_, local = tp_->local_rows(rows);
    probe("05.P", {"given to the block: x of ", name}, x, {local, E_}, stream);
    // WRITE 05.P: Compute v.residual = x + attention(norm1(x)), then v.y = v.residual + mlp(norm2(v.residual)).
    //   The steps are those of Block::compute() in solutions/01_single_gpu/transformer.h. in_proj_, out_proj_, linear1_
    //   and linear2_ are this rank's parts of the linear layers, in two pairs. This rank's heads, heads_, have
    //   heads_.features() columns. Of the MLP's features, this rank has 4 * heads_.features() per row; a sample has T_
    //   rows. x, v.residual, v.y and the norms have `local` rows, all else has `rows`. The backward pass needs
    //   everything in ParallelBlockValues. Call norm_forward(norm, x, y, statistics, rows, stream),
    //   attention_.forward(blas, v.attention, samples, 0, T_, dropout) and activation_forward(Activation::gelu, y, x,
    //   count, stream). The kernel add_scaled(y, x, factor, n) adds. There are four dropouts: on_heads(saved.batch) for
    //   attention_.forward(), on_features(saved.batch) behind GELU, and at the end of each of the two branches
    //   on_rows(place, saved, rows), where `place` is Block::attention_place or Block::mlp_place. dropout.apply(y, x,
    //   samples, width, stream) works in place, too; `width` is the number of this rank's values per sample: `out` at
    //   the end of a branch; behind GELU, this rank's features of the MLP in all T_ rows. Without dropout, it does
    //   nothing.
    const Dropout on_probabilities = on_heads(saved.batch), on_attention = on_rows(Block::attention_place, saved, rows);
    // TODO 05.13: Compute the block's attention, up to v.residual = x + dropout(attention(norm1(x))).
    //   The MLP below works in the same way, and chapter 01's Block::compute() has all steps on one rank. The pair of
    //   layers is in_proj_, which writes v.qkv, and out_proj_, which reads v.context and writes v.residual: which of
    //   them is column-parallel? Between them, call attention_.forward(blas, v.attention, samples, 0, T_,
    //   on_probabilities) for this rank's heads. norm_forward(norm1_, x, v.normed1, v.statistics1, rows, stream), the
    //   dropout on_attention and the addition of x work on each row separately: on all `rows`, or only on this rank's
    //   `local` rows? Apply the dropout in place. Without dropout, apply() does nothing.
    norm_forward(norm1_, x, v.normed1, v.statistics1, local, stream);
    column_parallel_forward(*tp_, blas, in_proj_, v.normed1, v.qkv, rows);
    attention_.forward(blas, v.attention, samples, 0, T_, on_probabilities);
    row_parallel_forward(*tp_, blas, out_proj_, v.context, v.residual, rows);
    on_attention.apply(v.residual, v.residual, samples, out, stream);
    launch(add_scaled, local * E_, stream, v.residual, x, 1.0f, local * E_);
    // END TODO 05.13
    probe("05.13", {name, ": queries, keys and values of this rank's heads"}, v.qkv, {rows, 3 * heads_.features()},
          stream);
    probe("05.13", {name, ": x + attention"}, v.residual, {local, E_}, stream);

    norm_forward(norm2_, v.residual, v.normed2, v.statistics2, local, stream);
    column_parallel_forward(*tp_, blas, linear1_, v.normed2, v.z, rows);
    activation_forward(Activation::gelu, v.a, v.z, 4 * rows * heads_.features(), stream);
    on_features(saved.batch).apply(v.a, v.a, samples, 4 * T_ * heads_.features(), stream);
    row_parallel_forward(*tp_, blas, linear2_, v.a, v.y, rows);
    on_rows(Block::mlp_place, saved, rows).apply(v.y, v.y, samples, out, stream);
    launch(add_scaled, local * E_, stream, v.y, v.residual, 1.0f, local * E_);
    // END WRITE 05.P
    probe("05.P", {name, ": v.qkv, of this rank's heads"}, v.qkv, {rows, 3 * heads_.features()}, stream);
    probe("05.P", {name, ": v.residual"}, v.residual, {local, E_}, stream);
    probe("05.P", {name, ": v.a"}, v.a, {rows, 4 * heads_.features()}, stream);
    probe("05.P", {name, ": v.y"}, v.y, {local, E_}, stream);
    return v.y;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Blas& blas = g.blas;
    const cudaStream_t stream = blas.stream();
    const Range range({"backward ", name}, stream);
    const ParallelBlockValues v(saved, heads_, E_);
    const int rows = g.samples * T_, local = tp_->local_rows(rows), features = T_ * heads_.features();
    // The gradient within a branch lies in `beside`, which follows dy in the same buffer, and in `spare`.
    Real *dy = g.dy, *beside = g.dy + local * E_, *spare = g.spare;
    Real* dx = g.dx != nullptr ? g.dx : dy;
    probe("05.Q", {"given to the block: dy of ", name}, dy, {local, E_}, stream);
    // WRITE 05.Q: Go back through forward(), from dy to dx and to the gradients of all parameters.
    //   dy[local, E_] is the gradient of v.y, dx[local, E_] that of x. They may be the same memory, and dy may be
    //   overwritten. The steps are those of Block::backward() in solutions/01_single_gpu/transformer.h, in their order,
    //   with branch_gradient(), attention_.backward() and the same places in memory. `features` is T_ *
    //   heads_.features(). `spare` has room for 4 * features values per sample; `beside` has room for `local` rows, or
    //   for the attention probabilities. The dropouts are those of forward(). Call norm_backward(norm, x, statistics,
    //   dy, past, dx, rows, norm_gradients_.accumulate(g), stream), where `past` is the gradient that reaches x past
    //   the norm, or null. Then norm_gradients_.sum(*tp_, parameters[8].grad, g) completes the gradients of both norms.
    const float norm_accumulate = norm_gradients_.accumulate(g);

    const Real* dmlp = branch_gradient(on_rows(Block::mlp_place, saved, rows), dy, beside, g.samples, out, stream);
    const Dropout on_gelu = on_features(saved.batch);
    // TODO 05.15: Go back through the MLP: turn dy from the gradient of v.y into that of v.residual, in place.
    //   The attention below works in the same way. `dmlp` is the gradient of linear2_'s output, v.a its input. Write
    //   the gradient of v.a to `spare`. First apply the dropout on_gelu to it in place, with 4 * features values per
    //   sample; then activation_backward(Activation::gelu, spare, v.z, n, stream), for this rank's features of all
    //   rows. Then go back through linear1_, whose input was v.normed2, and write the gradient of v.normed2 to
    //   `beside`. Last, norm_backward(norm2_, v.residual, v.statistics2, beside, dy, dy, rows, norm_accumulate, stream)
    //   adds the branch's gradient to dy: for how many rows?
    row_parallel_backward(*tp_, blas, linear2_, v.a, dmlp, spare, g.ones, rows, g.accumulate);
    on_gelu.apply(spare, spare, g.samples, 4 * features, stream);
    activation_backward(Activation::gelu, spare, v.z, 4 * g.samples * features, stream);
    column_parallel_backward(*tp_, blas, linear1_, v.normed2, spare, beside, g.ones, rows, g.accumulate);
    norm_backward(norm2_, v.residual, v.statistics2, beside, dy, dy, local, norm_accumulate, stream);
    // END TODO 05.15
    probe("05.15", {name, ": gradient of x + attention"}, dy, {local, E_}, stream);
    probe("05.15", {name, ": gradients of norm2, of this rank's rows"}, norm2_.gamma_grad, {2 * E_}, stream);

    const Real* dattention =
        branch_gradient(on_rows(Block::attention_place, saved, rows), dy, beside, g.samples, out, stream);
    row_parallel_backward(*tp_, blas, out_proj_, v.context, dattention, spare, g.ones, rows, g.accumulate);
    const AttentionValues gradients = {spare + g.samples * features, beside, spare};
    attention_.backward(blas, v.attention, gradients, g.samples, on_heads(saved.batch));
    column_parallel_backward(*tp_, blas, in_proj_, v.normed1, gradients.qkv, beside, g.ones, rows, g.accumulate);
    norm_backward(norm1_, static_cast<const Real*>(saved.x), v.statistics1, beside, dy, dx, local, norm_accumulate,
                  stream);
    norm_gradients_.sum(*tp_, parameters[8].grad, g);
    // END WRITE 05.Q
    probe("05.Q", {name, ": gradient of x"}, dx, {local, E_}, stream);
    probe("05.Q", {name, ": gradients of the norms"}, parameters[8].grad, {4 * E_}, stream);
    return dx;
  }

 private:
  // Dropout drops the same values as in one process: each rank says which part of the values it has.
  Dropout dropout(Block::Place place, const Batch& batch, DropoutPart part) const {
    return {dropout_, seed_, number_, place, batch, part};
  }
  Dropout on_heads(const Batch& batch) const {
    if (dropout_ == 0) return dropout(Block::probability_place, batch, {});  // the number below may overflow
    return dropout(Block::probability_place, batch, nth_of(heads_.count * positions_.whole * positions_.whole));
  }
  Dropout on_features(const Batch& batch) const {
    DropoutPart part = nth_of(4 * heads_.features());
    part.rows = positions_;
    part.row_width = part.whole;
    return dropout(Block::activation_place, batch, part);
  }
  Dropout on_rows(Block::Place place, const Saved& saved, int rows) const {
    return dropout(place, saved.batch,
                   {tp_->local_rows(rows) * E_, rows * E_, tp_->first_local_row(rows) * E_, positions_, E_});
  }
  // This rank's part, if each of the P ranks has `count` values.
  DropoutPart nth_of(int count) const { return {count, count * tp_->group().size(), count * tp_->group().rank()}; }

  std::shared_ptr<TensorParallelContext> tp_;
  Positions positions_;
  int T_, E_;  // positions on this rank, width
  std::shared_ptr<Attention> owned_attention_;
  Attention& attention_;  // of this rank's heads
  Heads heads_;
  double dropout_;
  std::uint64_t seed_;
  int number_;
  Linear in_proj_{}, out_proj_{}, linear1_{}, linear2_{};  // this rank's parts
  LayerNorm norm1_{}, norm2_{};
  NormGradients norm_gradients_;
};

}  // namespace workshop
