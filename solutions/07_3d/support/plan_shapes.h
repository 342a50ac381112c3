// SPDX-License-Identifier: Apache-2.0
// The terms of a plan: a model, a cluster of GPUs, how a mesh divides them, and the part of the model that one GPU
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
  mixed,  // 2 bytes per parameter, gradient and activation; the optimizer has its own fp32 copy of the parameters
};

// A language model like that of 01_single_gpu/gpt.h; the letters are those of its formulas.
struct GptShape {
  int blocks = 0;
  int width = 0;       // E
  int heads = 0;       // H
  int context = 0;     // T
  int vocabulary = 0;  // V
};

struct ModelShape {
  std::optional<GptShape> gpt;
  std::vector<int> widths;  // of --layers; empty for gpt, or if only the number of parameters is known
  double parameters = 0;
  Activation activation = Activation::none;
  OptimizerKind optimizer = OptimizerKind::sgd;
  Precision precision = Precision::fp32;
  int rows = 0;  // of a step's batch, over all replicas; a row of gpt is a sequence of T tokens

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  // Bytes per parameter, gradient or activation.
  double bytes() const { return precision == Precision::mixed ? 2 : 4; }
  // Bytes per parameter that the optimizer keeps from step to step: AdamW's two moments, and the fp32 copy.
  double optimizer_bytes() const {
    return (optimizer == OptimizerKind::adamw ? 8 : 0) + (precision == Precision::mixed ? 4 : 0);
  }
};

// ---- the GPUs ------------------------------------------------------------------------------------------------------

// The link from one GPU to another.
struct Link {
  double latency;    // seconds per message
  double bandwidth;  // bytes per second, of one GPU in one direction
};

struct Cluster {
  int gpus, gpus_per_node;
  double memory;            // bytes per GPU that a plan may fill
  double peak;              // operations per second and GPU
  double flops;             // those that it reaches: in an MLP's whole step, or in gpt's matrix products
  double memory_bandwidth;  // bytes per second between a GPU and its memory
  Link node, network;       // within a node, and between nodes
};

// How a mesh divides the GPUs, in mesh.h's order: rank = (p · dp + d) · tp + t, tensor ranks side by side.
struct Layout {
  int dp = 1, pp = 1, tp = 1;
  int zero = 0;           // ZeRO's stage, over the data-parallel ranks
  int micro_batches = 1;  // per replica and step
  bool prefetch = false;  // stage 3 gathers a layer while the one before it computes
  // Only for gpt:
  int hybrid = 0;                  // data-parallel ranks that share one model under ZeRO; 0: all
  int chunks = 1;                  // parts of the model per stage: more than one is the interleaved schedule
  bool recompute = false;          // blocks keep only their output
  bool sequence_parallel = false;  // between the cut layers a tensor rank has its share of the positions
  bool scatter = false;            // a tensor rank sends its share of a message between stages

  std::int64_t gpus() const { return std::int64_t{dp} * pp * tp; }
  int sharing() const { return hybrid > 0 ? hybrid : dp; }
};

// The rows per step of one replica, in all its micro-batches.
inline double replica_rows(const ModelShape& model, const Layout& layout) {
  return static_cast<double>(model.rows) / layout.dp;
}

// ---- the part of the model that a GPU has --------------------------------------------------------------------------

// A stage's layers, cut over the tensor group. Values are per row: for gpt, those of all tokens of a sequence.
struct StageShape {
  double parameters = 0, weights = 0;  // with and without the biases
  double largest = 0;                  // parameters of the largest unit
  double kept = 0;                     // values per row that the backward needs; an activated output counts twice
  double room = 0;                     // values per row that a block needs while it is recomputed
  double widest = 0;                   // of the layers' outputs
  double in = 0, out = 0;              // widths of the stage
  double summed = 0;                   // values per row that the tensor group adds up: input and output of each pair
  int sums = 0;                        // the tensor group's all-reduces for that, per micro-batch
  int units = 0;                       // of which each is gathered and reduced by itself: a layer, or a block
};

// "--tp is '3'; expected ": how a message about an option begins.
inline std::string expected_prefix(const std::string& option, int value) {
  return "--" + option + " is '" + std::to_string(value) + "'; expected ";
}

}  // namespace workshop
