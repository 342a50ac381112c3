// SPDX-License-Identifier: Apache-2.0
// The models whose layers can be cut over the ranks of a tensor-parallel group.
#include <memory>
#include <vector>

#include "01_single_gpu/mlp.h"
#include "01_single_gpu/models.h"
#include "05_tensor_parallel/parallel_transformer.h"
#include "05_tensor_parallel/support/parallel_models.h"
#include "05_tensor_parallel/tensor_parallel.h"
#include "05_tensor_parallel/vocabulary_parallel.h"
#include "common/options/options.h"
#include "model/recompute.h"

namespace workshop {
namespace {

// Makes chapter 01's MLP over the ranks of a group: layers 0, 2, 4, … are column-parallel, layers 1, 3, 5, …
// row-parallel. Ends the job with status 2 if require_pairs() refuses the widths.
Network make_parallel_mlp(const std::vector<int>& widths, Activation activation, const Group& group,
                          const TensorParallelOptions& how) {
  require_pairs(widths, group.size());
  const auto tp = std::make_shared<TensorParallelContext>(group, how);
  const Network whole = make_mlp(widths, activation);
  Network network;
  for (int i = 0; i < whole.depth(); i += 2) {
    network.layers.push_back(std::make_shared<ParallelPair>(whole.layers[i], whole.layers[i + 1], activation,
                                                            i + 2 < whole.depth() ? activation : Activation::none, tp));
  }
  network.loss = whole.loss;
  return network;
}

}  // namespace

// Makes chapter 01's language model and replaces each layer by its parallel form.
Network make_parallel_gpt(const Options& options, const Group& group, const TensorParallelOptions& how,
                          const Positions& positions, const MakeAttention& attention) {
  const GptOptions& o = options.gpt;
  const int ranks = group.size();
  if (how.sequence_parallel && positions.count % ranks != 0) {
    const int pieces = positions.whole / positions.count * ranks;
    usage_error("--context is '%d'; --sequence-parallel expects a multiple of the %d ranks", o.context, pieces);
  }
  Network network = make_network(options);
  const int vocabulary = static_cast<int>(network.vocabulary.size());
  if (vocabulary < ranks) usage_error("the vocabulary has %d words; expected one a rank, %d", vocabulary, ranks);

  const auto tp = std::make_shared<TensorParallelContext>(group, how);
  const auto room = std::make_shared<SharedRoom::element_type>();
  const VocabRange vocab = vocab_range(vocabulary, group);
  for (int i = 0; i < network.depth(); ++i) {
    std::shared_ptr<Layer>& layer = network.layers[i];
    if (i == 0) {
      layer = std::make_shared<ParallelEmbedding>(layer, positions, o.width, vocab, tp);
    } else if (i + 1 == network.depth()) {
      layer = std::make_shared<ParallelHead>(layer, positions.count, o.width, vocab, tp);
    } else {
      layer = std::make_shared<ParallelBlock>(layer, i - 1, o, options.seed, positions, attention(), tp);
      if (o.recompute == "blocks") layer = make_recomputed(std::vector{layer}, room);
    }
  }
  network.loss = std::make_shared<ParallelCrossEntropy>(positions.count, vocab, group);
  return network;
}

void require_heads(const Options& options, int ranks) {
  if (options.gpt.heads % ranks == 0) return;
  usage_error("--heads is '%d'; expected a multiple of the %d ranks", options.gpt.heads, ranks);
}

Network make_parallel_network(const Options& options, const Group& group, const TensorParallelOptions& how) {
  if (options.model == ModelKind::gpt) {
    require_heads(options, group.size());
    return make_parallel_gpt(options, group, how, options.gpt.context,
                             [&] { return make_attention(options.gpt, options.gpt.heads / group.size()); });
  }
  if (options.model == ModelKind::alexnet) {
    usage_error("--model is 'alexnet'; expected mlp or gpt, whose layers tensor parallelism knows how to cut");
  }
  if (how.sequence_parallel) usage_error("--sequence-parallel is for --model gpt alone");
  return make_parallel_mlp(options.layers, options.activation, group, how);
}

}  // namespace workshop
