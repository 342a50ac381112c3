// SPDX-License-Identifier: Apache-2.0
// A model as ZeRO's stages keep it on a rank. Of what there is for every parameter, a rank holds all (whole) or just
// its own shard of every unit (1/N):
//
//             optimizer state   gradients   parameters
//   stage 0   whole             whole       whole         data parallelism, as in chapter 02
//   stage 1   1/N               whole       whole
//   stage 2   1/N               1/N         whole
//   stage 3   1/N               1/N         1/N
#pragma once

#include "01_single_gpu/clip.h"
#include "01_single_gpu/optimizer.h"
#include "common/group.h"
#include "common/training.h"
#include "units.h"

namespace workshop {

// The values of a unit that this rank updates.
inline Extent own_part(const Sharding& sharding, int rank) {
  Extent part{0, 0};
  // TODO 06.3: Which part of a unit does rank `rank` update, and hence keep optimizer state for?
  //   The shards lie in the order of the ranks. Set part.offset and part.count from sharding.shard.
  part = {rank * sharding.shard, sharding.shard};
  // END TODO 06.3
  probe("06.3", "part of the unit: offset, count", std::vector<int>{part.offset, part.count});
  return part;
}

// Moments of a step. At those that are true a unit's values are gathered from the ranks.
struct Gathers {
  bool before_forward, before_backward, after_update;
};

inline Gathers gathers_at(int stage) {
  Gathers gathers{false, false, false};
  // TODO 06.4: At which moments does this stage have to gather a unit's values?
  //   Where a rank keeps all values, whose are out of date, and since when? Where it keeps its own alone, all units use
  //   one buffer in turns. Set the three members of `gathers`.
  gathers = {stage == 3, stage == 3, stage == 1 || stage == 2};
  // END TODO 06.4
  probe("06.4", "gathers before the forward pass, before the backward pass, after the update",
        std::vector<int>{gathers.before_forward, gathers.before_backward, gathers.after_update});
  return gathers;
}

// One float for every parameter: its value, or its gradient. Whole, the units lie one after the other; sharded, this
// rank's parts of them do, and one buffer has room for all values of one unit at a time.
class FlatArray {
 public:
  struct Place {
    Real* full;  // all of the unit, [sharding.padded()]
    Real* part;  // this rank's part, [sharding.shard]; where the array is whole, it lies within `full`
  };

  FlatArray(const std::deque<Unit>& units, const std::vector<Extent>& parts, bool sharded, Memory kind) {
    int held = 0, largest = 0;
    for (const Unit& unit : units) {
      held += sharded ? unit.sharding.shard : unit.sharding.padded();
      largest = std::max(largest, unit.sharding.padded());
    }
    held_ = DeviceBuffer<Real>(held, kind);
    buffer_ = DeviceBuffer<Real>(sharded ? largest : 0, Memory::buckets);
    Real* next = held_.data();
    for (std::size_t u = 0; u < units.size(); ++u) {
      places_.push_back(sharded ? Place{buffer_.data(), next} : Place{next, next + parts[u].offset});
      next += sharded ? units[u].sharding.shard : units[u].sharding.padded();
    }
  }

  const Place& operator[](int unit) const { return places_[unit]; }

 private:
  DeviceBuffer<Real> held_, buffer_;
  std::vector<Place> places_;
};

// All work goes to one stream, so a buffer may be used again as soon as what reads it is enqueued.
class ZeroModel {
 public:
  ZeroModel(const Network& network, const Options& options, int stage, const Group& ranks, cudaStream_t stream)
      : stage_(stage),
        shard_(stage == 0 ? 0 : ranks.rank()),
        gathers_(gathers_at(stage)),
        ranks_(ranks),
        comm_(ranks.comm()),
        stream_(stream),
        // At stage 0 one shard is all of the unit.
        units_(make_units(network, /*layers=*/1, options.batch_size, stage == 0 ? 1 : ranks.size(), stream)),
        parts_(own_parts(units_, shard_)),
        values_(units_, parts_, stage >= 3, Memory::parameters),
        grads_(units_, parts_, stage >= 2, Memory::gradients),
        clipping_(options, largest(parts_), stream) {
    for (int u = 0; u < units(); ++u) {
      gradients_.held.emplace_back(grads_[u].part, parts_[u].count);
      units_[u].model.bind(values_[u].full, grads_[u].full);
      optimizers_.emplace_back(options, parts_[u].count, stream);
    }
    gradients_.counted = gradients_.held;
  }

  // Every rank draws the same values and keeps its part of them. Waits for the stream.
  void initialize(std::uint64_t seed) {
    for (int u = 0; u < units(); ++u) {
      const std::vector<Real> part = initial_shard(units_[u], shard_, seed);
      const std::size_t bytes = part.size() * sizeof(Real);
      CUDA_CHECK(cudaMemcpyAsync(values_[u].part, part.data(), bytes, cudaMemcpyHostToDevice, stream_));
      CUDA_CHECK(cudaStreamSynchronize(stream_));
      probe("06.2", {name(u), ": initial shard"}, values_[u].part, {units_[u].sharding.shard}, stream_);
    }
  }

  void forward(const Batch& batch) {
    const void* x = batch.x;
    for (int u = 0; u < units(); ++u) {
      if (gathers_.before_forward) gather_values(u);
      x = units_[u].model.forward(batch.with_x(x), units_[u].activations);
    }
  }

  // Adds this batch's share of the mean over `samples_of_step` samples to *loss and prepares the backward pass.
  void loss(const void* y, int samples_of_step, float* loss) {
    units_.back().model.loss(units_.back().activations, y, samples_of_step, loss);
  }

