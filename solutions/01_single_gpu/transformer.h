// SPDX-License-Identifier: Apache-2.0
// A transformer block that normalizes the input of each branch (Xiong et al., 2020), as
// nn.TransformerEncoderLayer(norm_first=True, activation="gelu") does, and the head of a language model.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/attention.h"
#include "01_single_gpu/blockwise_attention.h"
#include "01_single_gpu/layer_norm.h"
#include "01_single_gpu/linear.h"
#include "common/base/random.h"
#include "model/activation.h"
#include "model/elementwise.h"
#include "model/model.h"
#include "model/positions.h"

namespace workshop {

inline LayerNorm norm_of(const std::string& name, const Parameter& gamma, const Parameter& beta) {
  return {name, gamma.count(), gamma.value, beta.value, gamma.grad, beta.grad};
}

// A block's attention: that of attention.h or, with heads.block > 0, that of blockwise_attention.h. Owns the memory
// that they need in addition to what is kept for the backward pass. Chapter 08 derives from it a class for a sequence
// that is cut over the ranks.
class Attention {
 public:
  Attention(const Heads& heads, bool drops) : heads_(heads), drops_(drops) {}
  virtual ~Attention() = default;
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
  const Heads& heads() const { return heads_; }

  // Returns the Reals per sample of AttentionValues::p, which backward() needs.
  virtual int kept() const {
    return heads_.block > 0 ? reals_spanning(heads_.count * heads_.positions) : heads_.probabilities();
  }
  // Returns those of backward()'s gradients.p.
  virtual int scratch() const { return heads_.block > 0 ? 0 : heads_.probabilities(); }
  virtual void allocate(int max_samples) {
    const int size = heads_.block > 0 ? BlockwiseRoom::size(heads_) : drops_ ? heads_.probabilities() : 0;
    room_ = DeviceBuffer<Real>(max_samples * size, Memory::activations);
  }

  // Computes the context of `count` positions from `first` on, as attention_forward() does.
  virtual void forward(const Blas& blas, const AttentionValues& values, int samples, int first, int count,
                       const Dropout& dropout) {
    const auto attention = heads_.block > 0 ? blockwise_forward : attention_forward;
    attention(blas, heads_, values, samples, first, count, dropout, room_.data());
  }
  // Computes gradients.qkv from gradients.context, as attention_backward() does.
  virtual void backward(const Blas& blas, const AttentionValues& values, const AttentionValues& gradients, int samples,
                        const Dropout& dropout) {
    const auto attention = heads_.block > 0 ? blockwise_backward : attention_backward;
    attention(blas, heads_, values, gradients, samples, dropout, room_.data());
  }

 private:
  Heads heads_;
  bool drops_;
  DeviceBuffer<Real> room_;  // probabilities after dropout, or blocks
};

// Returns the attention of `heads` heads over whole sequences.
inline std::shared_ptr<Attention> make_attention(const GptOptions& options, int heads) {
  const int block = std::min(options.attention_block, options.context);
  return std::make_shared<Attention>(Heads{options.context, heads, options.width / options.heads, block},
                                     options.dropout > 0);
}

// What a block computes behind its second norm, for each position separately: a linear layer to 4E features, GELU, and
// a linear layer back. Chapter 09 derives from it: there, a mixture of experts takes its place.
class FeedForward {
 public:
  // For `positions` positions of each sample.
  FeedForward(int positions, int width) : positions_(positions), width_(width) {}
  virtual ~FeedForward() = default;
  FeedForward(const FeedForward&) = delete;
  FeedForward& operator=(const FeedForward&) = delete;

  // Returns the parameters in memory order; `block` is the block's name.
  virtual std::vector<Parameter> parameters(const std::string& block) const {
    return {{block + ".linear1.weight", {4 * width_, width_}},
            {block + ".linear1.bias", {4 * width_}},
            {block + ".linear2.weight", {width_, 4 * width_}},
            {block + ".linear2.bias", {width_}}};
  }
  // Draws the initial values of all of them, in PyTorch's order.
  virtual void draw(Generator& generator, float* values) const {
    const int E = width_, n = 4 * E * E;
    init_linear(generator, E, 4 * E, values, values + n);
    init_linear(generator, 4 * E, E, values + n + 4 * E, values + 2 * n + 4 * E);
  }
  // Uses the memory of these parameters from now on.
  virtual void bind(const std::string& block, const Parameter* p) {
    linear1_ = linear_of(block + ".linear1", p[0], p[1]);
    linear2_ = linear_of(block + ".linear2", p[2], p[3]);
  }

