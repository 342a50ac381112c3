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

// A block's attention: that of attention.h or, with heads.block > 0, that of blockwise_attention.h. Has the memory that
// they need beside what is kept for the backward pass. Chapter 08 derives from it: there, the sequence is cut over the
// ranks.
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

// The values that a block's forward pass keeps for its backward pass, from position `first` on.
struct BlockValues {
  // Floats per sample in each buffer. Norms and residuals have `rows` rows, attention and the MLP have all T.
  static std::vector<int> sizes(const Attention& attention, int width, int rows) {
    const Heads& heads = attention.heads();
    const int T = heads.positions, features = T * heads.features(), whole = rows * width,
              statistics = reals_spanning(2 * rows);
    return {whole, statistics, 3 * features, attention.kept(), features, whole,
            whole, statistics, 4 * features, 4 * features,     whole};
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
    z = rows_of(8, 4 * features);
    a = rows_of(9, 4 * features);
    y = rows_of(10, width);
  }

  Real *normed1, *residual, *normed2, *y;  // [rows, E]
  Real *qkv, *context, *z, *a;             // [rows, 3·features], [rows, features], twice [rows, 4·features]
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

// r = x + attention(norm1(x)), y = r + mlp(norm2(r)); x and y are [samples, T, E]. All but the attention works on each
// position separately.
class Block : public Layer {
 public:
  enum Place { probability_place, attention_place, activation_place, mlp_place };  // where dropout applies

  Block(int number, const GptOptions& options, std::uint64_t seed)
      : Block(number, options, seed, options.context, make_attention(options, options.heads)) {}
  // For these positions of each sample.
  Block(int number, const GptOptions& options, std::uint64_t seed, Positions positions,
        std::shared_ptr<Attention> attention)
      : Layer("blocks." + std::to_string(number), positions.count * options.width, positions.count * options.width),
        E_(options.width),
        positions_(positions),
        attention_(std::move(attention)),
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
    add("linear1.weight", {4 * E_, E_});
    add("linear1.bias", {4 * E_});
    add("linear2.weight", {E_, 4 * E_});
    add("linear2.bias", {E_});
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
    for (int i = 0, offset = 0; i < 12; offset += parameters[i++].count()) at.push_back(values.data() + offset);
    init_linear(generator, E_, E_, at[2], drawn.data());
    const double bound = std::sqrt(3.0) * std::sqrt(2.0 / (E_ + 3 * E_));
    generator.uniform(at[0], parameters[0].count(), -bound, bound);
    init_linear(generator, E_, 4 * E_, at[4], at[5]);
    init_linear(generator, 4 * E_, E_, at[6], at[7]);
    std::fill_n(at[8], E_, 1.0f);
    std::fill_n(at[10], E_, 1.0f);
    return values;
  }

  std::vector<int> saved() const override { return BlockValues::sizes(*attention_, E_, rows()); }
  // The gradients that backward() keeps next to each other in dy and spare.
  int widest() const override { return std::max(4 * out, out + std::max(out, attention_->scratch())); }
  int rows() const override { return positions_.count; }
  void allocate(int max_samples, cudaStream_t) override { attention_->allocate(max_samples); }

  void bind(Real* values, Real* grads) override {
    Layer::bind(values, grads);
    const std::vector<Parameter>& p = parameters;
    in_proj_ = linear_of(name + ".self_attn.in_proj", p[0], p[1]);
    out_proj_ = linear_of(name + ".self_attn.out_proj", p[2], p[3]);
    linear1_ = linear_of(name + ".linear1", p[4], p[5]);
    linear2_ = linear_of(name + ".linear2", p[6], p[7]);
    norm1_ = norm_of(name + ".norm1", p[8], p[9]);
    norm2_ = norm_of(name + ".norm2", p[10], p[11]);
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
    const auto linear = [&](const Linear& l, const Real* x, const Real* dy, Real* dx) {
      linear_backward(blas, l, x, dy, dx, g.ones, rows, g.accumulate);
    };

    const Real* dmlp = branch_gradient(dropout(mlp_place, saved.batch), dy, beside, g.samples, out, stream);
    linear(linear2_, v.a, dmlp, spare);
    dropout(activation_place, saved.batch).apply(spare, spare, g.samples, 4 * out, stream);
    activation_backward(Activation::gelu, spare, v.z, 4 * n, stream);
    linear(linear1_, v.normed2, spare, beside);
    norm_backward(norm2_, v.residual, v.statistics2, beside, dy, dy, rows, g.accumulate, stream);

    const Real* dattention = branch_gradient(dropout(attention_place, saved.batch), dy, beside, g.samples, out, stream);
    linear(out_proj_, v.attention.context, dattention, spare);
    const AttentionValues gradients = {spare + n, beside, spare};
    attention_->backward(blas, v.attention, gradients, g.samples, dropout(probability_place, saved.batch));
    linear(in_proj_, v.normed1, gradients.qkv, beside);
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
    linear_forward(blas, linear1_, v.normed2, v.z, rows);
    activation_forward(Activation::gelu, v.a, v.z, 4 * n, stream);
    dropout(activation_place, saved.batch).apply(v.a, v.a, samples, 4 * out, stream);
    linear_forward(blas, linear2_, v.a, v.y, rows);
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
  double dropout_;
  std::uint64_t seed_;
  int number_;
  Linear in_proj_{}, out_proj_{}, linear1_{}, linear2_{};
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
    linear_backward(g.blas, linear_, saved.buffers[0].data(), g.dy, g.spare, g.ones, rows, g.accumulate);
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
