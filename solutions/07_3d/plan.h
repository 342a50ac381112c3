// SPDX-License-Identifier: Apache-2.0
// What a mesh of GPUs needs to train a model, worked out on paper: memory by kind, bytes sent by group, the bubble, and
// an estimate of the time a step. The formulas are those of the chapters' READMEs. Numbers are doubles, because they
// may be large and are not always whole: a shard is count / ranks here, without the padding of a real one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "03_model_parallel/partition.h"
#include "common/options.h"
#include "common/record.h"

namespace workshop {

// ---- what is planned -----------------------------------------------------------------------------------------------

enum class Precision {
  fp32,
  mixed,  // 2 bytes a parameter, gradient and activation; the optimizer has its own copy of the parameters in fp32
};

struct ModelShape {
  std::vector<int> widths;  // of --layers; empty where only the number of parameters is known
  double parameters = 0;
  Activation activation = Activation::none;
  OptimizerKind optimizer = OptimizerKind::sgd;
  Precision precision = Precision::fp32;
  int rows = 0;  // of the batch of a step, over all replicas

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  // Bytes of a parameter, a gradient, or an activation.
  double bytes() const { return precision == Precision::mixed ? 2 : 4; }
  // Bytes a parameter of what the optimizer keeps from step to step: AdamW's two means, and the copy in fp32.
  double optimizer_bytes() const {
    return (optimizer == OptimizerKind::adamw ? 8 : 0) + (precision == Precision::mixed ? 4 : 0);
  }
};

// The way from one GPU to another.
struct Link {
  double latency;    // seconds a message
  double bandwidth;  // bytes a second, of one GPU in one direction
};

struct Cluster {
  int gpus, gpus_per_node;
  double memory;       // bytes a GPU
  double flops;        // operations a second that a GPU reaches
  Link node, network;  // within a node, and between two
};

// What the GPUs are divided into, in mesh.h's order: rank = (p · dp + d) · tp + t, tensor ranks side by side.
struct Layout {
  int dp = 1, pp = 1, tp = 1;
  int zero = 0;           // stage of ZeRO over the data-parallel ranks
  int micro_batches = 1;  // that each replica cuts its share of the batch into
  bool prefetch = false;  // stage 3 gathers a layer while the one before it computes

  std::int64_t gpus() const { return std::int64_t{dp} * pp * tp; }
};

// The rows of a step that one replica works on, in all its micro-batches.
inline double replica_rows(const ModelShape& model, const Layout& layout) {
  return static_cast<double>(model.rows) / layout.dp;
}

// ---- the plan ------------------------------------------------------------------------------------------------------

// Bytes that a GPU holds, by the kinds of the run record.
struct MemoryPlan {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, buckets = 0;
  double total() const { return parameters + gradients + optimizer + activations + buckets; }
};

// Bytes that a GPU sends in a step, by group.
struct Traffic {
  double tensor = 0, data = 0, pipeline = 0;
};

// Seconds of a step, as a stage spends them.
struct Times {
  double busy = 0;      // computing, and the tensor group's sums, for which every layer waits
  double backward = 0;  // the part of `busy` behind which `reduce` hides
  double transfer = 0;  // a micro-batch's way from one stage to the next
  double reduce = 0;    // of the gradients
  double gather = 0;    // of parameters
};

// What all GPUs of a pipeline stage do alike.
struct StagePlan {
  MemoryPlan memory;
  Traffic sent;
  Times times;
};

struct Plan {
  Layout layout;
  std::vector<StagePlan> stages;
  double bubble = 0;   // share of the time of a step
  double seconds = 0;  // a step
  bool fits = false;

