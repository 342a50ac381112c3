// SPDX-License-Identifier: Apache-2.0
// Plans mixtures of experts (chapter 09): the rows that ranks compute, keep and exchange. A row is a token at one of
// its experts. J, K and χ: experts, experts of a token, capacity factor; e: ranks that together have all experts.
#pragma once

#include <algorithm>
#include <cmath>

#include "07_3d/support/plan_shapes.h"

namespace workshop {

// ---- rows ----------------------------------------------------------------------------------------------------------

// Returns the rows that a token has: K with exact counts. With a capacity factor, all places of a sequence have a row,
// also those that no token has taken.
inline double sent_rows(const GptShape& g) {
  if (g.capacity == 0) return g.top_k;
  const double T = g.context, J = g.experts;
  return J * std::min(T, std::ceil(g.capacity * g.top_k * T / J)) / T;
}

// Returns the rows that the experts of the fullest rank compute, for each token of a rank. A rank with all experts
// gets the rows of its own tokens.
inline double received_rows(const GptShape& g, const Layout& layout) {
  return sent_rows(g) * (layout.ep > 1 ? g.imbalance : 1);
}

// Returns which share of the positions of a tensor group a rank sorts and sends. Without sequence parallelism, all
// ranks of the group send the same rows, each to the ranks with the same part of the experts' features as its own.
inline double sent_share(const Layout& layout) { return layout.sequence_parallel ? 1.0 / layout.tp : 1; }

// ---- memory --------------------------------------------------------------------------------------------------------

// Bytes per token that a mixture keeps, without features: rows before and after the experts, those that have arrived,
// and the router's numbers. With sequence parallelism, rows arrive from the other tensor ranks, too.
inline double mixture_bytes(const ModelShape& model, const Layout& layout) {
  const GptShape& g = *model.gpt;
  const bool arrive = layout.ep > 1 || layout.sequence_parallel;
  const double numbers = g.experts + 4.0 * g.top_k + static_cast<double>(g.experts) * layout.cp / g.context;
  return sent_share(layout) * (2 * sent_rows(g) * model.bytes() * g.width + 4 * numbers) +
         (arrive ? received_rows(g, layout) * model.bytes() * g.width : 0);
}

// Adds what the mixtures of a stage need beside its MLPs' or experts' features, for T positions per sequence.
inline void add_mixtures(StageShape& part, const ModelShape& model, const Layout& layout, double T) {
  const GptShape& g = *model.gpt;
  const double E = g.width, J = g.experts, K = g.top_k, share = sent_share(layout);
  const double sent = sent_rows(g) * share, received = received_rows(g, layout);
  part.widest = std::max(part.widest, T * (sent * E + received * g.mlp_width / layout.tp));
  // Gradients of the logits and of the weights; for each expert, its first row and its share of the auxiliary loss. All
  // micro-batches use the same memory.
  part.room += part.blocks * (share * T * (J + K) + 2 * J) * 4 / model.bytes();
  if (layout.ep > 1) part.exchange = part.blocks * T * received * share * E * model.bytes();
  if (layout.tp == 1) return;
  if (layout.sequence_parallel) {
    // The tensor ranks gather each other's rows before their experts, and reduce-scatter them afterwards. For each row
    // of a token, this sends as much as the all-reduces that an MLP would need.
    part.summed += part.blocks * (layout.recompute ? 3 : 2) * (received - 1) * T * E;
  } else {
    part.summed += part.blocks * T * K * 4 / model.bytes();  // the gradients of the weights
    part.sums += part.blocks;
  }
}

// ---- the exchange --------------------------------------------------------------------------------------------------

// Returns the bytes that the fullest rank sends in a step to the ranks that have all experts together with it, for
// `rows` sequences through `blocks` blocks: in each pass its own rows, and those that its experts have computed. With
// exact counts, the numbers of rows come first.
inline double exchange_bytes(const ModelShape& model, const Layout& layout, double rows, int blocks) {
  if (layout.ep == 1) return 0;
  const GptShape& g = *model.gpt;
  const double tokens = rows * g.context / layout.cp * sent_share(layout);
  const double moved = tokens * (sent_rows(g) + received_rows(g, layout)) * g.width * model.bytes();
  const int forwards = layout.recompute ? 2 : 1;
  const double counts = g.capacity == 0 ? 4.0 * g.experts * layout.micro_batches : 0;
  return blocks * ((forwards + 1) * moved + forwards * counts) * (layout.ep - 1) / layout.ep;
}

// Returns the time of an all-to-all among ranks that together have all experts. The fullest of them sends or receives
// `bytes`, including those to itself. Bytes within a node and bytes between nodes travel at the same time.
inline double all_to_all_seconds(const Cluster& cluster, const Layout& layout, double bytes) {
  const bool within = cluster.gpus <= cluster.gpus_per_node || cluster.gpus_per_node % (layout.tp * layout.ep) == 0;
  const int on_node = within ? layout.ep : std::clamp(cluster.gpus_per_node / layout.tp, 1, layout.ep);
  const auto seconds = [&](const Link& link, int ranks) {
    return ranks * (link.latency + bytes / layout.ep / link.bandwidth);
  };
  return std::max(seconds(cluster.node, on_node - 1), seconds(cluster.network, layout.ep - on_node));
}

// Returns the time of the exchanges of a step, for micro-batches of `rows` sequences: two all-to-alls in each pass, and
// in a forward pass one more for the numbers of rows. Nothing hides them.
inline Passes exchange_passes(const ModelShape& model, const Cluster& cluster, const Layout& layout, double rows,
                              int blocks) {
  if (layout.ep == 1) return {};
  const GptShape& g = *model.gpt;
  const double tokens = rows * g.context / layout.cp * sent_share(layout);
  const double moved = tokens * received_rows(g, layout) * g.width * model.bytes();
  const double both = 2 * all_to_all_seconds(cluster, layout, moved);
  const double counts = g.capacity == 0 ? all_to_all_seconds(cluster, layout, 4.0 * g.experts) : 0;
  const double times = layout.micro_batches * blocks;
  return {times * (both + counts), times * (layout.recompute ? 2 * both + counts : both)};
}

}  // namespace workshop
