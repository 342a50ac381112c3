// SPDX-License-Identifier: Apache-2.0
// The language model with mixtures of experts on a mesh.
#include <memory>
#include <vector>

#include "01_single_gpu/gpt.h"
#include "05_tensor_parallel/support/parallel_models.h"
#include "05_tensor_parallel/vocabulary_parallel.h"
#include "08_context_parallel/ring_attention.h"
#include "08_context_parallel/support/context_options.h"
#include "09_expert_parallel/moe_parallel.h"
#include "09_expert_parallel/support/context_router.h"
#include "09_expert_parallel/support/expert_models.h"
#include "09_expert_parallel/support/tensor_mixture.h"

namespace workshop {
namespace {

std::shared_ptr<Experts> make_experts(const GptOptions& o, int positions, const Group& group, FeatureCut cut = {}) {
  if (group.size() > 1) return std::make_shared<ParallelExperts>(o, positions, ExpertOptions(), group, cut);
  return std::make_shared<Experts>(0, o.experts, o.experts, positions * o.top_k, o.width, cut);
}

}  // namespace

Network make_expert_network(const Options& options, const ExpertMesh& mesh) {
  const GptOptions& o = options.gpt;
  const Group &tensor = mesh.tensor, &context = mesh.context;
  require_heads(options, tensor.size());
  const bool cuts_layers = tensor.size() > 1, cuts_sequences = context.size() > 1;
  const SequenceCut cut = cut_of(options, context.size(), "zigzag");
  const Positions mine = cut.of(context.rank());
  std::shared_ptr<Attention> ring;  // shared by all blocks
  if (cuts_sequences) {
    ring =
        std::make_shared<RingAttention>(heads_of(options, mine.count, tensor.size()), cut, o.attention_block, context);
  }
  const auto attention = [&] { return cuts_sequences ? ring : make_attention(o, o.heads / tensor.size()); };
  const auto mixture = [&]() -> std::shared_ptr<Mixture> {
    std::shared_ptr<Router> router;
    if (cuts_sequences) {
      router = std::make_shared<ContextRouter>(o, cut, context);
    } else {
      router = std::make_shared<Router>(o, o.context);
    }
    const int positions = mine.run;
    if (!cuts_layers) {
      return std::make_shared<Mixture>(o, positions, make_experts(o, positions, mesh.experts), router);
    }
    const auto experts = make_experts(o, positions, mesh.experts, {tensor.rank(), tensor.size()});
    return std::make_shared<TensorMixture>(o, positions, experts, router, tensor);
  };
  const auto feed_forward = [&]() -> std::shared_ptr<FeedForward> {
    if (!cuts_sequences) return mixture();
    return std::make_shared<MixtureOfRuns>(mine, o.width, mixture());
  };

  // The whole layers. Chapter 05's layers take their parts from these, whose attention and router are not used.
  Network network = make_gpt(options, [&](const GptOptions&, int positions) {
    return std::make_shared<Mixture>(o, positions, make_experts(o, positions, mesh.experts));
  });
  const int vocabulary = static_cast<int>(network.vocabulary.size());
  if (vocabulary < tensor.size()) {
    usage_error("the vocabulary has %d words; expected one a rank, %d", vocabulary, tensor.size());
  }
  const auto tp = cuts_layers ? std::make_shared<TensorParallelContext>(tensor, TensorParallelOptions()) : nullptr;
  const auto room = std::make_shared<SharedRoom::element_type>();
  const VocabRange vocab = vocab_range(vocabulary, tensor);
  std::vector<std::shared_ptr<Layer>> whole = std::move(network.layers);
  network.layers.clear();
  const auto add = [&](const std::shared_ptr<Layer>& layer) { network.layers.push_back(layer); };
  if (cuts_layers) {
    add(std::make_shared<ParallelEmbedding>(whole.front(), mine, o.width, vocab, tp));
  } else {
    add(std::make_shared<Embedding>(vocabulary, mine, o.width));
  }
  for (int i = 0; i < o.blocks; ++i) {
    std::shared_ptr<Layer> block;
    if (cuts_layers) {
      const auto block_of_all =
          std::make_shared<Block>(i, o, options.seed, o.context, make_attention(o, o.heads),
                                  std::make_shared<Mixture>(o, o.context, make_experts(o, o.context, mesh.experts)));
      block =
          std::make_shared<TensorMixtureBlock>(block_of_all, i, o, options.seed, mine, attention(), feed_forward(), tp);
    } else {
      block = std::make_shared<Block>(i, o, options.seed, mine, attention(), feed_forward());
    }
    if (o.recompute == "blocks") block = make_recomputed(std::vector{block}, room);
    add(block);
  }
  if (cuts_layers) {
    add(std::make_shared<ParallelHead>(whole.back(), mine.count, o.width, vocab, tp));
    network.loss = std::make_shared<ParallelCrossEntropy>(mine.count, vocab, tensor);
  } else {
    add(std::make_shared<LanguageHead>(vocabulary, mine.count, o.width));
    network.loss = std::make_shared<CrossEntropy>(mine.count, vocabulary);
  }
  return network;
}

}  // namespace workshop
