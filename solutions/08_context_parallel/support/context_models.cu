// SPDX-License-Identifier: Apache-2.0
// The language model, for some of the positions of each sample.
#include <memory>
#include <vector>

#include "01_single_gpu/gpt.h"
#include "05_tensor_parallel/support/parallel_models.h"
#include "08_context_parallel/ring_attention.h"
#include "08_context_parallel/support/context_models.h"
#include "08_context_parallel/support/context_options.h"
#include "model/recompute.h"

namespace workshop {

Network make_context_network(const Options& options, const Positions& mine,
                             const std::shared_ptr<Attention>& attention) {
  const GptOptions& o = options.gpt;
  Network network = make_gpt(options);
  const int vocabulary = static_cast<int>(network.vocabulary.size());
  const auto room = std::make_shared<SharedRoom::element_type>();
  network.layers = {std::make_shared<Embedding>(vocabulary, mine, o.width)};
  for (int i = 0; i < o.blocks; ++i) {
    std::shared_ptr<Layer> block =
        std::make_shared<Block>(i, o, options.seed, mine, attention, make_feed_forward(o, mine.count));
    if (o.recompute == "blocks") block = make_recomputed(std::vector{block}, room);
    network.layers.push_back(block);
  }
  network.layers.push_back(std::make_shared<LanguageHead>(vocabulary, mine.count, o.width));
  network.loss = std::make_shared<CrossEntropy>(mine.count, vocabulary);
  return network;
}

Network make_ring_network(const Options& options, const SequenceCut& cut, const Group& context, const Group& tensor,
                          bool sequence_parallel) {
  require_heads(options, tensor.size());
  const Positions mine = cut.of(context.rank());
  const auto attention = std::make_shared<RingAttention>(heads_of(options, mine.count, tensor.size()), cut,
                                                         options.gpt.attention_block, context);
  if (tensor.size() == 1) return make_context_network(options, mine, attention);
  return make_parallel_gpt(options, tensor, {.sequence_parallel = sequence_parallel}, mine, [=] { return attention; });
}

}  // namespace workshop
