// SPDX-License-Identifier: Apache-2.0
// Computes what a mesh of GPUs needs to train a model: memory by kind, bytes sent by group, the bubble, and an estimate
// of the time per step. The formulas are those of the chapters' pages. Numbers are doubles, because they may be large
// and need not be whole: a shard is count / ranks here, without the padding of a real shard.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "03_model_parallel/model_parallel.h"
#include "07_3d/support/plan_gpt.h"
#include "07_3d/support/plan_shapes.h"
#include "common/record/record.h"

namespace workshop {

// ---- the plan ------------------------------------------------------------------------------------------------------

// Bytes that a GPU holds, by kind, as in the run record.
struct MemoryPlan {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, buckets = 0;
  double total() const { return parameters + gradients + optimizer + activations + buckets; }
};

// Bytes that a GPU sends per step, by group.
struct Traffic {
  double tensor = 0, data = 0, pipeline = 0, context = 0;
  double copies = 0;    // hybrid sharding: to the ranks with the same shard in the model's other copies
  double experts = 0;   // rows, to the experts and back
  double replicas = 0;  // gradients and parameters of experts, to the ranks with the same ones

  double all_data() const { return data + copies + replicas; }
};

// How a stage spends a step, in seconds.
struct StageTimes {
  double busy = 0;      // computing, and what every layer waits for: the tensor group, the part of the ring that is not
                        // hidden, the exchange of rows
  double backward = 0;  // the part of `busy` that hides `reduce`
  double transfer = 0;  // one micro-batch, from one stage or chunk to the next
  double reduce = 0;    // the gradients
  double gather = 0;    // the parameters
};

// One GPU of a pipeline stage; the same for all GPUs of the stage.
struct StagePlan {
  MemoryPlan memory;
  Traffic sent;
  StageTimes times;
};

struct Plan {
  Layout layout;
  std::vector<StagePlan> stages;
  double bubble = 0;   // share of the time of a step
  double seconds = 0;  // per step
  bool fits = false;
  // Only for gpt:
  double tokens_per_second = 0;  // of all GPUs
  double flops = 0;              // operations per second and GPU, including recomputation
  double mfu = 0;                // model FLOP utilization: without recomputation, as a share of the peak

