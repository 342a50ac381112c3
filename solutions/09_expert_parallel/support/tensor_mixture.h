// SPDX-License-Identifier: Apache-2.0
// A block with a mixture of experts, split across a tensor-parallel group: attention as in chapter 05, and this rank's
// share of the features of every expert. All ranks of the group route all tokens, and each computes a share of every
// output.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "05_tensor_parallel/parallel_transformer.h"
#include "09_expert_parallel/moe.h"

namespace workshop {

// The experts' features are split across the group. So each rank's outputs, and its gradients of the mixing weights and
// of x, are partial sums that must be added up.
class TensorMixture : public Mixture {
 public:
  TensorMixture(const GptOptions& options, int positions, std::shared_ptr<Experts> experts,
                std::shared_ptr<Router> router, const Group& tensor)
      : Mixture(options, positions, std::move(experts), std::move(router)), tensor_(tensor) {}

  void forward(const Blas& blas, const Real* x, Real* y, Saved& saved, int samples, int first, int count,
               const Dropout& dropout) override {
    Mixture::forward(blas, x, y, saved, samples, first, count, dropout);
    sum(y, kReal, samples * count * width_, blas.stream());
  }

  void backward(const Real* x, const Real* dy, Real* dx, Real* scratch, const Saved& saved, const Gradients& g,
                const Dropout&) override {
    const cudaStream_t stream = g.blas.stream();
    const int tokens = g.samples * positions_;
    const Kept kept(saved, router_, g.samples, positions_);
    Real *drows = scratch, *beside = drows + saved.numbers.back() * width_;
    experts_->clear(drows, stream);
    launch(combine_backward, tokens * K_ * width_, stream, drows, dweights_.data(), dy, kept.y, kept.row_of,
           kept.routing.weights, tokens, K_, width_);
    sum(dweights_.data(), ncclFloat, tokens * K_, stream);
    experts_->backward(kept.x, drows, beside, saved, g);
    launch(permute_backward, tokens * width_, stream, dx, drows, kept.row_of, tokens, K_, width_);
    sum(dx, kReal, tokens * width_, stream);
    router_.backward(x, dweights_.data(), kept.routing, dx, saved.batch, g);
  }

 private:
  void sum(void* values, ncclDataType_t type, int count, cudaStream_t stream) const {
    NCCL_CHECK(ncclAllReduce(values, values, count, type, ncclSum, tensor_.comm(), stream));
  }

  const Group& tensor_;
};

// This rank's part of chapter 01's block with a mixture: H/t heads, a mixture with 4E/t features of each expert, and
// whole norms and router.
class TensorMixtureBlock : public ParallelLayer {
 public:
  // `whole` is the block with all features of this rank's experts. `mixture` computes with this rank's features, for
  // `positions` of each sample.
  TensorMixtureBlock(const std::shared_ptr<const Layer>& whole, int number, const GptOptions& options,
                     std::uint64_t seed, const Positions& positions, std::shared_ptr<Attention> attention,
                     std::shared_ptr<FeedForward> mixture, const std::shared_ptr<TensorParallelContext>& tp)
      : ParallelLayer({whole}, positions.count * options.width, positions.count * options.width,
                      cuts(whole->parameters), tp->group()),
        tp_(tp),
        positions_(positions),
        T_(positions.count),
        E_(options.width),
        attention_(std::move(attention)),
        mixture_(std::move(mixture)),
        dropout_(options.dropout),
        seed_(seed),
        number_(number) {}

  std::vector<int> saved() const override { return BlockValues::sizes(*attention_, E_, T_, mixture_->saved()); }
  int widest() const override {
    return std::max({mixture_->scratch(), 4 * out, out + std::max(out, attention_->scratch())});
  }
  int rows() const override { return T_; }
  void allocate(int max_samples, cudaStream_t stream) override {
    tp_->allocate(max_samples * T_ * E_);
    attention_->allocate(max_samples);
    mixture_->allocate(max_samples, stream);
  }
  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const std::vector<Parameter>& p = parameters;
    const Parameter* norms = &p[p.size() - 4];
    in_proj_ = linear_of(name + ".self_attn.in_proj", p[0], p[1]);
    out_proj_ = linear_of(name + ".self_attn.out_proj", p[2], p[3]);
    mixture_->bind(name, &p[4]);
    norm1_ = norm_of(name + ".norm1", norms[0], norms[1]);
    norm2_ = norm_of(name + ".norm2", norms[2], norms[3]);
  }