  // Returns the Reals per sample of each buffer that backward() needs. In Saved, they follow the block's own.
  virtual std::vector<int> saved() const { return {4 * positions_ * width_, 4 * positions_ * width_}; }
  // Returns the size of backward()'s `scratch`, in Reals per sample.
  virtual int scratch() const { return 4 * positions_ * width_; }
  // Returns those of the gradients that it keeps in g.later if it leaves others for later.
  virtual int deferred() const { return positions_ * width_; }
  virtual void allocate(int /*max_samples*/, cudaStream_t) {}

  // Computes y from x, both [samples·count, E]: `count` positions from `first` on. `dropout` is for the features behind
  // GELU.
  virtual void forward(const Blas& blas, const Real* x, Real* y, Saved& saved, int samples, int first, int count,
                       const Dropout& dropout) {
    const cudaStream_t stream = blas.stream();
    const int rows = samples * count, features = 4 * width_;
    Real *z = saved.buffers[kFirst].data() + first * features, *a = saved.buffers[kFirst + 1].data() + first * features;
    linear_forward(blas, linear1_, x, z, rows);
    activation_forward(Activation::gelu, a, z, rows * features, stream);
    dropout.apply(a, a, samples, positions_ * features, stream);
    linear_forward(blas, linear2_, a, y, rows);
  }
  // Computes the gradients of the parameters, and dx from dy. dx may be where dy is.
  virtual void backward(const Real* x, const Real* dy, Real* dx, Real* scratch, const Saved& saved, const Gradients& g,
                        const Dropout& dropout) {
    const Blas& blas = g.blas;
    const int rows = g.samples * positions_, features = 4 * width_;
    Real *z = saved.buffers[kFirst].data(), *a = saved.buffers[kFirst + 1].data();
    linear_backward(g, linear2_, a, dy, scratch, rows);
    dropout.apply(scratch, scratch, g.samples, positions_ * features, blas.stream());
    activation_backward(Activation::gelu, scratch, z, rows * features, blas.stream());
    linear_backward(g, linear1_, x, scratch, dx, rows, /*place=*/z);
  }

 protected:
  static constexpr int kFirst = 9;  // its first buffer in Saved
  int positions_, width_;

 private:
  Linear linear1_{}, linear2_{};
};

// Returns a block's feed-forward part for `positions` positions of each sample.
using MakeFeedForward = std::function<std::shared_ptr<FeedForward>(const GptOptions& options, int positions)>;
inline std::shared_ptr<FeedForward> make_feed_forward(const GptOptions& options, int positions) {
  return std::make_shared<FeedForward>(positions, options.width);
}

// The values that a block's forward pass keeps for its backward pass, from position `first` on.
struct BlockValues {
  // Floats per sample in each buffer. Norms and residuals have `rows` rows, the attention has all T. The feed-forward
  // part's buffers come last.
  static std::vector<int> sizes(const Attention& attention, int width, int rows, const std::vector<int>& feed_forward) {
    const Heads& heads = attention.heads();
    const int T = heads.positions, features = T * heads.features(), whole = rows * width,
              statistics = reals_spanning(2 * rows);
    std::vector<int> sizes = {whole, statistics, 3 * features, attention.kept(), features, whole,
                              whole, statistics, whole};
    sizes.insert(sizes.end(), feed_forward.begin(), feed_forward.end());
    return sizes;
  }

  BlockValues(const Saved& saved, const Heads& heads, int width, int first = 0) {
    const int features = heads.features();
    const auto rows_of = [&](int i, int columns) { return saved.buffers[i].data() + first * columns; };
    normed1 = rows_of(0, width);
    statistics1 = statistics_in(saved.buffers[1], first);
    qkv = rows_of(2, 3 * features);
    context = rows_of(4, features);
    attention = {saved.buffers[2].data(), saved.buffers[3].data(), saved.buffers[4].data()};
    residual = rows_of(5, width);
    normed2 = rows_of(6, width);
    statistics2 = statistics_in(saved.buffers[7], first);
    y = rows_of(8, width);
  }

  Real *normed1, *residual, *normed2, *y;  // [rows, E]
  Real *qkv, *context;                     // [rows, 3·features], [rows, features]
  RowStatistics statistics1, statistics2;
  AttentionValues attention;  // of all positions
};

// Returns the gradient of a branch before its dropout: dy itself, or, with dropout, a masked copy in `room`.
inline const Real* branch_gradient(const Dropout& dropout, const Real* dy, Real* room, int samples, int width,
                                   cudaStream_t stream) {
  if (!dropout.active()) return dy;
  dropout.apply(room, dy, samples, width, stream);
  return room;
}

// r = x + attention(norm1(x)), y = r + feed_forward(norm2(r)); x and y are [samples, T, E]. All but the attention works
// on each position separately.
class Block : public Layer {
 public:
  enum Place { probability_place, attention_place, activation_place, mlp_place };  // where dropout applies

