// SPDX-License-Identifier: Apache-2.0
// Plans a language model: what a pipeline stage of its blocks holds, sends and computes, cut over a tensor group.
// The formulas are those of
//   Narayanan et al.: Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021, and
//   Korthikanti et al.: Reducing Activation Recomputation in Large Transformer Models, MLSys 2023.
// E, H, T and V: width, heads, context and vocabulary. E_h: features of an MLP, 4E unless given.
#pragma once

#include <algorithm>

#include "07_3d/support/plan_experts.h"
#include "07_3d/support/plan_shapes.h"

namespace workshop {

// ---- parameters ----------------------------------------------------------------------------------------------------

// Parameters of an MLP, or of an expert, on each of `tp` tensor ranks; 8E² + 5E on a single rank if E_h = 4E. The bias
// of the row-parallel layer is on all ranks.
inline double mlp_parameters(const GptShape& g, int tp) {
  const double E = g.width, features = g.mlp_width;
  return (g.matrices() * E * features + (g.matrices() - 1) * features) / tp + E;
}

// Parameters of a block without its experts, on each of `tp` tensor ranks: 12E² + 13E on a single rank with the MLP,
// 4E² + 8E + JE with a mixture. The bias of attention's output, the norms (4E) and the router are on all ranks.
inline double block_parameters(const GptShape& g, int tp) {
  const double E = g.width, of_heads = 1 + 2 * g.kv_share();
  const double attention = ((of_heads + 1) * E * E + of_heads * E) / tp + 5 * E;
  return attention + (g.experts > 0 ? g.experts * E : mlp_parameters(g, tp));
}

// A tensor group cuts the rows of the vocabulary, but not the positions.
inline double embedding_parameters(const GptShape& g, int tp) {
  return (static_cast<double>(g.vocabulary) / tp + g.context) * g.width;
}

inline double head_parameters(const GptShape& g, int tp) {
  return static_cast<double>(g.vocabulary) / tp * g.width + 2.0 * g.width;
}

// Parameters of the model with this many experts per block: all that there are, or those that a token uses.
inline double gpt_parameters(const GptShape& g, int experts) {
  return g.blocks * (block_parameters(g, 1) + experts * mlp_parameters(g, 1)) + embedding_parameters(g, 1) +
         head_parameters(g, 1);
}

// ---- operations ----------------------------------------------------------------------------------------------------

// Operations of a step's matrix products, for `tokens` tokens. A forward pass has 24E² + 4TE per token and block, and
// 2VE per token in the head; a backward pass has twice as many. Recomputation is a second forward pass of the blocks.
// Of 24E², 8E² are attention's, and 16E², or 4E·E_h, the MLP's. A mixture has those of the router and of K experts.
// With L blocks and G sequences these are Narayanan's 96·G·T·L·E²·(1 + T/6E + V/16LE), and without recomputation
// 72·G·T·L·E²·(1 + T/6E + V/12LE).
inline double gpt_operations(const GptShape& g, double tokens, bool recompute) {
  const double E = g.width, T = g.context, V = g.vocabulary;
  const double mlp = 2.0 * g.matrices() * E * g.mlp_width;
  const double linear = 4 * (1 + g.kv_share()) * E * E + (g.experts > 0 ? g.top_k * mlp + 2 * g.experts * E : mlp);
  return tokens * ((recompute ? 4 : 3) * g.blocks * (linear + 4 * T * E) + 3 * 2 * V * E);
}

// ---- activations ---------------------------------------------------------------------------------------------------

// Whether attention computes scores in blocks of keys: with a context group, it always does.
inline bool in_blocks(const ModelShape& model, const Layout& layout) { return model.gpt->blockwise || layout.cp > 1; }

// Bytes per token that a block keeps for its backward pass, on a tensor rank. In mixed precision these are
// Korthikanti's 34E + 5HT, with dropout's masks and the attention's probabilities. A tensor group cuts 24E + 5HT of
// them; sequence parallelism also cuts the rest. In fp32, they are what the workshop's own block keeps without dropout.
// In place of the probabilities, attention in blocks, and thus over a context group, keeps a float for each row of
// scores. A mixture keeps rows in place of the MLP's features.
inline double block_bytes(const ModelShape& model, const Layout& layout) {
  const double E = model.gpt->width, H = model.gpt->heads, T = model.gpt->context;
  const bool mixed = model.precision == Precision::mixed;
  const double whole = mixed ? 10 * E : 4 * (4 * E + 4);
  const double of_scores = in_blocks(model, layout) ? 4 * H : (mixed ? 5 : 4) * H * T;
  const double attention = model.bytes() * 2 * (1 + model.gpt->kv_share()) * E + of_scores;
  const double features = model.bytes() * model.gpt->matrices() * model.gpt->mlp_width;  // of a row
  const bool mixture = model.gpt->experts > 0;
  const double cut = attention + (mixture ? received_rows(*model.gpt, layout) : 1) * features;
  return whole / (layout.sequence_parallel ? layout.tp : 1) + cut / layout.tp +
         (mixture ? mixture_bytes(model, layout) : 0);
}

// The same for the head: its norm and the logits, which are always fp32.
inline double head_bytes(const ModelShape& model, const Layout& layout) {
  const double norm = model.bytes() * model.gpt->width + (model.precision == Precision::mixed ? 0 : 8);
  return norm / (layout.sequence_parallel ? layout.tp : 1) + 4.0 * model.gpt->vocabulary / layout.tp;
}

// ---- a stage -------------------------------------------------------------------------------------------------------

// The stage with blocks [first, last). The first stage also has the embedding, the last one the head.
inline StageShape make_gpt_part(const ModelShape& model, const Layout& layout, int first, int last) {
  const GptShape& g = *model.gpt;
  const int tp = layout.tp, blocks = last - first;
  const bool embedding = first == 0, head = last == g.blocks;
  const double E = g.width, T = static_cast<double>(g.context) / layout.cp, V = g.vocabulary;  // T: on this rank
  StageShape part;
  part.blocks = blocks;
  const auto add_unit = [&part](int count, double parameters) {
    part.parameters += count * parameters;
    part.largest = std::max(part.largest, parameters);
    part.units += count;
  };
  add_unit(blocks, block_parameters(g, tp));
  const double experts = static_cast<double>(g.experts) / layout.ep * mlp_parameters(g, tp);  // of a block
  part.of_experts = blocks * experts;
  part.largest += experts;
  if (embedding) add_unit(1, embedding_parameters(g, tp));
  if (head) add_unit(1, head_parameters(g, tp));

  const double stream = T * E / (layout.sequence_parallel ? tp : 1);  // between two blocks
  const double block = T * block_bytes(model, layout) / model.bytes();
  part.kept = blocks * (layout.recompute ? stream : block) + (embedding ? stream : 0) +
              (head ? T * head_bytes(model, layout) / model.bytes() : 0);
  part.room = layout.recompute ? block : 0;
  if (layout.cp > 1) {
    // In float32: the sums of the context or of the queries' gradients, and a rank's own part of the gradients of keys
    // and values.
    part.room += (1 + 2 * g.kv_share()) * T * E / tp * 4 / model.bytes();
    part.ring = 2 * (2 * T * g.kv_share() * E / tp) * (model.bytes() + 4);  // two each; gradients travel in float32
  }
  const double scores = in_blocks(model, layout) ? 0 : g.heads * T / tp;
  const double features = static_cast<double>(g.mlp_width) / tp;
  part.widest = T * std::max({features, E + scores, head ? V / tp : 0});
  part.in = part.out = layout.scatter ? T * E / tp : stream;
  if (tp > 1) {
    // Two all-reduces per block forward, two backward (Shoeybi et al., 2019), and the forward ones again to recompute.
    // Sequence parallelism's reduce-scatters and all-gathers send as much. The embedding and the head have one each,
    // and cross entropy has three of one float per token.
    const int wide = (layout.recompute ? 6 : 4) * blocks + embedding + head;
    part.summed = wide * T * E + (head ? 3 * T * 4 / model.bytes() : 0);
    part.sums = wide + (head ? 3 : 0);
  }
  if (g.experts > 0) add_mixtures(part, model, layout, T);
  return part;
}

// ---- time ----------------------------------------------------------------------------------------------------------

// Returns the time of `count` products of m × k by k × n matrices: that of the operations or that of moving their
// values from and to memory, whichever is longer (the roofline of Williams et al., 2009). Attention is below the ridge:
// its k is only E/H.
inline double product_seconds(const ModelShape& model, const Cluster& cluster, double m, double k, double n,
                              double count = 1) {
  const double moved = model.bytes() * (m * k + k * n + m * n);
  return count * std::max(2 * m * k * n / cluster.flops, moved / cluster.memory_bandwidth);
}

// Returns the time of a micro-batch of `rows` sequences in blocks [first, last). Everything except the products (norms,
// softmax, GELU, dropout, residuals) is bound by memory: each byte that is kept moves twice in the forward pass,
// written and read, and twice in the backward pass.
inline Passes gpt_passes(const ModelShape& model, const Cluster& cluster, const Layout& layout, double rows, int first,
                         int last) {
  const GptShape& g = *model.gpt;
  const double E = g.width, T = g.context, part = E / layout.tp, tokens = rows * T / layout.cp;
  const double attentions = rows * g.heads / layout.tp, head_width = E / g.heads;
  const auto product = [&](double m, double k, double n, double count = 1) {
    return product_seconds(model, cluster, m, k, n, count);
  };
  // `count` MLPs, or experts, with `m` rows each.
  const auto mlp = [&](double m, double count) {
    const double features = static_cast<double>(g.mlp_width) / layout.tp;
    return product(m, E, features, (g.matrices() - 1) * count) + product(m, features, E, count);
  };
  const double own = static_cast<double>(g.experts) / layout.ep;
  const double feed_forward = g.experts == 0 ? mlp(tokens, 1)
                                             : product(tokens * sent_share(layout), E, g.experts) +
                                                   mlp(received_rows(g, layout) * tokens / own, own);
  const double linear = product(tokens, E, (1 + 2 * g.kv_share()) * part) + product(tokens, part, E) + feed_forward;
  // In blocks, only pairs on and below the diagonal are computed, and their scores never leave the multiprocessors. The
  // backward pass has five products instead of four, because it computes the scores again.
  const bool blocks = in_blocks(model, layout);
  const double attention = blocks ? attentions * 2 * T * T * head_width / layout.cp / cluster.flops
                                  : product(T, head_width, T, attentions) + product(T, T, head_width, attentions);
  const double moving = 2 * tokens * block_bytes(model, layout) / cluster.memory_bandwidth;
  Passes passes;
  passes.forward = (last - first) * (linear + attention + moving);
  passes.backward =
      (last - first) * (2 * linear + (blocks ? 2.5 : 2) * attention + moving) + (layout.recompute ? passes.forward : 0);
  if (last == g.blocks) {
    const double logits = product(tokens, E, static_cast<double>(g.vocabulary) / layout.tp);
    const double softmax = 2 * tokens * head_bytes(model, layout) / cluster.memory_bandwidth;
    passes.forward += logits + softmax;
    passes.backward += 2 * logits + softmax;
  }
  return passes;
}

// ---- the ring of a context group (chapter 08) ----------------------------------------------------------------------

// Returns the bytes that a rank sends around the ring in a step, for `rows` sequences through `blocks` blocks.
inline double context_bytes(const ModelShape& model, const Layout& layout, double rows, int blocks) {
  if (layout.cp == 1) return 0;
  const GptShape& g = *model.gpt;
  const double values = 2.0 * g.context / layout.cp * g.kv_share() * g.width / layout.tp;  // keys and values
  const int passes = layout.recompute ? 3 : 2;
  return rows * blocks * values * (passes * (layout.cp - 1) * model.bytes() + 4 * layout.cp);
}

// Returns the part of the ring's time in a step that attention does not hide, for micro-batches of `rows` sequences.
// The rank computes with some keys while the next ones arrive; the last step of the gradients hides behind nothing.
inline double context_seconds(const ModelShape& model, const Cluster& cluster, const Link& link, const Layout& layout,
                              double rows, int blocks) {
  if (layout.cp == 1) return 0;
  const double T = model.gpt->context, E = static_cast<double>(model.gpt->width) / layout.tp, c = layout.cp;
  const double n = T / c, values = rows * 2 * n * model.gpt->kv_share() * E;
  const auto message = [&](double bytes) { return link.latency + values * bytes / link.bandwidth; };
  const double step = rows * 2 * n * n * E / cluster.flops;  // of attention: two of the four pairs of half sequences
  const double forward = (c - 1) * std::max(0.0, message(model.bytes()) - step);
  const double backward = (c - 1) * std::max(0.0, message(model.bytes() + 4) - 2.5 * step) + message(4);
  return layout.micro_batches * blocks * ((layout.recompute ? 2 : 1) * forward + backward);
}

// Returns how many positions per rank it takes for attention to hide all of the ring but its last step.
inline double hidden_from(const ModelShape& model, const Cluster& cluster, const Link& link) {
  const double bytes = model.gpt->kv_share() * std::max(model.bytes(), 0.4 * (model.bytes() + 4));
  return bytes * cluster.flops / link.bandwidth;
}

// ---- impossible layouts --------------------------------------------------------------------------------------------

// Returns why the blocks cannot be cut over stages and tensor groups like this, in one line; "" if they can.
inline std::string gpt_uncuttable_because(const GptShape& g, const Layout& layout) {
  if (layout.tp > 1 && g.heads % layout.tp != 0) {
    return expected_prefix("tp", layout.tp) + "a divisor of the " + std::to_string(g.heads) + " heads";
  }
  if (g.kv_heads % layout.tp != 0) {
    return expected_prefix("tp", layout.tp) + "a divisor of the " + std::to_string(g.kv_heads) + " of --kv-heads";
  }
  if (g.mlp_width % layout.tp != 0) {
    return expected_prefix("tp", layout.tp) + "a divisor of the " + std::to_string(g.mlp_width) + " of --mlp-width";
  }
  if (layout.ep > 1 && g.experts % layout.ep != 0) {
    return expected_prefix("ep", layout.ep) + "a divisor of the " + std::to_string(g.experts) + " of --experts";
  }
  if (layout.ep > 1 && layout.sharing() % layout.ep != 0) {
    return expected_prefix("ep", layout.ep) + "a divisor of the " + std::to_string(layout.sharing()) +
           " ranks that share a model's parameters";
  }
  if (layout.cp > 1 && g.context % (2 * layout.cp) != 0) {
    return expected_prefix("cp", layout.cp) + "a number whose double divides --context, " + std::to_string(g.context);
  }
  if (layout.pp > g.blocks) {
    return expected_prefix("pp", layout.pp) + "at most " + std::to_string(g.blocks) + ", the model's blocks";
  }
  if (layout.chunks == 1) return "";
  if (layout.pp == 1) return expected_prefix("chunks", layout.chunks) + "1 without a pipeline";
  if (g.blocks % (layout.pp * layout.chunks) != 0) {
    return expected_prefix("chunks", layout.chunks) + "a number that divides the " + std::to_string(g.blocks) +
           " blocks over " + std::to_string(layout.pp) + " stages";
  }
  constexpr int most = 1 << 22;  // as in chapter 04
  if (layout.micro_batches > most / layout.chunks) {
    return expected_prefix("chunks", layout.chunks) + "at most " + std::to_string(most) + " with the micro-batches";
  }
  if (layout.micro_batches % layout.pp != 0) {
    return expected_prefix("micro-batches", layout.micro_batches) + "a multiple of the " + std::to_string(layout.pp) +
           " stages with --chunks";
  }
  return "";
}

}  // namespace workshop
