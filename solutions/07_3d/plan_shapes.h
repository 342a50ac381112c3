// SPDX-License-Identifier: Apache-2.0
// What a plan is about: a model, the GPUs, how they are divided, and the part of the model that one of them gets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/options.h"

namespace workshop {

// ---- the model -----------------------------------------------------------------------------------------------------

enum class Precision {
  fp32,
  mixed,  // 2 bytes a parameter, gradient and activation; the optimizer has its own copy of the parameters in fp32
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
  std::vector<int> widths;  // of --layers; empty for gpt, and where only the number of parameters is known
  double parameters = 0;
  Activation activation = Activation::none;
  OptimizerKind optimizer = OptimizerKind::sgd;
  Precision precision = Precision::fp32;
  int rows = 0;  // of the batch of a step, over all replicas; a row of gpt is a sequence of T tokens

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  // Bytes of a parameter, a gradient, or an activation.
  double bytes() const { return precision == Precision::mixed ? 2 : 4; }
  // Bytes a parameter of what the optimizer keeps from step to step: AdamW's two means, and the copy in fp32.
  double optimizer_bytes() const {
    return (optimizer == OptimizerKind::adamw ? 8 : 0) + (precision == Precision::mixed ? 4 : 0);
  }
};

// ---- the GPUs ------------------------------------------------------------------------------------------------------

// The way from one GPU to another.
struct Link {
  double latency;    // seconds a message
  double bandwidth;  // bytes a second, of one GPU in one direction
};

struct Cluster {
  int gpus, gpus_per_node;
  double memory;            // bytes a GPU that a plan may fill
  double peak;              // operations a second of a GPU
  double flops;             // of which it reaches so many: in all of an MLP's step, in the matrix products of gpt
  double memory_bandwidth;  // bytes a second between a GPU and its memory
  Link node, network;       // within a node, and between two
};

// What the GPUs are divided into, in mesh.h's order: rank = (p · dp + d) · tp + t, tensor ranks side by side.
struct Layout {
  int dp = 1, pp = 1, tp = 1;
  int zero = 0;           // stage of ZeRO over the data-parallel ranks
  int micro_batches = 1;  // that each replica cuts its share of the batch into
  bool prefetch = false;  // stage 3 gathers a layer while the one before it computes
  // Of gpt alone:
  int hybrid = 0;                  // data-parallel ranks that share one model under ZeRO; 0: all
  int chunks = 1;                  // parts of the model a stage: more than one is the interleaved schedule
  bool recompute = false;          // blocks keep their output alone
  bool sequence_parallel = false;  // between the cut layers a tensor rank has its share of the positions
  bool scatter = false;            // a tensor rank sends its share of a message between stages

  std::int64_t gpus() const { return std::int64_t{dp} * pp * tp; }
  int sharing() const { return hybrid > 0 ? hybrid : dp; }
};

// The rows of a step that one replica works on, in all its micro-batches.
inline double replica_rows(const ModelShape& model, const Layout& layout) {
  return static_cast<double>(model.rows) / layout.dp;
}

// ---- the part of the model that a GPU has --------------------------------------------------------------------------

// A stage's layers, cut over the tensor group. An MLP's values are those of a row; gpt's too, of all its tokens.
struct StageShape {
  double parameters = 0, weights = 0;  // with and without the biases
  double largest = 0;                  // parameters of the largest unit
  double kept = 0;                     // values a row that the backward needs: outputs, twice where one is activated
  double room = 0;                     // values a row that one block leaves while it is recomputed
  double widest = 0;                   // of the layers' outputs
  double in = 0, out = 0;              // widths of the stage
  double summed = 0;                   // values a row that the tensor group adds up: input and output of each pair
  int sums = 0;                        // all-reduces of the tensor group for that, a micro-batch
  int units = 0;                       // that parameters are gathered and gradients reduced by: a layer, a block
};

// "--tp is '3'; expected ": how a line about an option begins.
inline std::string expected_prefix(const std::string& option, int value) {
  return "--" + option + " is '" + std::to_string(value) + "'; expected ";
}

}  // namespace workshop
