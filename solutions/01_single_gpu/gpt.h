// SPDX-License-Identifier: Apache-2.0
// A small GPT (Radford et al., 2018): embedding, transformer blocks, and a head that predicts the next word.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/cross_entropy.h"
#include "01_single_gpu/embedding.h"
#include "01_single_gpu/transformer.h"
#include "common/data/dataset.h"
#include "common/data/stories.h"
#include "model/model.h"
#include "model/recompute.h"

namespace workshop {

// Ends the program if an array would have more elements than an int can index.
inline void require_sizes(const Options& options, int vocabulary) {
  const GptOptions& o = options.gpt;
  const int width = o.width;
  require_product({{"the vocabulary", vocabulary}, {"--width", width}});
  require_product({{"12", 12}, {"--width", width}, {"--width + 2", width + 2}});
  require_product({{"--batch-size", options.batch_size}, {"--context", o.context}, {"the vocabulary", vocabulary}});
  require_product({{"4", 4}, {"--batch-size", options.batch_size}, {"--context", o.context}, {"--width", width}});
  if (o.experts > 0) {
    require_product({{"--batch-size", options.batch_size}, {"--context", o.context}, {"--experts", o.experts}});
    const std::int64_t rows = std::int64_t{options.batch_size} * o.context;
    require_product({{"5", 5}, {"--top-k", o.top_k}, {"--batch-size times --context", rows}, {"--width", width}});
    require_product({{"--top-k", o.top_k}, {"--batch-size times --context", rows}}, 1 << 24);  // floats count the rows
  }
  // The scores, of all pairs of positions or of blocks of them, and their gradients. Dropout counts all pairs.
  std::vector<std::pair<std::string, std::int64_t>> scores = {
      {"2", 2}, {"--batch-size", options.batch_size}, {"--context", o.context}};
  if (o.attention_block > 0 && o.dropout == 0) {
    scores.push_back({"--attention-block", std::min(o.attention_block, o.context)});
  } else {
    scores.insert(scores.end(), {{"--heads", o.heads}, {"--context", o.context}});
  }
  require_product(scores);
  const std::int64_t E = width, mlp = 8 * E * E + 5 * E, experts = o.experts,
                     in_block = 4 * E * E + 8 * E + (experts > 0 ? experts * (mlp + E) : mlp),
                     parameters = (2LL * vocabulary + o.context + 2) * E + o.blocks * in_block;
  if (parameters > INT_MAX) {
    usage_error("--blocks, --width and the vocabulary give %.1f billion parameters; expected fewer than 2^31",
                static_cast<double>(parameters) / 1e9);
  }
}

// Reads or writes the text that the options name. Ends the program if something is wrong with it.
inline Text text_of(const Options& options) {
  if (options.gpt.text.empty()) {
    Text text = write_stories(options.seed, options.gpt.words, options.gpt.vocabulary);
    const std::size_t shortest = std::min({text.train.size(), text.valid.size(), text.test.size()});
    if (shortest <= static_cast<std::size_t>(options.gpt.context)) {
      usage_error("--context is '%d'; expected fewer than the %zu words of the shortest part of the stories",
                  options.gpt.context, shortest);
    }
    return text;
  }
  try {
    return read_text(options.gpt.text, options.gpt.vocabulary, options.gpt.context);
  } catch (const std::runtime_error& error) {
    usage_error("%s", error.what());
  }
}

// Returns the number of layers: the embedding, the blocks, the head.
inline int gpt_depth(const Options& options) { return options.gpt.blocks + 2; }

// Returns the operations per token in matrix products, forward and twice as many backward: 2 per weight that takes
// part, and per position 2E for the scores and 2E for the context.
inline double gpt_operations(const GptOptions& o, int vocabulary) {
  const double E = o.width, T = o.context;
  const double mlp = o.experts > 0 ? 16 * o.top_k * E * E + 2 * o.experts * E : 16 * E * E;
  return 3 * (o.blocks * (8 * E * E + mlp + 4 * T * E) + 2 * vocabulary * E);
}

// `feed_forward` makes what follows the attention in each block.
inline Network make_gpt(const Options& options, const MakeFeedForward& feed_forward = make_feed_forward) {
  const GptOptions& o = options.gpt;
  Network network;
  Text text = text_of(options);
  network.text = std::make_shared<TokenDataset>(text, o.context);
  if (o.text.empty()) network.best_test_loss = best_loss(text.vocabulary, text.test, o.context);
  network.vocabulary = std::move(text.vocabulary);
  const int vocabulary = static_cast<int>(network.vocabulary.size());
  require_sizes(options, vocabulary);
  network.operations = gpt_operations(o, vocabulary);
  const auto room = std::make_shared<SharedRoom::element_type>();
  network.layers.push_back(std::make_shared<Embedding>(vocabulary, o.context, o.width));
  for (int i = 0; i < o.blocks; ++i) {
    std::shared_ptr<Layer> block =
        std::make_shared<Block>(i, o, options.seed, o.context, make_attention(o, o.heads), feed_forward(o, o.context));
    if (o.recompute == "blocks") block = make_recomputed(std::vector{block}, room);
    network.layers.push_back(block);
  }
  network.layers.push_back(std::make_shared<LanguageHead>(vocabulary, o.context, o.width));
  network.loss = std::make_shared<CrossEntropy>(o.context, vocabulary);
  return network;
}

}  // namespace workshop