  // For these positions of each sample.
  Block(int number, const GptOptions& options, std::uint64_t seed, Positions positions,
        std::shared_ptr<Attention> attention, std::shared_ptr<FeedForward> feed_forward)
      : Layer("blocks." + std::to_string(number), positions.count * options.width, positions.count * options.width),
        E_(options.width),
        positions_(positions),
        attention_(std::move(attention)),
        feed_forward_(std::move(feed_forward)),
        dropout_(options.dropout),
        seed_(seed),
        number_(number) {
    const auto add = [&](const std::string& parameter, std::vector<int> shape) {
      parameters.push_back({name + "." + parameter, std::move(shape)});
    };
    add("self_attn.in_proj_weight", {3 * E_, E_});
    add("self_attn.in_proj_bias", {3 * E_});
    add("self_attn.out_proj.weight", {E_, E_});
    add("self_attn.out_proj.bias", {E_});
    for (Parameter& parameter : feed_forward_->parameters(name)) parameters.push_back(std::move(parameter));
    for (const std::string norm : {"norm1", "norm2"}) {
      add(norm + ".weight", {E_});
      add(norm + ".bias", {E_});
    }
  }

  // Draws in the order of PyTorch's modules: the output projection comes before the input projection, whose weight is
  // initialized by xavier_uniform_. Both biases are zero, after that of the output projection was drawn.
  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count()), drawn(E_);
    std::vector<float*> at;
    int offset = 0;
    for (const Parameter& parameter : parameters) {
      at.push_back(values.data() + offset);
      offset += parameter.count();
    }
    init_linear(generator, E_, E_, at[2], drawn.data());
    const double bound = std::sqrt(3.0) * std::sqrt(2.0 / (E_ + 3 * E_));
    generator.uniform(at[0], parameters[0].count(), -bound, bound);
    feed_forward_->draw(generator, at[4]);
    std::fill_n(*(at.end() - 4), E_, 1.0f);
    std::fill_n(*(at.end() - 2), E_, 1.0f);
    return values;
  }

  std::vector<int> saved() const override {
    return BlockValues::sizes(*attention_, E_, rows(), feed_forward_->saved());
  }
  // The gradients that backward() keeps next to each other in dy and spare.
  int widest() const override {
    return std::max({feed_forward_->scratch(), 4 * out, out + std::max(out, attention_->scratch())});
  }
  int rows() const override { return positions_.count; }
  int deferred() const override { return feed_forward_->deferred(); }
  void allocate(int max_samples, cudaStream_t stream) override {
    attention_->allocate(max_samples);
    feed_forward_->allocate(max_samples, stream);
  }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const std::vector<Parameter>& p = parameters;
    in_proj_ = linear_of(name + ".self_attn.in_proj", p[0], p[1]);
    out_proj_ = linear_of(name + ".self_attn.out_proj", p[2], p[3]);
    feed_forward_->bind(name, &p[4]);
    const Parameter* norms = &p[p.size() - 4];
    norm1_ = norm_of(name + ".norm1", norms[0], norms[1]);
    norm2_ = norm_of(name + ".norm2", norms[2], norms[3]);
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    return compute(blas, static_cast<const Real*>(x), samples, 0, rows(), saved);
  }

  const Real* forward_position(const Blas& blas, const void* x, int position, Saved& saved) override {
    saved.batch = {};
    return compute(blas, static_cast<const Real*>(x), 1, position, 1, saved);
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Blas& blas = g.blas;
    const cudaStream_t stream = blas.stream();
    const Range range({"backward ", name}, stream);
    const BlockValues v(saved, attention_->heads(), E_);
    const int rows = g.samples * this->rows(), n = rows * E_;
    // Gradients on their way through the branches go to `spare`, and to the same buffer as dy, behind it.
    Real *dy = g.dy, *beside = g.dy + n, *spare = g.spare;

    const Real* dmlp = branch_gradient(dropout(mlp_place, saved.batch), dy, beside, g.samples, out, stream);
    feed_forward_->backward(v.normed2, dmlp, beside, spare, saved, g, dropout(activation_place, saved.batch));
    norm_backward(norm2_, v.residual, v.statistics2, beside, dy, dy, rows, g.accumulate, stream);

    const Real* dattention = branch_gradient(dropout(attention_place, saved.batch), dy, beside, g.samples, out, stream);
    linear_backward(g, out_proj_, v.attention.context, dattention, spare, rows, /*place=*/v.residual);
    const AttentionValues gradients = {spare + n, beside, spare};
    attention_->backward(blas, v.attention, gradients, g.samples, dropout(probability_place, saved.batch));
    linear_backward(g, in_proj_, v.normed1, gradients.qkv, beside, rows, /*place=*/v.qkv);
    Real* dx = g.dx != nullptr ? g.dx : dy;
    norm_backward(norm1_, static_cast<const Real*>(saved.x), v.statistics1, beside, dy, dx, rows, g.accumulate, stream);
    return dx;
  }

 private:
  // Computes `count` positions from `first` on, of `samples` samples.
  const Real* compute(const Blas& blas, const Real* x, int samples, int first, int count, Saved& saved) {
    const cudaStream_t stream = blas.stream();
    const BlockValues v(saved, attention_->heads(), E_, first);
    const int rows = samples * count, n = rows * E_;
    norm_forward(norm1_, x, v.normed1, v.statistics1, rows, stream);
    linear_forward(blas, in_proj_, v.normed1, v.qkv, rows);
    attention_->forward(blas, v.attention, samples, first, count, dropout(probability_place, saved.batch));
    linear_forward(blas, out_proj_, v.context, v.residual, rows);
    dropout(attention_place, saved.batch).apply(v.residual, v.residual, samples, out, stream);
    launch(add_scaled, n, stream, v.residual, x, 1.0f, n);

    norm_forward(norm2_, v.residual, v.normed2, v.statistics2, rows, stream);
    feed_forward_->forward(blas, v.normed2, v.y, saved, samples, first, count, dropout(activation_place, saved.batch));
    dropout(mlp_place, saved.batch).apply(v.y, v.y, samples, out, stream);
    launch(add_scaled, n, stream, v.y, v.residual, 1.0f, n);
    return v.y;
  }

  // Drops the same values however the sequence is cut.
  Dropout dropout(Place place, const Batch& batch) const {
    if (place == probability_place) return {dropout_, seed_, number_, place, batch};  // the attention has the positions
    const int width = place == activation_place ? 4 * E_ : E_;
    return {dropout_, seed_, number_, place, batch, {1, 1, 0, positions_, width}};
  }

  int E_;  // width
  Positions positions_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<FeedForward> feed_forward_;
  double dropout_;
  std::uint64_t seed_;
  int number_;
  Linear in_proj_{}, out_proj_{};
  LayerNorm norm1_{}, norm2_{};
};

