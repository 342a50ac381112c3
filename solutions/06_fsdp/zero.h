// SPDX-License-Identifier: Apache-2.0
// A model that is sharded as in ZeRO's stages (Rajbhandari et al., SC 2020). A rank holds each kind of array for all
// parameters (whole), or only for its own shard of every unit (1/P):
//
//             optimizer state   gradients   parameters
//   stage 0   whole             whole       whole         data parallelism, as in chapter 02
//   stage 1   1/P               whole       whole
//   stage 2   1/P               1/P         whole
//   stage 3   1/P               1/P         1/P
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/optimizer.h"
#include "06_fsdp/units.h"
#include "common/nccl/group.h"
#include "common/training/training.h"
#include "model/clip.h"
#include "model/elementwise.h"

namespace workshop {

// ---- what is gathered when -----------------------------------------------------------------------------------------

// The moments of a step at which the values of a unit are gathered from the ranks.
struct Gathers {
  bool before_forward, before_backward, after_update;
};

inline Gathers gathers_at(int stage) {
  Gathers gathers{false, false, false};
  // TODO 06.2: At which moments does this stage have to gather a unit's values?
  //   Set the three members of `gathers`. If a rank keeps all values, which of them become out of date, and when? If a
  //   rank keeps only its own shard, all units share one buffer for whole values.
  gathers = {stage == 3, stage == 3, stage == 1 || stage == 2};
  // END TODO 06.2
  probe("06.2", "gathers before the forward pass, before the backward pass, after the update",
        std::vector<int>{gathers.before_forward, gathers.before_backward, gathers.after_update});
  return gathers;
}

// ---- one array -----------------------------------------------------------------------------------------------------

// Updates one flat array that all ranks train. Takes the all-reduce of chapter 02 apart into its two halves; each rank
// updates its shard between them. Chapter 07 uses it for a whole chunk of the model.
class ShardedUpdate {
 public:
  // `sharding` divides the array among `ranks`, which must outlive this object. Probes use `name` for the array.
  ShardedUpdate(const Options& options, const Sharding& sharding, const Group& ranks, std::string name,
                cudaStream_t stream)
      : sharding_(sharding),
        ranks_(ranks),
        name_(std::move(name)),
        stream_(stream),
        optimizer_(options, sharding.shard, stream) {}

  // First: averages the gradients, `full` [padded() values], over the ranks. This rank gets its shard of the averages
  // in `shard` [sharding.shard values].
  void scatter(Real* full, Real* shard) const {
    // WRITE 06.C: Average `full` over the ranks; write this rank's shard of the averages to `shard`, and nothing else.
    //   One NCCL call over ranks_.comm(), on stream_. sharding_ says how `full` is cut. The numbers are of type kReal.
    //   Nobody needs `full` afterwards. `shard` may lie within it, at sharding_.offset, or elsewhere.
    const int count = sharding_.shard;
    // TODO 06.6: Average the gradients, `full`, over the ranks, and write this rank's shard of the averages to `shard`.
    //   Use one NCCL call over ranks_.comm(), on stream_: the first half of an all-reduce. Its count is the number of
    //   values that a rank receives, `count`. `shard` may lie within `full`: docs/calls.md says where it must be then.
    NCCL_CHECK(ncclReduceScatter(full, shard, count, kReal, ncclAvg, ranks_.comm(), stream_));
    // END TODO 06.6
    // END WRITE 06.C
    probe("06.6", {name_, ": shard of the gradients, averaged"}, shard, {sharding_.shard}, stream_);
  }

  // Second: updates this rank's shard with `lr_factor` times the learning rate.
  void step(Real* values, const Real* grads, double lr_factor) { optimizer_.step(values, grads, lr_factor); }

  // Third: gathers every rank's `shard` [sharding.shard values] into `full` [padded() values], on all ranks.
  void gather(const Real* shard, Real* full) const {
    // WRITE 06.D: Give every rank the shards of all ranks in `full`, in the order of the ranks.
    //   One NCCL call over ranks_.comm(), on stream_. This rank's values are at `shard`. `shard` may lie within `full`,
    //   at sharding_.offset. Or it may lie elsewhere: then several arrays share `full`, which still has the values of
    //   another array.
    const int count = sharding_.shard;
    // TODO 06.3: Gather the shards of all ranks, `count` values each, in `full`.
    //   Use one NCCL call over ranks_.comm(), on stream_: the second half of an all-reduce. It works in place on a rank
    //   that keeps all values, because `shard` then lies within `full`.
    NCCL_CHECK(ncclAllGather(shard, full, count, kReal, ranks_.comm(), stream_));
    // END TODO 06.3
    // END WRITE 06.D
    probe("06.3", {name_, ": values, gathered"}, full, {sharding_.count}, stream_);
  }