  // The stage whose GPUs hold the most.
  const StagePlan& fullest() const {
    return *std::max_element(stages.begin(), stages.end(), [](const StagePlan& a, const StagePlan& b) {
      return a.memory.total() < b.memory.total();
    });
  }
};

// ---- the part of the model that a GPU holds ------------------------------------------------------------------------

// Stage s has the layers, or blocks, [bounds[s], bounds[s + 1]). A tensor group cuts pairs of layers, so a pair stays
// on one stage.
inline std::vector<int> stage_bounds(const ModelShape& model, const Layout& layout) {
  if (model.gpt) {
    return partition_layers(std::vector<std::int64_t>(model.gpt->blocks), layout.pp, Partition::uniform);
  }
  if (model.widths.empty()) return {0, 1};
  const int together = layout.tp > 1 ? 2 : 1, layers = static_cast<int>(model.widths.size()) - 1;
  const std::vector<std::int64_t> units(layers / together);
  std::vector<int> bounds = partition_layers(units, layout.pp, Partition::uniform);
  for (int& bound : bounds) bound *= together;
  return bounds;
}

inline StageShape make_part(const ModelShape& model, const Layout& layout, int first, int last) {
  if (model.gpt) return make_gpt_part(model, layout, first, last);
  if (model.widths.empty()) {
    StageShape whole;
    whole.parameters = whole.weights = model.parameters;
    whole.units = 1;
    return whole;
  }
  StageShape part;
  for (int i = first; i < last; ++i) {
    // Chapter 05: the first layer of a pair is cut by its outputs, with its bias; the second by its inputs.
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
  part.units = part.sums = last - first;  // two all-reduces per pair of layers
  return part;
}

// ---- memory --------------------------------------------------------------------------------------------------------

// Returns the layout with only those data-parallel ranks that share one model. The ranks of a context group are
// replicas here: they have the same parameters.
inline Layout sharing_group(Layout layout) {
  layout.dp = layout.sharing();
  layout.cp = 1;
  return layout;
}

// The same for experts: only the ranks of sharing_group() that have the same ones.
inline Layout expert_group(Layout layout) {
  const int ep = layout.ep;
  layout = sharing_group(layout);
  layout.dp /= ep;
  return layout;
}

// In an interleaved schedule a micro-batch passes a stage once per chunk, each time for a part of the stage's time. The
// pipeline behaves as with `chunks` times as many micro-batches (Narayanan et al., 2021, section 2.2).
inline Layout chunk_by_chunk(Layout layout) {
  layout.micro_batches *= layout.chunks;
  return layout;
}

// Parameters, gradients and optimizer state of one of layout.dp data-parallel ranks.
inline MemoryPlan model_states(const ModelShape& model, const Layout& layout, double parameters) {
  probe("07.J", "given to model_states: data-parallel ranks, parameters", std::array{1.0 * layout.dp, parameters});
  MemoryPlan memory;
  // WRITE 07.J: Set memory.parameters, memory.gradients and memory.optimizer: the bytes that a rank holds.
  //   `parameters` is the number of parameters of its part of the model. A parameter or a gradient takes model.bytes(),
  //   the optimizer state of a parameter model.optimizer_bytes(). Stage layout.zero of ZeRO shards some of it over the
  //   layout.dp ranks.
  memory.parameters = model.bytes() * parameters;
  memory.gradients = model.bytes() * parameters;
  memory.optimizer = model.optimizer_bytes() * parameters;
  // TODO 07.8: Divide what ZeRO shards by the number of data-parallel ranks, layout.dp.
  //   Stage 1 shards the optimizer state, stage 2 also the gradients, stage 3 also the parameters. layout.zero is the
  //   stage; 0 shards nothing.
  if (layout.zero >= 1) memory.optimizer /= layout.dp;
  if (layout.zero >= 2) memory.gradients /= layout.dp;
  if (layout.zero >= 3) memory.parameters /= layout.dp;
  // END TODO 07.8
  // END WRITE 07.J
  probe("07.8", "bytes of parameters, gradients, optimizer state",
        std::vector<double>{memory.parameters, memory.gradients, memory.optimizer});
  return memory;
}

// Returns the number of forwards, each of a micro-batch and chunk, that stage `s` has done when its first backward
// begins, in chapter 04's 1F1B and interleaved schedules.
inline int forwards_ahead(const Layout& layout, int s) {
  const int all = layout.micro_batches * layout.chunks;
  if (layout.chunks == 1) return std::min(all, layout.pp - s);
  return std::min(all, 2 * (layout.pp - s - 1) + (layout.chunks - 1) * layout.pp + 1);
}

// Adds the activations that stage `s` keeps for its backwards, and its messages, by chapter 04's formulas.
inline void add_activations(MemoryPlan& memory, const ModelShape& model, const Layout& layout, const StageShape& part,
                            int s) {
  probe("07.K", "given to add_activations: parameters, rows, stage",
        std::array{part.parameters, replica_rows(model, layout), 1.0 * s});
  // WRITE 07.K: Set memory.activations and memory.buckets of stage `s`, in bytes.
  //   A value takes model.bytes(). All counts of values are per row. A buffer has the rows of one micro-batch;
  //   replica_rows(model, layout) are those of all layout.micro_batches. The stage keeps part.kept values of each
  //   micro-batch in flight. forwards_ahead() says how many are in flight, but counts a micro-batch once per chunk
  //   (layout.chunks), and each time the stage keeps only a chunk's share of part.kept. It also needs part.room values
  //   for recomputation, and 2 · part.widest for the gradients that a backward computes with. If it receives inputs, it
  //   keeps part.in values for each forward that is ahead, and for the next one if there is any.
  //   The buckets are for messages: part.out values of gradients that come down, if the stage has one above, and
  //   2 · part.in of gradients that go down, if it has one below. In an interleaved schedule, with several chunks,
  //   every stage has both.
  const bool interleaved = layout.chunks > 1, receives = s > 0 || interleaved, sends = s < layout.pp - 1 || interleaved;
  const double rows = replica_rows(model, layout) / layout.micro_batches;
  const int ahead = forwards_ahead(layout, s);
  const int inputs = !receives ? 0 : std::min(layout.micro_batches * layout.chunks, ahead + 1);
  const double in_flight = static_cast<double>(ahead) / layout.chunks;
  memory.activations = model.bytes() * rows * (in_flight * part.kept + part.room + inputs * part.in + 2 * part.widest);
  memory.buckets = model.bytes() * rows * ((sends ? part.out : 0) + (receives ? 2 * part.in : 0));
  // END WRITE 07.K
  probe("07.K", "bytes of activations and messages", std::array{memory.activations, memory.buckets});
}

// Adds the buffers for what ZeRO does not keep: one unit's gradients before they are reduced, in stage 3 also its
// gathered parameters, and with prefetch both for two units (chapter 06). A unit is an MLP's layer or a gpt block. Also
// adds the buffers of a context group's ring and of the exchange of rows, and the parameters, gradients and optimizer
// state of the experts, which fewer ranks share.
inline void add_gathered(MemoryPlan& memory, const ModelShape& model, const Layout& layout, const StageShape& part) {
  const int units = layout.zero < 2 ? 0 : layout.zero == 2 ? 1 : layout.prefetch ? 4 : 2;
  memory.buckets += model.bytes() * part.largest * units;
  memory.buckets += replica_rows(model, layout) / layout.micro_batches * (part.ring + part.exchange);
  if (part.of_experts == 0) return;
  const MemoryPlan experts = model_states(model, expert_group(layout), part.of_experts);
  memory.parameters += experts.parameters;
  memory.gradients += experts.gradients;
  memory.optimizer += experts.optimizer;
}

// ---- traffic -------------------------------------------------------------------------------------------------------

// Returns the bytes that a GPU with the gradients of `parameters` parameters sends to the other data-parallel ranks.
inline double data_bytes(const ModelShape& model, const Layout& layout, double parameters) {
  double sent = 0;
  // WRITE 07.L: Set `sent` to the bytes of a step: of gradients, and of the parameters that ZeRO gathers.
  //   A gradient or a parameter takes model.bytes(). The layout.dp ranks average the gradients, with stage layout.zero
  //   of ZeRO (chapter 06). From stage 2 on, they keep no whole gradients from one of the layout.micro_batches to the
  //   next. In stage 3, they keep no whole parameters either, not even from a forward pass to its backward pass.
  const double whole = model.bytes() * parameters;
  // TODO 07.9: Compute the bytes that a rank sends to its data-parallel ranks in a step.
  //   In a reduce-scatter or an all-gather of `whole` bytes over d = layout.dp ranks, a rank sends (d-1)/d of them; an
  //   all-reduce is both. Stage 0 all-reduces the gradients. Stages 1 and 2 reduce-scatter the gradients and gather the
  //   updated parameters. Stage 3 gathers parameters before the forward and before the backward pass, and
  //   reduce-scatters gradients. From stage 2 on, gradients are not kept whole, so they are reduced in each of the
  //   layout.micro_batches; in stage 3, parameters are also gathered in each of them.
  const double half = whole * (layout.dp - 1) / layout.dp;
  if (layout.zero <= 1) sent = 2 * half;
  if (layout.zero == 2) sent = (layout.micro_batches + 1) * half;
  if (layout.zero == 3) sent = 3 * layout.micro_batches * half;
  // END TODO 07.9
  // END WRITE 07.L
  probe("07.9", "bytes sent to the data-parallel ranks", std::vector<double>{sent});
  return sent;
}

// Returns the bytes that a GPU sends to the other ranks of its tensor group. `summed` is part.summed.
inline double tensor_bytes(const ModelShape& model, const Layout& layout, double summed) {
  const double rows = replica_rows(model, layout);
  double sent = 0;
  // TODO 07.10: Compute the bytes that a rank sends to the layout.tp ranks of its tensor group in a step.
  //   A pair all-reduces its output in the forward pass and the gradient of its input in the backward pass. `summed` is
  //   the sum of both widths over all pairs: the number of values per row. A value takes model.bytes(). Which share of
  //   the bytes of an all-reduce does a rank send?
  sent = model.bytes() * rows * summed * 2 * (layout.tp - 1) / layout.tp;
  // END TODO 07.10
  probe("07.10", "bytes sent to the tensor group", std::vector<double>{sent});
  return sent;
}

// Returns the bytes that a GPU of stage `s` sends to the neighboring stages.
inline double pipeline_bytes(const ModelShape& model, const Layout& layout, const StageShape& part, int s) {
  const double rows = replica_rows(model, layout);
  double sent = 0;
  // TODO 07.11: Compute the bytes that a rank of stage s sends to the stages below and above it in a step.
  //   Activations, part.out values per row, go up; gradients, part.in values per row, go down. There is no stage below
  //   the first of the layout.pp stages, and none above the last. A value takes model.bytes().
  if (s < layout.pp - 1) sent += model.bytes() * rows * part.out;
  if (s > 0) sent += model.bytes() * rows * part.in;
  // END TODO 07.11
  probe("07.11", "bytes sent by stage " + std::to_string(s), std::vector<double>{sent});
  return sent;
}

// Returns the bytes that hybrid sharding sends to the ranks with the same shard: their gradients are averaged once per
// step.
inline double copies_bytes(const ModelShape& model, const Layout& layout, double parameters) {
  const double copies = static_cast<double>(layout.data()) / layout.sharing();
  return 2 * model.bytes() * parameters / layout.sharing() * (copies - 1) / copies;
}

inline Traffic stage_traffic(const ModelShape& model, const Layout& layout, const StageShape& part, int s) {
  probe("07.L", "given to stage_traffic: replicas, parameters, stage",
        std::array{1.0 * layout.dp, part.parameters, 1.0 * s});
  Traffic sent;
  sent.data = data_bytes(model, sharing_group(layout), part.parameters);
  // The ranks of a model that have the same experts are fewer by the factor ep, so their shards are larger.
  sent.copies = copies_bytes(model, layout, part.parameters + layout.ep * part.of_experts);
  if (part.of_experts > 0) sent.replicas = data_bytes(model, expert_group(layout), part.of_experts);
  sent.tensor = tensor_bytes(model, layout, part.summed);
  sent.context = context_bytes(model, layout, replica_rows(model, layout), part.blocks);
  sent.experts = exchange_bytes(model, layout, replica_rows(model, layout), part.blocks);
  // Between its chunks, every stage sends both ways, including the first and the last one.
  sent.pipeline = pipeline_bytes(model, layout, part, s) +
                  (layout.chunks - 1) * model.bytes() * replica_rows(model, layout) * (part.in + part.out);
  return sent;
}

// ---- time ----------------------------------------------------------------------------------------------------------

// Returns the share of a step's time in which a stage idles.
inline double bubble(const Layout& layout) {
  probe("07.12", "given to bubble: stages, micro-batches", std::array{1.0 * layout.pp, 1.0 * layout.micro_batches});
  double share = 0;
  // TODO 07.12: Compute the share of the time of a step in which a stage waits.
  //   With p = layout.pp stages and M = layout.micro_batches, a step takes as long as M + p - 1 micro-batches, and a
  //   stage works on M of them (chapter 04). Divide by the whole time, not by the ideal time of M micro-batches.
  share = (layout.pp - 1.0) / (layout.micro_batches + layout.pp - 1);
  // END TODO 07.12
  probe("07.12", "bubble", std::vector<double>{share});
  return share;
}

// Returns the slowest link of a group of `size` ranks that are `stride` apart. Consecutive ranks fill the nodes, so a
// group stays within a node if the block of ranks that it is part of does.
inline const Link& link_of_group(const Cluster& cluster, int stride, int size) {
  const int block = stride * size;
  const bool within = cluster.gpus <= cluster.gpus_per_node || cluster.gpus_per_node % block == 0;
  return size == 1 || within ? cluster.node : cluster.network;
}

// The same, except that a gpt group with several ranks on each of its nodes uses the network cards of all of them, with
// one ring per card, as NCCL does. The plan of an MLP counts one card per group.
inline Link group_link(const ModelShape& model, const Cluster& cluster, int stride, int size) {
  Link link = link_of_group(cluster, stride, size);
  if (model.gpt && &link_of_group(cluster, stride, size) == &cluster.network) {
    const int on_node = std::clamp(cluster.gpus_per_node / stride, 1, size);
    link.bandwidth = std::min(cluster.node.bandwidth, on_node * cluster.network.bandwidth);
  }
  return link;
}

// Returns the time of `calls` ring collectives of `whole` bytes in all, in which each rank sends `sent` bytes. In each
// round a rank sends 1/ranks of the call's bytes and waits for the latency once (chapter 00).
inline double ring_seconds(const Link& link, int ranks, double calls, double whole, double sent) {
  if (ranks == 1 || whole == 0) return 0;
  const double rounds = calls * sent / (whole / ranks);
  return rounds * link.latency + sent / link.bandwidth;
}

// Returns the seconds per step in which a stage computes.
inline Passes stage_passes(const ModelShape& model, const Cluster& cluster, const Layout& layout,
                           const StageShape& part, int first, int last) {
  const double rows = replica_rows(model, layout);
  // A weight is multiplied and added once in the forward pass and twice in the backward pass: for its own gradient, and
  // for that of the layer's input.
  if (!model.gpt) return {2 * part.weights * rows / cluster.flops, 4 * part.weights * rows / cluster.flops};
  const Passes one = gpt_passes(model, cluster, layout, rows / layout.micro_batches, first, last);
  return {layout.micro_batches * one.forward, layout.micro_batches * one.backward};
}

// Returns the time of a message to the next stage. If the tensor ranks send only a share each, they gather it on
// arrival, unless they continue with their share (Narayanan et al., 2021, section 4.1).
inline double transfer_seconds(const ModelShape& model, const Cluster& cluster, const Layout& layout,
                               const StageShape& part) {
  if (layout.pp == 1) return 0;
  const Link link = group_link(model, cluster, layout.tp * layout.data(), layout.pp);
  const double message =
      model.bytes() * replica_rows(model, layout) / layout.micro_batches * std::max(part.in, part.out);
  const double gathered = layout.scatter && !layout.sequence_parallel ? (layout.tp - 1) * message : 0;
  return link.latency + message / link.bandwidth +
         ring_seconds(cluster.node, layout.tp, 1, layout.tp * message, gathered);
}

// Adds the time of gathering parameters and reducing gradients, with one collective per unit. Gradients that are kept
// whole are reduced once, behind the backward pass of the last micro-batch; other gradients are reduced behind every
// backward pass. Parameters are gathered when they are needed.
inline void add_data_seconds(StageTimes& times, const ModelShape& model, const Cluster& cluster, const Layout& layout,
                             const StageShape& part, const Traffic& sent) {
  const int ranks = layout.sharing(), copies = layout.data() / ranks;
  const int gathers = layout.zero == 0 ? 0 : layout.zero == 3 ? 2 * layout.micro_batches : 1;
  double all = 0;
  // Adds the time for one kind of parameters. The `size` ranks that share them are `stride` apart; each sends `bytes`.
  const auto add = [&](double parameters, int units, int stride, int size, double bytes) {
    const Link link = group_link(model, cluster, stride, size);
    const double whole = model.bytes() * parameters;
    all += ring_seconds(link, size, units, whole, bytes);
    times.gather += gathers * ring_seconds(link, size, units, whole, whole * (size - 1) / size);
  };
  add(part.parameters, part.units, layout.tp, ranks, sent.data);
  add(part.of_experts, part.blocks, layout.tp * layout.ep, ranks / layout.ep, sent.replicas);
  const double shard = model.bytes() * (part.parameters + layout.ep * part.of_experts) / ranks;
  const double averaging =
      ring_seconds(group_link(model, cluster, layout.tp * ranks, copies), copies, part.units, shard, sent.copies);
  times.reduce = all - times.gather + averaging;
  if (layout.zero <= 1) times.backward /= layout.micro_batches;
  if (layout.zero == 3 && layout.prefetch) {  // all communication hides behind all computation
    times.reduce = all + averaging;
    times.gather = 0;
    times.backward = times.busy;
  }
}

inline StageTimes stage_times(const ModelShape& model, const Cluster& cluster, const Layout& layout,
                              const StageShape& part, const Traffic& sent, const Passes& passes) {
  const double whole = model.bytes() * replica_rows(model, layout) * part.summed;
  const double summing = ring_seconds(group_link(model, cluster, 1, layout.tp), layout.tp,
                                      part.sums * layout.micro_batches, whole, sent.tensor);
  StageTimes times;
  const double ring = context_seconds(model, cluster, group_link(model, cluster, layout.tp, layout.cp), layout,
                                      replica_rows(model, layout) / layout.micro_batches, part.blocks);
  const Passes rows =
      exchange_passes(model, cluster, layout, replica_rows(model, layout) / layout.micro_batches, part.blocks);
  times.busy = passes.forward + passes.backward + summing + ring + rows.forward + rows.backward;
  // The backward pass has half of the all-reduces, with recomputation two thirds.
  times.backward = passes.backward + summing * (layout.recompute ? 2.0 / 3 : 0.5) + rows.backward;
  times.transfer = transfer_seconds(model, cluster, layout, part);
  add_data_seconds(times, model, cluster, layout, part, sent);
  return times;
}

// Returns the time of a step if all stages were like this one.
inline double step_seconds(const Layout& layout, double bubble, const StageTimes& t) {
  probe("07.M", "given to step_seconds: micro-batches, bubble", std::array{1.0 * layout.micro_batches, bubble});
  probe("07.M", "given to step_seconds: times of the stage", std::array{t.busy, t.transfer, t.reduce, t.gather});
  double seconds = 0;
  // WRITE 07.M: Set `seconds` to the time of a step.
  //   All times in `t` are per step, except t.transfer, which is that of one message. During the share `bubble` of the
  //   pipeline's time, the stage idles; the rest of that time is t.busy. A step is as long as M + p - 1 micro-batches
  //   (chapter 04); for each of these, the stage waits for two messages. With layout.pp == 1, there are no messages.
  //   The stage also waits for t.gather. t.reduce hides behind t.backward, as far as it fits.
  // In 1F1B, a stage may have to wait for the activation and for the gradient of each micro-batch (chapter 04).
  const double messages = layout.pp == 1 ? 0 : 2 * t.transfer * (layout.micro_batches + layout.pp - 1);
  // TODO 07.13: Compute the time of a step.
  //   t.busy is all of the pipeline's time except the share `bubble`. Add `messages` and t.gather, because the stage
  //   waits for them. t.reduce hides behind t.backward: add only the time by which t.reduce is longer.
  seconds = t.busy / (1 - bubble) + messages + t.gather + std::max(0.0, t.reduce - t.backward);
  // END TODO 07.13
  // END WRITE 07.M
  probe("07.13", "seconds a step", std::vector<double>{seconds});
  return seconds;
}

// ---- the whole plan ------------------------------------------------------------------------------------------------

// Returns why the model cannot be cut over stages and tensor groups like this, in one line; "" if it can.
inline std::string uncuttable_because(const ModelShape& model, const Layout& layout) {
  if (model.gpt) return gpt_uncuttable_because(*model.gpt, layout);
  if (model.widths.empty()) {
    const std::string one = "1 with --parameters, which says nothing of layers";
    return layout.pp > 1   ? expected_prefix("pp", layout.pp) + one
           : layout.tp > 1 ? expected_prefix("tp", layout.tp) + one
                           : "";
  }
  if (layout.tp > 1 && model.layers() % 2 != 0) {
    return expected_prefix("tp", layout.tp) + "1 for " + std::to_string(model.layers()) +
           " layers, which do not make pairs";
  }
  const int parts = model.layers() / (layout.tp > 1 ? 2 : 1);
  if (layout.pp > parts) {
    return expected_prefix("pp", layout.pp) + "at most " + std::to_string(parts) + ", the model's " +
           (layout.tp > 1 ? "pairs of layers" : "layers");
  }
  for (int i = 1; layout.tp > 1 && i < model.layers(); i += 2) {
    if (model.widths[i] % layout.tp == 0) continue;
    return expected_prefix("tp", layout.tp) + "a divisor of the width " + std::to_string(model.widths[i]) +
           " inside a pair";
  }
  return "";
}

// Returns why the model cannot be trained on this mesh, in one line; "" if it can.
inline std::string infeasible_because(const ModelShape& model, const Cluster& cluster, const Layout& layout) {
  if (layout.gpus() != cluster.gpus) {
    return std::string(layout.cp > 1 ? "--dp, --cp, --pp and --tp make " : "--dp, --pp and --tp make ") +
           std::to_string(layout.gpus()) + " GPUs; expected --gpus, " + std::to_string(cluster.gpus);
  }
  const bool one_node = cluster.gpus <= cluster.gpus_per_node;
  if (!one_node && cluster.gpus_per_node % layout.tp != 0) {
    return expected_prefix("tp", layout.tp) + "a divisor of the " + std::to_string(cluster.gpus_per_node) +
           " GPUs of a node, so that tensor groups stay within one";
  }
  const std::string cut = uncuttable_because(model, layout);
  if (!cut.empty()) return cut;
  if (model.rows % layout.dp != 0) {
    return expected_prefix("global-batch", model.rows) + "a multiple of the " + std::to_string(layout.dp) + " replicas";
  }
  const int rows = model.rows / layout.dp;
  if (rows % layout.micro_batches != 0) {
    return expected_prefix("micro-batches", layout.micro_batches) + "a divisor of the " + std::to_string(rows) +
           " rows of a replica";
  }
  if (layout.hybrid > 0 && (layout.zero == 0 || layout.data() % layout.hybrid != 0)) {
    return expected_prefix("hybrid", layout.hybrid) + "a divisor of the " + std::to_string(layout.data()) +
           " replicas, with --zero";
  }
  if (layout.zero >= 2 && layout.pp > 1) {
    return expected_prefix("zero", layout.zero) + "0 or 1 with --pp, or every micro-batch would reduce its gradients";
  }
  return "";
}

// Adds tokens and operations per second to a plan whose time per step is set.
inline void add_rates(Plan& plan, const ModelShape& model, const Cluster& cluster) {
  const double tokens = static_cast<double>(model.rows) * model.gpt->context;
  const double gpu_seconds = plan.seconds * cluster.gpus;
  plan.tokens_per_second = tokens / plan.seconds;
  plan.flops = gpt_operations(*model.gpt, tokens, plan.layout.recompute) / gpu_seconds;
  plan.mfu = gpt_operations(*model.gpt, tokens, false) / gpu_seconds / cluster.peak;
}

// Plans a mesh. Requires that infeasible_because() returns "" for it.
inline Plan make_plan(const ModelShape& model, const Cluster& cluster, const Layout& layout) {
  Plan plan;
  plan.layout = layout;
  // WRITE 07.N: Append a StagePlan to plan.stages for each stage, and set plan.bubble, plan.seconds and plan.fits.
  //   stage_bounds() and make_part() say which part of the model a stage has. model_states(), add_activations() and
  //   add_gathered() fill a stage's `memory`, stage_traffic() is `sent`, and stage_times() is `times`; it needs
  //   stage_passes(model, cluster, layout, part, first, last). step_seconds() is the time of a step if all stages were
  //   like one of them. model_states() takes a layout with only those replicas that share a model, sharing_group();
  //   bubble() and step_seconds() take one that counts micro-batches chunk by chunk, chunk_by_chunk(). A plan fits if
  //   the fullest of its GPUs needs no more than cluster.memory.
  const std::vector<int> bounds = stage_bounds(model, layout);
  for (int s = 0; s < layout.pp; ++s) {
    const StageShape part = make_part(model, layout, bounds[s], bounds[s + 1]);
    StagePlan stage;
    stage.memory = model_states(model, sharing_group(layout), part.parameters);
    add_activations(stage.memory, model, layout, part, s);
    add_gathered(stage.memory, model, layout, part);
    stage.sent = stage_traffic(model, layout, part, s);
    const Passes passes = stage_passes(model, cluster, layout, part, bounds[s], bounds[s + 1]);
    stage.times = stage_times(model, cluster, layout, part, stage.sent, passes);
    plan.stages.push_back(stage);
  }
  plan.bubble = bubble(chunk_by_chunk(layout));
  // All stages wait for the slowest one.
  for (const StagePlan& stage : plan.stages) {
    plan.seconds = std::max(plan.seconds, step_seconds(chunk_by_chunk(layout), plan.bubble, stage.times));
  }
  plan.fits = plan.fullest().memory.total() <= cluster.memory;
  // END WRITE 07.N
  probe("07.N", "bubble, whether it fits", std::array{plan.bubble, plan.fits ? 1.0 : 0.0});
  probe("07.N", "seconds a step, of the slowest stage", std::array{plan.seconds});
  for (const StagePlan& stage : plan.stages)
    probe("07.N", "bytes held, bytes sent", std::array{stage.memory.total(), stage.sent.data, stage.sent.pipeline});
  if (model.gpt) add_rates(plan, model, cluster);
  return plan;
}

}  // namespace workshop
