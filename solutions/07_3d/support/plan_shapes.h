// SPDX-License-Identifier: Apache-2.0
// The input of a plan: a model, a cluster of GPUs, how a mesh divides them, and the part of the model that one GPU
// holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/options/options.h"

namespace workshop {

// ---- the model -----------------------------------------------------------------------------------------------------

enum class Precision {
  fp32,
  mixed,  // 2 bytes per parameter, gradient and activation; the optimizer keeps an fp32 copy of the parameters
};

// A language model like that of 01_single_gpu/gpt.h, with the letters of its formulas.
struct GptShape {
  int blocks = 0;
  int width = 0;           // E
  int heads = 0;           // H
  int context = 0;         // T
  int vocabulary = 0;      // V
  bool blockwise = false;  // attention in blocks of keys (01_single_gpu/blockwise.md)
  int kv_heads = 0;        // heads of keys and values: fewer than H if several heads of queries share them
  int mlp_width = 0;       // features of an MLP, or of an expert: 4E in the workshop
  bool gated = false;      // an MLP with three matrices: the features of one gate those of another (Shazeer, 2020)
  int experts = 0;         // J, in place of each block's MLP (chapter 09); 0: none
  int top_k = 0;           // K
  double capacity = 0;     // χ; 0: exact counts
  double imbalance = 1;    // rows of the fullest of the ranks that together have all experts, divided by their mean

  // The values of a key, or of a value, as a share of E.
  double kv_share() const { return static_cast<double>(kv_heads) / heads; }
  int matrices() const { return gated ? 3 : 2; }
};

struct ModelShape {
  std::optional<GptShape> gpt;
  std::vector<int> widths;  // of --layers; empty for gpt, or if only the number of parameters is known
  double parameters = 0;
  Activation activation = Activation::none;
  OptimizerKind optimizer = OptimizerKind::sgd;
  Precision precision = Precision::fp32;
  int rows = 0;  // samples per step, over all replicas; a sample of gpt is a sequence of T tokens

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  // Bytes per parameter, gradient or activation.
  double bytes() const { return precision == Precision::mixed ? 2 : 4; }
  // Bytes per parameter that the optimizer keeps: AdamW's two moments, and the fp32 copy.
  double optimizer_bytes() const {
    return (optimizer == OptimizerKind::adamw ? 8 : 0) + (precision == Precision::mixed ? 4 : 0);
  }
};

// ---- the GPUs ------------------------------------------------------------------------------------------------------

// The link from one GPU to another.
struct Link {
  double latency;    // seconds per message
  double bandwidth;  // bytes per second and GPU, in one direction
};

struct Cluster {
  int gpus, gpus_per_node;
  double memory;            // bytes per GPU that a plan may fill
  double peak;              // operations per second and GPU
  double flops;             // operations per second that it reaches, in an MLP's step or in gpt's matrix products
  double memory_bandwidth;  // bytes per second between a GPU and its memory
  Link node, network;       // within a node, and between nodes
};

// How a mesh divides the GPUs, in the order of mesh.h: rank = ((pipeline · dp + replica) · cp + context) · tp + tensor.
struct Layout {
  int dp = 1, pp = 1, tp = 1;
  int zero = 0;           // the stage of ZeRO, over the data-parallel ranks
  int micro_batches = 1;  // per replica and step
  bool prefetch = false;  // stage 3 gathers a layer while the one before it computes
  // Only for gpt:
  int hybrid = 0;                  // data-parallel ranks that share one model under ZeRO; 0: all
  int chunks = 1;                  // chunks per rank: with more than one, the schedule is interleaved
  bool recompute = false;          // blocks keep only their output
  bool sequence_parallel = false;  // between the cut layers, a tensor rank has only its share of the positions
  bool scatter = false;            // between stages, a tensor rank sends only its share of a message
  int cp = 1;                      // ranks that share a sequence, with ring attention and zigzag (chapter 08)
  int ep = 1;                      // neighbors among the ranks of data() that together have all experts (chapter 09)

  std::int64_t gpus() const { return std::int64_t{dp} * cp * pp * tp; }
  int data() const { return dp * cp; }  // ranks with the same parameters: dp replicas of cp ranks each
  int sharing() const { return hybrid > 0 ? hybrid : data(); }
};

// The rows per step of one replica, in all its micro-batches.
inline double replica_rows(const ModelShape& model, const Layout& layout) {
  return static_cast<double>(model.rows) / layout.dp;
}

// ---- the part of the model that a GPU has --------------------------------------------------------------------------

// A stage's layers, cut over the tensor group. Values are per sample: for gpt, those of all tokens of a sequence.
struct StageShape {
  double parameters = 0, weights = 0;  // with and without the biases; without those of experts
  double of_experts = 0;               // parameters of the experts
  double largest = 0;                  // parameters of the largest unit
  double kept = 0;         // values per sample that the backward pass needs; an activated output counts twice
  double room = 0;         // values per sample that a block needs while it is recomputed
  double widest = 0;       // width of the widest layer output
  double in = 0, out = 0;  // widths of the stage's input and output
  double summed = 0;       // values per sample that the tensor group adds up: input and output of each pair
  int sums = 0;            // the tensor group's all-reduces for that, per micro-batch
  int units = 0;           // layers, or blocks, that are gathered and reduced separately
  int blocks = 0;          // of gpt
  double ring = 0;         // bytes per sample of the buffers in which keys, values and their gradients travel
  double exchange = 0;     // bytes per sample of the buffers in which the rows of experts travel
};

// Seconds of computing, or of what it waits for.
struct Passes {
  double forward = 0, backward = 0;
};

// Returns the beginning of a message about an option: "--tp is '3'; expected ".
inline std::string expected_prefix(const std::string& option, int value) {
  return "--" + option + " is '" + std::to_string(value) + "'; expected ";
}

}  // namespace workshop