  Optimizer& optimizer() { return optimizer_; }

 private:
  Sharding sharding_;
  const Group& ranks_;
  std::string name_;
  cudaStream_t stream_;
  Optimizer optimizer_;  // of this rank's shard
};

// ---- the model -----------------------------------------------------------------------------------------------------

// One number per parameter: its value, or its gradient. A whole array holds the units one after the other. A sharded
// array holds this rank's shards of the units one after the other, and has a buffer for one whole unit at a time.
class FlatArray {
 public:
  struct Place {
    Real* full;   // all of the unit, [sharding.padded()]
    Real* shard;  // this rank's shard, [sharding.shard]; within `full` if the array is whole
  };

  FlatArray(const std::deque<Unit>& units, bool sharded, Memory kind) {
    int held = 0, largest = 0;
    for (const Unit& unit : units) {
      held += sharded ? unit.sharding.shard : unit.sharding.padded();
      largest = std::max(largest, unit.sharding.padded());
    }
    held_ = DeviceBuffer<Real>(held, kind);
    buffer_ = DeviceBuffer<Real>(sharded ? largest : 0, Memory::buckets);
    Real* next = held_.data();
    for (const Unit& unit : units) {
      places_.push_back(sharded ? Place{buffer_.data(), next} : Place{next, next + unit.sharding.offset});
      next += sharded ? unit.sharding.shard : unit.sharding.padded();
    }
  }

  const Place& operator[](int unit) const { return places_[unit]; }

 private:
  DeviceBuffer<Real> held_, buffer_;
  std::vector<Place> places_;
};

// A model at one of ZeRO's stages. All work goes to one stream, so a buffer may be reused as soon as the work that
// reads it is enqueued.
class ZeroModel {
 public:
  ZeroModel(const Network& network, const Options& options, int stage, const Group& ranks, cudaStream_t stream)
      : stage_(stage),
        ranks_(ranks),
        stream_(stream),
        // At stage 0 a unit has one shard, which is the whole unit.
        units_(make_units(network, UnitSize{.layers = 1}, options.batch_size, stage == 0 ? 1 : ranks.size(),
                          stage == 0 ? 0 : ranks.rank(), stream)),
        gathers_(gathers_at(stage)),
        values_(units_, stage >= 3, Memory::parameters),
        grads_(units_, stage >= 2, Memory::gradients),
        gradients_(shards_of(grads_, units_)),
        clipping_(options, gradients_.largest(), stream) {
    for (int u = 0; u < units(); ++u) {
      units_[u].model.bind(values_[u].full, grads_[u].full);
      updates_.emplace_back(options, units_[u].sharding, ranks_, unit_name(u), stream);
    }
  }

  // Runs the forward passes of one batch, unit after unit. The last unit keeps the output for loss().
  void forward(const Batch& batch) {
    // WRITE 06.E: Run the forward pass of every unit, and gather the values of each unit when this stage needs that.
    //   gathers_ says what this stage gathers, and gather(u) gathers unit u. unit.model.forward(batch,
    //   unit.activations) reads its input from the batch and returns its output; batch.with_x(x) is the batch with the
    //   input x. The first unit reads `batch` itself. At stage 3, all units share one buffer for whole values.
    const void* x = batch.x;
    for (int u = 0; u < units(); ++u) {
      Unit& unit = units_[u];
      const Real* output = nullptr;
      // TODO 06.4: Run the forward pass of unit u, and gather its values first if necessary.
      //   gather(u) gathers the values; gathers_ says whether this stage needs that. unit.model.forward(batch,
      //   activations) takes its input from the batch. So pass batch.with_x(x), which is this batch with the input x,
      //   the output of the unit below. Store the returned pointer in `output`.
      if (gathers_.before_forward) gather(u);
      output = unit.model.forward(batch.with_x(x), unit.activations);
      // END TODO 06.4
      x = output;
    }
    // END WRITE 06.E
    probe("06.4", "gathers so far", std::array{gathered_});
    for (int u = 0; u < units(); ++u) {
      const Unit& unit = units_[u];
      probe("06.4", {unit_name(u), ": output"}, unit.activations.output, {batch.samples * unit.model.output_size()},
            stream_);
    }
  }