  // The gradients of one batch, the `first` or the `last` of a step or neither. After the last, those of this rank's
  // parts are the mean over the ranks of the sum over the batches.
  void backward(bool first, bool last) {
    for (int u = units() - 1; u >= 0; --u) {
      if (gathers_.before_backward) gather_values(u);
      // Whole gradients add up on the rank and are reduced once a step. Sharded ones have to be reduced at once: the
      // next unit's take their place.
      const bool whole = stage_ < 2;
      Real* dx = u > 0 ? units_[u - 1].model.output_gradient() : nullptr;
      units_[u].model.backward(units_[u].activations, /*accumulate=*/whole && !first, {}, dx);
      if (last || !whole) reduce_gradients(u, /*add=*/!whole && !first);
    }
  }

  // Clips by the norm of the whole gradient, of which each rank has its parts; `norm` is LossLog::gradient_norm().
  void update(float* norm, double lr_factor) {
    if (clipping_.enabled()) clipping_.clip(gradients_, stage_ == 0 ? alone_ : ranks_, norm);
    for (int u = 0; u < units(); ++u) {
      optimizers_[u].step(values_[u].part, grads_[u].part, lr_factor);
      if (gathers_.after_update) gather_values(u);
    }
  }

  // Has checkpoints keep this rank's part of every unit and of the optimizer's state, loads what is to be resumed, and
  // gathers the values for the first step.
  void resume(Training& training) {
    for (int u = 0; u < units(); ++u) {
      const auto [first, count] = parts_[u];
      float* weights = optimizers_[u].weights(values_[u].part);
      const auto parts = range_of(parts_of(units_[u].model, nullptr), first, first + count, weights);
      training.add_all(parts, weights, optimizers_[u].state(values_[u].part));
    }
    training.resume();
    for (int u = 0; u < units() && gathers_.after_update; ++u) gather_values(u);
  }

  // Records the full parameters. Collective at stage 3.
  void record(int replica) {
    for (int u = 0; u < units(); ++u) {
      if (gathers_.before_forward) gather_values(u);
      record_parameters(units_[u].model, replica, stream_);
    }
  }

 private:
  static std::vector<Extent> own_parts(const std::deque<Unit>& units, int rank) {
    std::vector<Extent> parts;
    for (const Unit& unit : units) parts.push_back(own_part(unit.sharding, rank));
    return parts;
  }

  static int largest(const std::vector<Extent>& parts) {
    int largest = 0;
    for (const Extent& part : parts) largest = std::max(largest, part.count);
    return largest;
  }

  int units() const { return static_cast<int>(units_.size()); }
  static std::string name(int u) { return "unit " + std::to_string(u); }

  // Every rank gets all values of unit u, each rank giving its part.
  void gather_values(int u) {
    const auto [full, part] = values_[u];
    const int count = units_[u].sharding.shard;
    // TODO 06.5: Gather the parts of all ranks, `count` values each, in `full`.
    //   One NCCL call over comm_, on stream_. At stages 1 and 2 it works in place: where in `full` does NCCL want
    //   `part` to be then (docs/calls.md)?
    NCCL_CHECK(ncclAllGather(part, full, count, kReal, comm_, stream_));
    // END TODO 06.5
    probe("06.5", {name(u), ": values, gathered"}, full, {units_[u].sharding.padded()}, stream_);
  }

  // Averages the gradients of unit u over the ranks: at stage 0 all of them, else those of each rank's part on that
  // rank. `add`: to those of the step's earlier batches, which the part has already.
  void reduce_gradients(int u, bool add) {
    const auto [full, part] = grads_[u];
    const Sharding& sharding = units_[u].sharding;
    if (stage_ == 0) {
      NCCL_CHECK(ncclAllReduce(full, full, sharding.count, kReal, ncclAvg, comm_, stream_));
      return;
    }
    // The padding is sent like the rest, but no backward pass writes it.
    const std::size_t padding = sharding.padded() - sharding.count;
    CUDA_CHECK(cudaMemsetAsync(full + sharding.count, 0, padding * sizeof(Real), stream_));
    Real* received = add ? full + parts_[u].offset : part;
    // TODO 06.6: Average the unit's gradients, `full`, over the ranks: those of each rank's part into its `received`.
    //   One NCCL call over comm_, on stream_: the first half of an all-reduce. Its count is what a rank receives,
    //   sharding.shard.
    NCCL_CHECK(ncclReduceScatter(full, received, sharding.shard, kReal, ncclAvg, comm_, stream_));
    // END TODO 06.6
    probe("06.6", {name(u), ": gradients, averaged"}, received, {sharding.shard}, stream_);
    if (!add) return;
    // TODO 06.7: Add the gradients of this batch, `received`, to those of the step's earlier ones, `part`.
    //   launch(kernel, elements, stream_, the kernel's arguments...) with chapter 01's add_scaled(y, x, factor, n),
    //   which does y += factor · x for n numbers.
    launch(add_scaled, sharding.shard, stream_, part, received, 1.0f, sharding.shard);
    // END TODO 06.7
    probe("06.7", {name(u), ": gradients, accumulated"}, part, {sharding.shard}, stream_);
  }

  int stage_, shard_;  // shard_: the number of the shards that this rank holds
  Gathers gathers_;
  const Group& ranks_;
  ncclComm_t comm_;    // theirs
  const Group alone_;  // at stage 0 every rank has the whole gradient
  cudaStream_t stream_;
  std::deque<Unit> units_;
  std::vector<Extent> parts_;  // of each unit, this rank's
  FlatArray values_, grads_;
  std::deque<Optimizer> optimizers_;  // of each unit, for this rank's part
  Clipping clipping_;
  GradientParts gradients_;  // this rank's
};

}  // namespace workshop