// Computes the logits [samples, T, vocabulary] of the next word: a last norm and a linear layer without bias.
class LanguageHead : public Layer {
 public:
  // For `context` positions of each sample.
  LanguageHead(int vocabulary, int context, int width)
      : Layer("head", context * width, context * vocabulary), context_(context), width_(width) {
    parameters = {{"norm.weight", {width}}, {"norm.bias", {width}}, {"head.weight", {vocabulary, width}}};
  }

  std::vector<float> initial_values(Generator& generator) const override {
    std::vector<float> values(count());
    std::fill_n(values.begin(), width_, 1.0f);
    init_linear(generator, width_, parameters[2].rows(), values.data() + 2 * width_, nullptr);
    return values;
  }
  std::vector<int> saved() const override {
    return {in, reals_spanning(2 * context_), out};
  }  // normed, mean and rstd, logits
  int widest() const override { return std::max(in, out); }
  int rows() const override { return context_; }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    norm_ = norm_of("norm", parameters[0], parameters[1]);
    linear_ = linear_of("head", parameters[2], {});
  }

  const Real* forward(const Blas& blas, const void* x, int samples, Saved& saved) override {
    const Range range({"forward ", name}, blas.stream());
    return compute(blas, x, samples * context_, saved);
  }

  Real* backward(const Saved& saved, const Gradients& g) override {
    const Range range({"backward ", name}, g.blas.stream());
    const int rows = g.samples * context_;
    linear_backward(g, linear_, saved.buffers[0].data(), g.dy, g.spare, rows, /*place=*/saved.buffers[2].data());
    if (g.later == nullptr)
      probe("01.B", "head.weight.grad", linear_.weight_grad, {linear_.out, linear_.in}, g.blas.stream());
    Real* dx = g.dx != nullptr ? g.dx : g.dy;
    norm_backward(norm_, static_cast<const Real*>(saved.x), statistics(saved), g.spare, nullptr, dx, rows, g.accumulate,
                  g.blas.stream());
    return dx;
  }

  // Returns the logits at this position, [vocabulary].
  const Real* forward_position(const Blas& blas, const void* x, int, Saved& saved) override {
    return compute(blas, x, 1, saved);
  }

 private:
  static RowStatistics statistics(const Saved& saved) { return statistics_in(saved.buffers[1]); }

  const Real* compute(const Blas& blas, const void* x, int rows, Saved& saved) {
    Real *normed = saved.buffers[0].data(), *logits = saved.buffers[2].data();
    norm_forward(norm_, static_cast<const Real*>(x), normed, statistics(saved), rows, blas.stream());
    linear_forward(blas, linear_, normed, logits, rows);
    probe("01.A", "logits", logits, {rows, linear_.out}, blas.stream());
    return logits;
  }

  int context_, width_;
  LayerNorm norm_{};
  Linear linear_{};
};

}  // namespace workshop
