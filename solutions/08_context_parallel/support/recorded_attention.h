// SPDX-License-Identifier: Apache-2.0
// Attention that records what it is given, so that the checker can tell a wrong call from a wrong exchange before it.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "01_single_gpu/transformer.h"

namespace workshop {

class RecordedAttention : public Attention {
 public:
  explicit RecordedAttention(std::shared_ptr<Attention> attention)
      : Attention(attention->heads(), false), attention_(std::move(attention)) {}

  int kept() const override { return attention_->kept(); }
  int scratch() const override { return attention_->scratch(); }
  void allocate(int max_samples) override { attention_->allocate(max_samples); }

  void forward(const Blas& blas, const AttentionValues& values, int samples, int first, int count,
               const Dropout& dropout) override {
    const int rows = samples * heads().positions, E = heads().features();
    probe("08.K", "given to inside_->forward: first position, number of positions", std::array{first, count});
    probe("08.K", "given to inside_->forward: queries, keys and values", values.qkv, {rows, 3 * E}, blas.stream());
    attention_->forward(blas, values, samples, first, count, dropout);
  }
  void backward(const Blas& blas, const AttentionValues& values, const AttentionValues& gradients, int samples,
                const Dropout& dropout) override {
    const int rows = samples * heads().positions, E = heads().features();
    probe("08.L", "given to inside_->backward: 1 if gradients.qkv is not values.qkv, 1 if gradients.p is not values.p",
          std::array{int{gradients.qkv != values.qkv}, int{gradients.p != values.p}});
    probe("08.L", "given to inside_->backward: queries, keys and values", values.qkv, {rows, 3 * E}, blas.stream());
    probe("08.L", "given to inside_->backward: gradient of the context", gradients.context, {rows, E}, blas.stream());
    attention_->backward(blas, values, gradients, samples, dropout);
  }

 private:
  std::shared_ptr<Attention> attention_;
};

}  // namespace workshop
