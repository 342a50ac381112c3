// SPDX-License-Identifier: Apache-2.0
// The language model, for some of the positions of each sample.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/gpt.h"
#include "08_context_parallel/sequence.h"
#include "common/options/options.h"
#include "model/recompute.h"

namespace workshop {

// Adds --balance.
inline void add_balance(Options& options, std::string& balance) {
  options.add("--balance", balance, "positions of a rank: neighbors, or a piece from the front and one from the end",
              {"none", "zigzag"});
}

// Returns how --context is cut over the ranks. Ends the job with status 2 if it cannot be.
inline SequenceCut cut_of(const Options& options, int ranks, const std::string& balance) {
  const int T = options.gpt.context, pieces = balance == "zigzag" && ranks > 1 ? 2 * ranks : ranks;
  if (T % pieces != 0 && pieces == ranks)
    usage_error("--context is '%d'; expected a multiple of the %d ranks", T, ranks);
  if (T % pieces != 0) {
    usage_error("--context is '%d'; expected a multiple of %d, two pieces for each of %d ranks", T, pieces, ranks);
  }
  return {T, ranks, balance == "zigzag" ? Balance::zigzag : Balance::none};
}

// Returns the heads of a block, for n positions.
inline Heads heads_of(const Options& options, int n) {
  return {n, options.gpt.heads, options.gpt.width / options.gpt.heads};
}

// Makes chapter 01's language model for these positions of each sample. All blocks share the attention.
inline Network make_context_network(const Options& options, const Positions& mine,
                                    const std::shared_ptr<Attention>& attention) {
  const GptOptions& o = options.gpt;
  Network network = make_gpt(options);
  const int vocabulary = static_cast<int>(network.vocabulary.size());
  const auto room = std::make_shared<SharedRoom::element_type>();
  network.layers = {std::make_shared<Embedding>(vocabulary, mine, o.width)};
  for (int i = 0; i < o.blocks; ++i) {
    std::shared_ptr<Layer> block = std::make_shared<Block>(i, o, options.seed, mine, attention);
    if (o.recompute == "blocks") block = make_recomputed(std::vector{block}, room);
    network.layers.push_back(block);
  }
  network.layers.push_back(std::make_shared<LanguageHead>(vocabulary, mine.count, o.width));
  network.loss = std::make_shared<CrossEntropy>(mine.count, vocabulary);
  return network;
}

}  // namespace workshop