  const Real* forward(const Blas& blas, const void* input, int samples, Saved& saved) override {
    const cudaStream_t stream = blas.stream();
    const Range range({"forward ", name}, stream);
    const auto* x = static_cast<const Real*>(input);
    const BlockValues v(saved, attention_->heads(), E_);
    const int rows = samples * T_, n = rows * E_;
    norm_forward(norm1_, x, v.normed1, v.statistics1, rows, stream);
    column_parallel_forward(*tp_, blas, in_proj_, v.normed1, v.qkv, rows);
    attention_->forward(blas, v.attention, samples, 0, T_, on_heads(saved.batch));
    row_parallel_forward(*tp_, blas, out_proj_, v.context, v.residual, rows);
    on_rows(Block::attention_place, saved.batch).apply(v.residual, v.residual, samples, out, stream);
    launch(add_scaled, n, stream, v.residual, x, 1.0f, n);

    norm_forward(norm2_, v.residual, v.normed2, v.statistics2, rows, stream);
    mixture_->forward(blas, v.normed2, v.y, saved, samples, 0, T_, on_rows(Block::activation_place, saved.batch));
    on_rows(Block::mlp_place, saved.batch).apply(v.y, v.y, samples, out, stream);
    launch(add_scaled, n, stream, v.y, v.residual, 1.0f, n);
    return v.y;
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Blas& blas = g.blas;
    const cudaStream_t stream = blas.stream();
    const Range range({"backward ", name}, stream);
    const Heads& heads = attention_->heads();
    const BlockValues v(saved, heads, E_);
    const int rows = g.samples * T_, features = T_ * heads.features();
    Real *dy = g.dy, *beside = g.dy + rows * E_, *spare = g.spare;
    Real* dx = g.dx != nullptr ? g.dx : dy;
    const auto branch = [&](Block::Place place) {
      return branch_gradient(on_rows(place, saved.batch), dy, beside, g.samples, out, stream);
    };
    mixture_->backward(v.normed2, branch(Block::mlp_place), beside, spare, saved, g,
                       on_rows(Block::activation_place, saved.batch));
    norm_backward(norm2_, v.residual, v.statistics2, beside, dy, dy, rows, g.accumulate, stream);

    row_parallel_backward(*tp_, blas, out_proj_, v.context, branch(Block::attention_place), spare, g.ones, rows,
                          g.accumulate);
    const AttentionValues gradients = {spare + g.samples * features, beside, spare};
    attention_->backward(blas, v.attention, gradients, g.samples, on_heads(saved.batch));
    column_parallel_backward(*tp_, blas, in_proj_, v.normed1, gradients.qkv, beside, g.ones, rows, g.accumulate);
    norm_backward(norm1_, static_cast<const Real*>(saved.x), v.statistics1, beside, dy, dx, rows, g.accumulate, stream);
    return dx;
  }

 private:
  // Returns how to cut each parameter: attention by heads, experts by features, the rest not at all.
  static std::vector<Cut> cuts(const std::vector<Parameter>& parameters) {
    std::vector<Cut> cuts = {Cut::heads, Cut::heads, Cut::columns, Cut::none};
    for (std::size_t i = cuts.size(); i < parameters.size(); ++i) {
      const std::string& name = parameters[i].name;
      const bool first = name.find(".linear1.") != std::string::npos;
      cuts.push_back(first ? Cut::rows : name.ends_with(".linear2.weight") ? Cut::columns : Cut::none);
    }
    return cuts;
  }

  Dropout on_heads(const Batch& batch) const {
    if (dropout_ == 0) return {dropout_, seed_, number_, Block::probability_place, batch, {}};
    const int count = attention_->heads().count * positions_.whole * positions_.whole, ranks = tp_->group().size();
    return {
        dropout_, seed_, number_, Block::probability_place, batch, {count, count * ranks, count * tp_->group().rank()}};
  }
  Dropout on_rows(Block::Place place, const Batch& batch) const {
    return {dropout_, seed_, number_, place, batch, {1, 1, 0, positions_, E_}};
  }

  std::shared_ptr<TensorParallelContext> tp_;
  Positions positions_;
  int T_, E_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<FeedForward> mixture_;
  double dropout_;
  std::uint64_t seed_;
  int number_;
  Linear in_proj_{}, out_proj_{};
  LayerNorm norm1_{}, norm2_{};
};

}  // namespace workshop