  // Adds this batch's share of the mean loss over `samples_of_step` samples to *loss, and prepares the backward pass.
  void loss(const void* y, int samples_of_step, float* loss) {
    units_.back().model.loss(units_.back().activations, y, samples_of_step, loss);
  }

  // Runs the backward passes of one batch. `first` and `last` say whether it is the first or the last batch of the
  // step. After the last batch, the gradients of this rank's shards are the sum over the batches, averaged over the
  // ranks.
  void backward(bool first, bool last) {
    // WRITE 06.F: Run the backward pass of every unit, and reduce its gradients: once per step or after every batch?
    //   unit.model.backward(unit.activations, accumulate, {}, dx) writes the gradients of the unit or, with
    //   `accumulate`, adds to them; it writes the gradient of its input to dx, unless that is null. It starts from the
    //   gradient of its output, at unit.model.output_gradient(). reduce(u, add) averages the unit's gradients over the
    //   ranks; with `add`, it adds the averages to what is in the shard. Up to stage 1, a rank keeps the gradients of
    //   all units from batch to batch, and must reduce them once per step. From stage 2 on, all units share one buffer
    //   for gradients. gather(u) gathers values; gathers_ says when.
    const bool whole = stage_ < 2;  // the rank keeps the whole gradients of a unit from batch to batch
    for (int u = units() - 1; u >= 0; --u) {
      Unit& unit = units_[u];
      Real* dx = u > 0 ? units_[u - 1].model.output_gradient() : nullptr;
      // TODO 06.5: Run the backward pass of unit u, and reduce its gradients at the right time.
      //   unit.model.backward(unit.activations, accumulate, {}, dx) writes the gradients of the unit or, with
      //   accumulate, adds to them. reduce(u, add) averages them over the ranks; with `add`, it adds the averages to
      //   those of the step's earlier batches. A rank that keeps `whole` gradients adds up those of its batches and
      //   reduces the sum once per step. Otherwise all units share one buffer for gradients: how long does it hold
      //   those of a unit? gather(u) gathers the values; gathers_ says, for all units alike, whether this stage needs
      //   that in each backward pass.
      if (gathers_.before_backward) gather(u);
      unit.model.backward(unit.activations, /*accumulate=*/whole && !first, {}, dx);
      if (last || !whole) reduce(u, /*add=*/!whole && !first);
      // END TODO 06.5
    }
    // END WRITE 06.F
    probe("06.5", "gathers so far", std::array{gathered_});
    for (int u = units() - 1; u >= 0; --u) {
      probe("06.5", {unit_name(u), ": shard of the gradients"}, grads_[u].shard, {units_[u].sharding.unpadded},
            stream_);
    }
  }

  // Updates this rank's shards, after clipping by the norm of the whole gradient if --clip-norm asks for it.
  void update(Training& training) {
    // WRITE 06.G: Clip the gradients if asked for, update this rank's shards, and gather what this stage must.
    //   If clipping_.enabled(), call clipping_.clip(gradients_, group, training.losses().gradient_norm()), where
    //   `group` is the Group whose ranks hold the parts of the gradient: at stage 0 alone_, else ranks_. Then
    //   updates_[u].step(values, grads, training.lr_factor()) updates a shard; values_[u].shard and grads_[u].shard are
    //   this rank's. Go from the first unit to the last. gathers_ and gather(u) are as in forward().
    if (clipping_.enabled()) {
      clipping_.clip(gradients_, stage_ == 0 ? alone_ : ranks_, training.losses().gradient_norm());
    }
    for (int u = 0; u < units(); ++u) {
      updates_[u].step(values_[u].shard, grads_[u].shard, training.lr_factor());
      if (gathers_.after_update) gather(u);
    }
    // END WRITE 06.G
    for (int u = 0; u < units(); ++u) {
      probe("06.G", {unit_name(u), ": shard of the values, updated"}, values_[u].shard, {units_[u].sharding.unpadded},
            stream_);
    }
  }

  // Initializes this rank's shards. Every rank draws the same values and keeps its shards. Waits for the stream.
  void initialize(std::uint64_t seed) {
    for (int u = 0; u < units(); ++u) initialize_shard(units_[u], seed, values_[u].shard, stream_);
  }

