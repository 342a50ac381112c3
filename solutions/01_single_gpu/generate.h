// SPDX-License-Identifier: Apache-2.0
// Generates text: a language model continues a prompt, word by word.
//
// The keys and values of earlier words do not change when a word is added. They stay where the forward pass leaves
// them, so each word costs one position instead of all positions again.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/job/job.h"
#include "model/model.h"

namespace workshop {

// Draws a token: number i with probability softmax(logits / temperature)[i]. `u` must be uniform in [0, 1). Returns the
// most likely token for temperature 0.
inline int next_token(const std::vector<float>& logits, double temperature, double u) {
  const int count = static_cast<int>(logits.size());
  int token = static_cast<int>(std::ranges::max_element(logits) - logits.begin());
  if (temperature == 0) return token;
  const double largest = logits[token];
  std::vector<double> weights(count);  // proportional to the probabilities
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += weights[i] = std::exp((logits[i] - largest) / temperature);
  // TODO 01.19: Draw the token by `u`: the first one at which the probabilities so far add up to more than u.
  //   The probability of token i is weights[i] / sum. If rounding leaves the sum of all at or below u, take the last.
  double added = 0;
  for (token = 0; token + 1 < count; ++token) {
    added += weights[token] / sum;
    if (added > u) break;
  }
  // END TODO 01.19
  probe("01.19", "next token", std::array{token});
  return token;
}

// A language model with the words it has read and written so far.
class Writer {
 public:
  Writer(Model& model, Activations& activations, const Network& network, int context, cudaStream_t stream)
      : model_(model),
        activations_(activations),
        vocabulary_(network.vocabulary),
        context_(context),
        stream_(stream),
        token_(1, Memory::data),
        logits_(vocabulary_.size()) {}

  // Reads `prompt`, adds `count` words drawn with `generator`, and returns the whole text.
  std::string write(const std::string& prompt, int count, double temperature, Generator& generator) {
    std::istringstream words(prompt);
    for (std::string word; words >> word;) read(number_of(word));
    if (tokens_.empty()) read(number_of("<eos>"));
    for (int i = 0; i < count; ++i) {
      float u = 0;
      generator.uniform(&u, 1, 0, 1);
      read(next_token(logits_, temperature, u));
    }
    std::string text;
    for (std::int32_t token : tokens_) text += vocabulary_[token] == "<eos>" ? "\n" : vocabulary_[token] + " ";
    return text;
  }

 private:
  int number_of(const std::string& word) const {
    const auto found = std::ranges::find(vocabulary_, word);
    return found == vocabulary_.end() ? 0 : static_cast<int>(found - vocabulary_.begin());  // 0 is <unk>
  }

  // Appends a word and computes the logits of the next one. When all `context` positions are full, reads the later half
  // of the words again, from the first position on.
  void read(int token) {
    tokens_.push_back(token);
    if (position_ == context_) {
      position_ = 0;
      const int again = context_ / 2;
      for (int i = again; i > 0; --i) advance(tokens_[tokens_.size() - 1 - i]);
    }
    advance(token);
  }

  void advance(std::int32_t token) {
    token_.upload(&token, stream_);
    const Real* logits = model_.forward_position(token_.data(), position_++, activations_);
    std::vector<Real> values(logits_.size());
    CUDA_CHECK(cudaMemcpyAsync(values.data(), logits, values.size() * sizeof(Real), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    std::ranges::copy(values, logits_.begin());
  }

  Model& model_;
  Activations& activations_;
  const std::vector<std::string>& vocabulary_;
  int context_;
  cudaStream_t stream_;
  DeviceBuffer<std::int32_t> token_;
  std::vector<float> logits_;         // of the next word
  std::vector<std::int32_t> tokens_;  // so far
  int position_ = 0;                  // of the next token
};

}  // namespace workshop