  // The stage whose GPUs hold the most.
  const StagePlan& fullest() const {
    return *std::max_element(stages.begin(), stages.end(), [](const StagePlan& a, const StagePlan& b) {
      return a.memory.total() < b.memory.total();
    });
  }
};

// ---- the part of the model that a GPU has --------------------------------------------------------------------------

// A stage's layers, cut over the tensor group.
struct StageShape {
  double parameters = 0, weights = 0;  // with and without the biases
  double largest = 0;                  // parameters of the largest layer
  double kept = 0;                     // values a row that the backward needs: outputs, twice where one is activated
  double widest = 0;                   // of the layers' outputs
  double in = 0, out = 0;              // widths of the stage
  double summed = 0;                   // values a row that the tensor group adds up: input and output of each pair
  int layers = 0;
};

// Layers [bounds[p], bounds[p + 1]) belong to stage p. A tensor group cuts layers in pairs, which stay together.
inline std::vector<int> stage_bounds(const ModelShape& model, const Layout& layout) {
  const int together = layout.tp > 1 ? 2 : 1, layers = static_cast<int>(model.widths.size()) - 1;
  const std::vector<std::int64_t> units(layers / together);
  std::vector<int> bounds = partition_layers(units, layout.pp, Partition::uniform);
  for (int& bound : bounds) bound *= together;
  return bounds;
}

inline StageShape make_part(const ModelShape& model, const Layout& layout, int first, int last) {
  if (model.widths.empty()) {
    StageShape whole;
    whole.parameters = whole.weights = model.parameters;
    whole.layers = 1;
    return whole;
  }
  StageShape part;
  for (int i = first; i < last; ++i) {
    // Chapter 05: the first layer of a pair is cut by its outputs, bias included, the second one by its inputs.
    const bool column = i % 2 == 0;
    const double in = model.widths[i] / (column ? 1.0 : layout.tp);
    const double out = model.widths[i + 1] / (column ? layout.tp : 1.0);
    const bool activated = model.activation != Activation::none && i + 1 < model.layers();
    const double parameters = (in + 1) * out;
    part.parameters += parameters;
    part.weights += in * out;
    part.largest = std::max(part.largest, parameters);
    part.kept += out * (activated ? 2 : 1);
    part.widest = std::max({part.widest, out, layout.tp > 1 ? in : 0});
    if (layout.tp > 1) part.summed += column ? in : out;
  }
  part.in = model.widths[first];
  part.out = model.widths[last];
  part.layers = last - first;
  return part;
}

// ---- memory --------------------------------------------------------------------------------------------------------

// Parameters, gradients and optimizer state of a GPU that is one of the mesh's data-parallel ranks.
inline MemoryPlan model_states(const ModelShape& model, const Layout& layout, double parameters) {
  MemoryPlan memory;
  memory.parameters = model.bytes() * parameters;
  memory.gradients = model.bytes() * parameters;
  memory.optimizer = model.optimizer_bytes() * parameters;
  // TODO 07.10: Divide what ZeRO cuts over the data-parallel ranks by their number, layout.dp.
  //   Stage 1 cuts the optimizer's state, stage 2 the gradients too, stage 3 the parameters too. layout.zero is the
  //   stage, 0 for none.
  if (layout.zero >= 1) memory.optimizer /= layout.dp;
  if (layout.zero >= 2) memory.gradients /= layout.dp;
  if (layout.zero >= 3) memory.parameters /= layout.dp;
  // END TODO 07.10
  probe("07.10", "bytes of parameters, gradients, optimizer state",
        std::vector<double>{memory.parameters, memory.gradients, memory.optimizer});
  return memory;
}

// Adds what stage `s` keeps for its backwards, and its messages: chapter 04's formulas, for 1F1B.
inline void add_activations(MemoryPlan& memory, const ModelShape& model, const Layout& layout, const StageShape& part,
                            int s) {
  const bool first = s == 0, last = s == layout.pp - 1;
  const double rows = replica_rows(model, layout) / layout.micro_batches;
  const int in_flight = std::min(layout.micro_batches, layout.pp - s);
  const int inputs = first ? 0 : std::min(layout.micro_batches, in_flight + 1);
  memory.activations = model.bytes() * rows * (in_flight * part.kept + inputs * part.in + 2 * part.widest);
  memory.buckets = model.bytes() * rows * ((last ? 0 : part.out) + (first ? 0 : 2 * part.in));
}

// Adds the room for what ZeRO does not keep: one layer's gradients before they are reduced, in stage 3 its gathered
// parameters too, and with prefetch both of two layers (chapter 06).
inline void add_gathered(MemoryPlan& memory, const ModelShape& model, const Layout& layout, const StageShape& part) {
  const int layers = layout.zero < 2 ? 0 : layout.zero == 2 ? 1 : layout.prefetch ? 4 : 2;
  memory.buckets += model.bytes() * part.largest * layers;
}

// ---- traffic -------------------------------------------------------------------------------------------------------

// Bytes that a GPU sends to the other data-parallel ranks, of `parameters` that it has gradients of.
inline double data_bytes(const ModelShape& model, const Layout& layout, double parameters) {
  const double whole = model.bytes() * parameters;
  double sent = 0;
  // TODO 07.11: How many bytes does a rank send to its layout.dp data-parallel ranks in a step?
  //   A reduce-scatter or an all-gather of `whole` bytes over N ranks sends (N-1)/N of them, an all-reduce is both.
  //   Stage 0 all-reduces the gradients; stages 1 and 2 reduce-scatter the gradients and gather the updated parameters;
  //   stage 3 gathers parameters before the forward and before the backward, and reduce-scatters gradients. From stage
  //   2 on gradients are not kept whole, so they are reduced in each of the layout.micro_batches, and in stage 3
  //   parameters are gathered in each.
  const double half = whole * (layout.dp - 1) / layout.dp;
  if (layout.zero <= 1) sent = 2 * half;
  if (layout.zero == 2) sent = (layout.micro_batches + 1) * half;
  if (layout.zero == 3) sent = 3 * layout.micro_batches * half;
  // END TODO 07.11
  probe("07.11", "bytes sent to the data-parallel ranks", std::vector<double>{sent});
  return sent;
}

// Bytes that a GPU sends to the other ranks of its tensor group. `summed` is part.summed.
inline double tensor_bytes(const ModelShape& model, const Layout& layout, double summed) {
  const double rows = replica_rows(model, layout);
  double sent = 0;
  // TODO 07.12: How many bytes does a rank send to the layout.tp ranks of its tensor group in a step?
  //   A pair all-reduces its output in the forward, and the gradient of its input in the backward; `summed` is the sum
  //   of both widths over all pairs, so it is the number of values a row. A value has model.bytes(). How much of it
  //   does a rank of an all-reduce send?
  sent = model.bytes() * rows * summed * 2 * (layout.tp - 1) / layout.tp;
  // END TODO 07.12
  probe("07.12", "bytes sent to the tensor group", std::vector<double>{sent});
  return sent;
}

// Bytes that a GPU of stage `s` sends to the neighboring stages.
inline double pipeline_bytes(const ModelShape& model, const Layout& layout, const StageShape& part, int s) {
  const double rows = replica_rows(model, layout);
  double sent = 0;
  // TODO 07.13: How many bytes does a rank of stage s send to the stages below and above it in a step?
  //   Activations, part.out values a row, go up; gradients, part.in values a row, go down. The first of the layout.pp
  //   stages has none below it, the last none above. A value has model.bytes().
  if (s < layout.pp - 1) sent += model.bytes() * rows * part.out;
  if (s > 0) sent += model.bytes() * rows * part.in;
  // END TODO 07.13
  probe("07.13", "bytes sent by stage " + std::to_string(s), std::vector<double>{sent});
  return sent;
}

// ---- time ----------------------------------------------------------------------------------------------------------

// The share of a step's time that a stage idles.
inline double bubble(const Layout& layout) {
  double share = 0;
  // TODO 07.14: Which share of the time of a step does each of the K stages wait, with M micro-batches?
  //   K is layout.pp, M is layout.micro_batches. A step is as long as M + K - 1 micro-batches are; see chapter 04. Not
  //   the share of the ideal time.
  share = (layout.pp - 1.0) / (layout.micro_batches + layout.pp - 1);
  // END TODO 07.14
  probe("07.14", "bubble", std::vector<double>{share});
  return share;
}

// The link that decides how fast `size` ranks that are `stride` apart talk. Ranks that follow each other fill the
// nodes; a group stays within one if the block of ranks that it is part of does.
inline const Link& link_of_group(const Cluster& cluster, int stride, int size) {
  const int block = stride * size;
  const bool within = cluster.gpus <= cluster.gpus_per_node || cluster.gpus_per_node % block == 0;
  return size == 1 || within ? cluster.node : cluster.network;
}

// The time in which each rank of a ring sends `sent` bytes, in `calls` collectives that have `whole` bytes together. In
// each round a rank sends one chunk, a rank's share of the call's bytes, and waits for the latency once (chapter 00).
inline double ring_seconds(const Link& link, int ranks, double calls, double whole, double sent) {
  if (ranks == 1 || whole == 0) return 0;
  const double rounds = calls * sent / (whole / ranks);
  return rounds * link.latency + sent / link.bandwidth;
}

inline Times stage_times(const ModelShape& model, const Cluster& cluster, const Layout& layout, const StageShape& part,
                         const Traffic& sent) {
  const double rows = replica_rows(model, layout);
  const Link& tensor = link_of_group(cluster, 1, layout.tp);
  const Link& data = link_of_group(cluster, layout.tp, layout.dp);
  const Link& pipeline = link_of_group(cluster, layout.tp * layout.dp, layout.pp);
  Times times;
  // A weight is multiplied and added once in the forward and twice in the backward: for its own gradient, and for that
  // of the layer's input.
  const double computing = 6 * part.weights * rows / cluster.flops;
  const double sums = part.layers * layout.micro_batches;  // two all-reduces a pair of layers and micro-batch
  const double summing = ring_seconds(tensor, layout.tp, sums, model.bytes() * rows * part.summed, sent.tensor);
  times.busy = computing + summing;
  if (layout.pp > 1) {
    const double message = model.bytes() * rows / layout.micro_batches * std::max(part.in, part.out);
    times.transfer = pipeline.latency + message / pipeline.bandwidth;
  }
  // One collective a layer.
  const double whole = model.bytes() * part.parameters;
  const double all = ring_seconds(data, layout.dp, part.layers, whole, sent.data);
  // Gradients are reduced behind the backward, which has two thirds of the operations and half of the sums: where they
  // are kept whole, once, behind that of the last micro-batch; where not, behind each. Parameters are gathered when
  // they are needed.
  const int gathers = layout.zero == 0 ? 0 : layout.zero == 3 ? 2 * layout.micro_batches : 1;
  times.gather = gathers * ring_seconds(data, layout.dp, part.layers, whole, whole * (layout.dp - 1) / layout.dp);
  times.reduce = all - times.gather;
  times.backward = (computing * 2 / 3 + summing / 2) / (layout.zero <= 1 ? layout.micro_batches : 1);
  if (layout.zero == 3 && layout.prefetch) {  // all that is sent hides behind all that is computed
    times.reduce = all;
    times.gather = 0;
    times.backward = times.busy;
  }
  return times;
}

// The time of a step, if all stages spend theirs like this one.
inline double step_seconds(const Layout& layout, double bubble, const Times& t) {
  // In 1F1B a micro-batch may have to wait for its activation and for its gradient (chapter 04).
  const double messages = layout.pp == 1 ? 0 : 2 * t.transfer * (layout.micro_batches + layout.pp - 1);
  double seconds = 0;
  // TODO 07.15: How long does a step take?
  //   A stage is busy for t.busy, which is all of the time but the share `bubble`. `messages` and t.gather, for which
  //   it waits, come on top, and of t.reduce what is longer than t.backward, behind which it hides.
  seconds = t.busy / (1 - bubble) + messages + t.gather + std::max(0.0, t.reduce - t.backward);
  // END TODO 07.15
  probe("07.15", "seconds a step", std::vector<double>{seconds});
  return seconds;
}

// ---- all together --------------------------------------------------------------------------------------------------

// "--tp is '3'; expected ": how a line about an option begins.
inline std::string is(const std::string& option, int value) {
  return "--" + option + " is '" + std::to_string(value) + "'; expected ";
}

// Why the model cannot be cut over stages and tensor groups like this: one line, empty if it can.
inline std::string why_not_cut(const ModelShape& model, const Layout& layout) {
  if (model.widths.empty()) {
    const std::string one = "1 with --parameters, which says nothing of layers";
    return layout.pp > 1 ? is("pp", layout.pp) + one : layout.tp > 1 ? is("tp", layout.tp) + one : "";
  }
  if (layout.tp > 1 && model.layers() % 2 != 0) {
    return is("tp", layout.tp) + "1 for " + std::to_string(model.layers()) + " layers, which do not make pairs";
  }
  const int parts = model.layers() / (layout.tp > 1 ? 2 : 1);
  if (layout.pp > parts) {
    return is("pp", layout.pp) + "at most " + std::to_string(parts) + ", the model's " +
           (layout.tp > 1 ? "pairs of layers" : "layers");
  }
  for (int i = 1; layout.tp > 1 && i < model.layers(); i += 2) {
    if (model.widths[i] % layout.tp == 0) continue;
    return is("tp", layout.tp) + "a divisor of the width " + std::to_string(model.widths[i]) + " inside a pair";
  }
  return "";
}

// Why the model cannot be trained on this mesh: one line, empty if it can.
inline std::string why_not(const ModelShape& model, const Cluster& cluster, const Layout& layout) {
  if (layout.gpus() != cluster.gpus) {
    return "--dp, --pp and --tp make " + std::to_string(layout.gpus()) + " GPUs; expected --gpus, " +
           std::to_string(cluster.gpus);
  }
  const bool one_node = cluster.gpus <= cluster.gpus_per_node;
  if (!one_node && cluster.gpus_per_node % layout.tp != 0) {
    return is("tp", layout.tp) + "a divisor of the " + std::to_string(cluster.gpus_per_node) +
           " GPUs of a node, so that tensor groups stay within one";
  }
  const std::string cut = why_not_cut(model, layout);
  if (!cut.empty()) return cut;
  if (model.rows % layout.dp != 0) {
    return is("global-batch", model.rows) + "a multiple of the " + std::to_string(layout.dp) + " replicas";
  }
  const int rows = model.rows / layout.dp;
  if (rows % layout.micro_batches != 0) {
    return is("micro-batches", layout.micro_batches) + "a divisor of the " + std::to_string(rows) +
           " rows of a replica";
  }
  if (layout.zero >= 2 && layout.pp > 1) {
    return is("zero", layout.zero) + "0 or 1 with --pp, or every micro-batch would reduce its gradients";
  }
  return "";
}

// Plans a mesh for which why_not() has nothing to say.
inline Plan make_plan(const ModelShape& model, const Cluster& cluster, const Layout& layout) {
  Plan plan;
  plan.layout = layout;
  const std::vector<int> bounds = model.widths.empty() ? std::vector<int>{0, 1} : stage_bounds(model, layout);
  for (int s = 0; s < layout.pp; ++s) {
    const StageShape part = make_part(model, layout, bounds[s], bounds[s + 1]);
    StagePlan stage;
    stage.memory = model_states(model, layout, part.parameters);
    add_activations(stage.memory, model, layout, part, s);
    add_gathered(stage.memory, model, layout, part);
    stage.sent.data = data_bytes(model, layout, part.parameters);
    stage.sent.tensor = tensor_bytes(model, layout, part.summed);
    stage.sent.pipeline = pipeline_bytes(model, layout, part, s);
    stage.times = stage_times(model, cluster, layout, part, stage.sent);
    plan.stages.push_back(stage);
  }
  plan.bubble = bubble(layout);
  // The slowest stage is the one that all others wait for.
  for (const StagePlan& stage : plan.stages) {
    plan.seconds = std::max(plan.seconds, step_seconds(layout, plan.bubble, stage.times));
  }
  plan.fits = plan.fullest().memory.total() <= cluster.memory;
  return plan;
}

}  // namespace workshop