  // Registers this rank's shards and their optimizer state for checkpoints, resumes from one if the options say so, and
  // gathers the values for the first step.
  void resume(Training& training) {
    for (int u = 0; u < units(); ++u) {
      Optimizer& optimizer = updates_[u].optimizer();
      float* weights = optimizer.weights(values_[u].shard);
      training.add_all(parts_of_shard(units_[u].model, units_[u].sharding, weights), weights,
                       optimizer.state(values_[u].shard));
    }
    training.resume();
    for (int u = 0; u < units() && gathers_.after_update; ++u) gather(u);
  }

  // Records the full parameters. Collective at stage 3.
  void record(int replica) {
    for (int u = 0; u < units(); ++u) {
      if (gathers_.before_forward) gather(u);
      record_parameters(units_[u].model, replica, stream_);
    }
  }

 private:
  static GradientParts shards_of(const FlatArray& grads, const std::deque<Unit>& units) {
    GradientParts shards;
    for (std::size_t u = 0; u < units.size(); ++u) shards.held.emplace_back(grads[u].shard, units[u].sharding.shard);
    shards.counted = shards.held;
    return shards;
  }

  int units() const { return static_cast<int>(units_.size()); }

  // Gathers all values of unit u on every rank. Each rank contributes its shard.
  void gather(int u) {
    probe("06.D", {"given to gather: shard of ", unit_name(u)}, values_[u].shard, {units_[u].sharding.unpadded},
          stream_);
    updates_[u].gather(values_[u].shard, values_[u].full);
    ++gathered_;
  }

  // Averages the gradients of unit u over the ranks and writes this rank's shard of the averages to `to`.
  void scatter(int u, Real* to) {
    probe("06.C", {"given to scatter: ", unit_name(u)}, grads_[u].full, {units_[u].sharding.padded()}, stream_);
    const Real *full = grads_[u].full, *own = full + units_[u].sharding.offset;
    const bool of_another = to >= full && to < full + units_[u].sharding.padded() && to != own;
    probe("06.C", "given to scatter: 1 if the result goes to another rank's place in the unit",
          std::array{int{of_another}});
    updates_[u].scatter(grads_[u].full, to);
  }

  // Averages the gradients of unit u over the ranks: at stage 0 all of them, else this rank's shard. With `add`, adds
  // the averages to those of the step's earlier batches, which are in the shard already.
  void reduce(int u, bool add) {
    const auto [full, shard] = grads_[u];
    const Sharding& sharding = units_[u].sharding;
    probe("06.5", {unit_name(u), ": gradients to be reduced"}, full, {sharding.count}, stream_);
    probe("06.H", "given to reduce: unit, add", std::array{u, static_cast<int>(add)});
    // WRITE 06.H: Average the gradients at `full` over the ranks, as the comment above says.
    //   At stage 0, average all of them over ranks_.comm() in place, in one NCCL call; nothing is ever added. At the
    //   other stages, scatter(u, to) averages them and writes this rank's shard to `to`, [sharding.shard], which may be
    //   `shard` or this rank's place in `full`. scatter() also sends the padding: the values of `full` from index
    //   sharding.count on, up to its length, sharding.padded(). No backward pass writes it; set it to 0.
    //   launch(add_scaled, n, stream_, y, x, 1.0f, n) computes y += 1.0f · x for n numbers.
    if (stage_ == 0) {
      NCCL_CHECK(ncclAllReduce(full, full, sharding.count, kReal, ncclAvg, ranks_.comm(), stream_));
    } else {
      const std::size_t padding = sharding.padded() - sharding.count;
      CUDA_CHECK(cudaMemsetAsync(full + sharding.count, 0, padding * sizeof(Real), stream_));
      Real* averaged = add ? full + sharding.offset : shard;  // `shard` has the earlier batches
      scatter(u, averaged);
      if (add) launch(add_scaled, sharding.shard, stream_, shard, averaged, 1.0f, sharding.shard);
    }
    // END WRITE 06.H
    probe("06.H", {unit_name(u), ": shard of the gradients, reduced"}, shard, {sharding.unpadded}, stream_);
  }

  int stage_;
  const Group& ranks_;
  const Group alone_;  // a group of one: at stage 0 every rank has the whole gradient
  cudaStream_t stream_;
  std::deque<Unit> units_;
  Gathers gathers_;
  FlatArray values_, grads_;
  GradientParts gradients_;  // this rank's shards
  Clipping clipping_;
  std::deque<ShardedUpdate> updates_;  // one per unit
  int gathered_ = 0;                   // number of calls of gather()
};

}  // namespace workshop
