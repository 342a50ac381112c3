// SPDX-License-Identifier: Apache-2.0
// Fully sharded data parallelism. A rank keeps a shard of every unit: of its parameters, its gradients, its optimizer
// state. A unit's parameters are gathered just before its forward or backward pass, and their buffer is used for
// another unit right after it; its gradients are reduced and scattered as soon as they are computed. Follows PyTorch's
// FSDP (Zhao et al., VLDB 2023).
//
// Two streams share the work: on the compute stream the units' passes, on the communication stream what they need and
// leave. Each stream is in order, so four waits between them are enough, TODOs 06.14, 06.15, 06.18 and 06.19.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/clip.h"
#include "01_single_gpu/optimizer.h"
#include "common/record.h"
#include "common/training.h"
#include "fsdp_options.h"
#include "passes.h"
#include "shard_groups.h"
#include "units.h"

namespace workshop {

// A model sharded over a shard group. All ranks make the same calls, and none waits for the device but initialize() and
// record().
class FullyShardedModel {
 public:
  FullyShardedModel(const Network& network, const Options& options, const FsdpOptions& fsdp, const ShardGroups& groups,
                    cudaStream_t compute)
      : fsdp_(fsdp),
        groups_(groups),
        compute_(compute),
        units_(make_units(network, fsdp.unit_layers, options.batch_size, groups.shard.size(), compute,
                          fsdp.min_unit_parameters)),
        layout_(lay_out(units_)),
        passes_(make_passes(static_cast<int>(units_.size()), fsdp.reshard_after_forward)),
        values_(layout_.count, Memory::parameters, place()),
        grads_(layout_.count, Memory::gradients, place()),
        optimizer_(options, layout_.count, compute, place()),
        clipping_(options, layout_.count, compute) {
    std::size_t largest = 0;
    for (const Unit& unit : units_) {
      const std::size_t padded = unit.sharding.padded();
      largest = std::max(largest, padded);
      if (!fsdp.reshard_after_forward) kept_.emplace_back(DeviceBuffer<Real>(padded, Memory::buckets));
    }
    const int forward = fsdp.reshard_after_forward ? forward_values() : 0;
    const int backward = backward_values() + gradients();
    while (static_cast<int>(buffers_.size()) < std::max(forward, backward))
      buffers_.emplace_back(DeviceBuffer<Real>(largest, Memory::buckets));
  }

  // Gives every rank its shards of the initial values, as the options say. Collective over `ranks`, all of the job.
  // Waits for the stream.
  void initialize(std::uint64_t seed, const Group& ranks) {
    fsdp_.sync_module_states ? initialize_from_rank_0(seed, ranks) : initialize(seed);
  }

  // The output of the last unit, as Model's.
  const Real* forward(const Batch& batch) {
    const void* x = batch.x;
    const Real* output = nullptr;
    for (int k = 0; k < units(); ++k) {
      Unit& unit = begin(k);
      {
        const Range range({"forward of ", name(passes_[k].unit)}, compute_);
        x = output = unit.model.forward(batch.with_x(x), unit.activations);
      }
      end(k, output, batch.samples * unit.model.output_size());
    }
    return output;
  }

  // Adds this batch's share of the mean over `samples_of_step` samples to *loss and prepares the backward pass.
  void loss(const void* y, int samples_of_step, float* loss) {
    const Range range("loss", compute_);
    units_.back().model.loss(units_.back().activations, y, samples_of_step, loss);
  }

  // The gradients of one batch, the `first` or the `last` of a step or neither. After the last, this rank's gradient
  // shards are the mean over all ranks of the sum over the batches.
  void backward(bool first, bool last) {
    for (int k = units(); k < 2 * units(); ++k) {
      const int u = passes_[k].unit;
      Unit& unit = begin(k);
      {
        const Range range({"backward of ", name(u)}, compute_);
        clear_padding(k);
        unit.model.backward(unit.activations, /*accumulate=*/false, {},
                            u > 0 ? units_[u - 1].model.output_gradient() : nullptr);
      }
      end(k, full_gradient(k), unit.model.count());
      if (prefetch(k + 1) == Prefetch::post) fetch(k + 1);
      reduce(k, first, last);
    }
  }

  // The update of this rank's shards, on the device or on the host, clipped by the norm of the whole gradient; `norm`
  // is LossLog::gradient_norm().
  void update(float* norm, double lr_factor) {
    // TODO 06.18: Let the compute stream wait until all gradients are reduced.
    //   Record the event reduced_ on one stream, and let the other wait for it. Which one has enqueued the reductions?
    CUDA_CHECK(cudaEventRecord(reduced_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, reduced_));
    // END TODO 06.18
    probe("06.18", "gradient shards before the update", grads_.data(), {layout_.count}, compute_);
    const GradientParts mine{.held = {{grads_.data(), static_cast<std::size_t>(layout_.count)}}};
    if (clipping_.enabled()) clipping_.clip(mine, groups_.shard, norm);
    optimizer_.step(values_.data(), grads_.data(), lr_factor);
    // TODO 06.19: Let the communication stream wait for the update.
    //   As TODO 06.18, with the event updated_. What will the communication stream do next with these shards?
    CUDA_CHECK(cudaEventRecord(updated_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, updated_));
    // END TODO 06.19
    probe("06.19", "parameter shards after the update", values_.data(), {layout_.count}, communication_);
  }

  // Has checkpoints keep this rank's shards and the optimizer's state.
  void add_to(Training& training) {
    float* weights = optimizer_.weights(values_.data());
    std::vector<TensorPart> parts;
    for (int u = 0; u < units(); ++u) {
      const int size = units_[u].sharding.shard, first = groups_.shard.rank() * size;
      const auto shard =
          range_of(parts_of(units_[u].model, nullptr), first, first + size, weights + layout_.offsets[u]);
      parts.insert(parts.end(), shard.begin(), shard.end());
    }
    training.add_all(parts, weights, optimizer_.state(values_.data()));
  }

  // Records the full parameters, gathered unit by unit, as those of number `replica`: a report of a training run and no
  // part of it.
  void record(int replica) {
    const OffTheRecord off_the_record;
    for (int u = 0; u < units(); ++u) {
      Real* whole = full_values(u);
      const Real* shard = into_place(u, whole, compute_);
      NCCL_CHECK(ncclAllGather(shard, whole, units_[u].sharding.shard, kReal, groups_.shard.comm(), compute_));
      units_[u].model.bind(whole, full_gradient(u));
      record_parameters(units_[u].model, replica, compute_);
    }
  }

 private:
  Place place() const { return fsdp_.cpu_offload ? Place::host : Place::device; }
  int units() const { return static_cast<int>(units_.size()); }
  static std::string name(int unit) { return "unit " + std::to_string(unit); }

  // Every rank draws the initial values of the whole model and keeps its shards of them.
  void initialize(std::uint64_t seed) {
    for (int u = 0; u < units(); ++u) {
      const std::vector<Real> shard = initial_shard(units_[u], groups_.shard.rank(), seed);
      const std::size_t bytes = shard.size() * sizeof(Real);
      CUDA_CHECK(cudaMemcpyAsync(value_shard(u), shard.data(), bytes, cudaMemcpyDefault, compute_));
      CUDA_CHECK(cudaStreamSynchronize(compute_));
      probe("06.2", {name(u), ", this rank's shard"}, value_shard(u), {units_[u].sharding.shard}, compute_);
    }
  }

  // Rank 0's values, unit by unit, whatever the others have drawn: here numbers of their own, where a program would
  // have loaded a checkpoint on rank 0 alone.
  void initialize_from_rank_0(std::uint64_t seed, const Group& ranks) {
    for (int u = 0; u < units(); ++u) {
      const Sharding& sharding = units_[u].sharding;
      const std::vector<float> drawn = units_[u].model.initial_values(seed + ranks.rank());
      std::vector<Real> values(drawn.begin(), drawn.end());
      values.resize(sharding.padded());
      Real* whole = full_values(u);
      CUDA_CHECK(cudaMemcpyAsync(whole, values.data(), values.size() * sizeof(Real), cudaMemcpyDefault, compute_));
      NCCL_CHECK(ncclBroadcast(whole, whole, values.size(), kReal, 0, ranks.comm(), compute_));
      const Real* shard = whole + groups_.shard.rank() * sharding.shard;
      CUDA_CHECK(cudaMemcpyAsync(value_shard(u), shard, sharding.shard * sizeof(Real), cudaMemcpyDefault, compute_));
      CUDA_CHECK(cudaStreamSynchronize(compute_));
    }
  }

  // This rank's shard of a unit's parameters and of their gradients, wherever it is kept.
  Real* value_shard(int u) const { return values_.data() + layout_.offsets[u]; }
  Real* grad_shard(int u) const { return grads_.data() + layout_.offsets[u]; }

  // Nothing comes before the first pass; and between the last forward and the first backward pass is no reduction.
  Prefetch prefetch(int k) const {
    if (k == 0 || k >= 2 * units()) return Prefetch::none;
    if (k < units()) return fsdp_.prefetch ? Prefetch::pre : Prefetch::none;
    return k == units() && fsdp_.backward() == Prefetch::post ? Prefetch::none : fsdp_.backward();
  }

  // Whole units that are alive at a time, parameters and gradients. A unit that is gathered between the work before it
  // and the reduction takes the place of the parameters, but not of the gradients. The forward pass has no gradients,
  // so it takes a buffer of theirs for its second unit.
  int forward_values() const { return fsdp_.prefetch || fsdp_.backward() == Prefetch::pre ? 2 : 1; }
  int backward_values() const { return !fsdp_.reshard_after_forward ? 0 : fsdp_.backward() == Prefetch::pre ? 2 : 1; }
  int gradients() const { return fsdp_.backward() == Prefetch::none ? 1 : 2; }

  // The buffers of pass k for all parameters of its unit and for all their gradients. A unit that is not freed after
  // its forward pass has a buffer of its own; else the passes take turns.
  Real* full_values(int k) const {
    if (!fsdp_.reshard_after_forward) return kept_[passes_[k].unit].data();
    return buffers_[k % (k < units() ? forward_values() : backward_values())].data();
  }
  Real* full_gradient(int k) const { return buffers_[backward_values() + k % gradients()].data(); }

  // Copies this rank's shard of the unit to its place among the whole, if it is on the host.
  const Real* into_place(int u, Real* whole, cudaStream_t stream) {
    if (!fsdp_.cpu_offload) return value_shard(u);
    const int size = units_[u].sharding.shard;
    Real* place = whole + groups_.shard.rank() * size;
    CUDA_CHECK(cudaMemcpyAsync(place, value_shard(u), size * sizeof(Real), cudaMemcpyDefault, stream));
    return place;
  }

  // Has the communication stream bring what pass k needs.
  void fetch(int k) {
    const int u = passes_[k].unit;
    const Sharding& sharding = units_[u].sharding;
    if (passes_[k].gather) {
      const Range range({"gather ", name(u)}, communication_);
      Real* whole = full_values(k);
      const Real* shard = into_place(u, whole, communication_);
      // TODO 06.13: Gather the unit's parameters: `whole` from every rank's `shard`.
      //   One NCCL call over the shard group, groups_.shard.comm(), on the communication stream. Its count is that of
      //   one shard.
      NCCL_CHECK(ncclAllGather(shard, whole, sharding.shard, kReal, groups_.shard.comm(), communication_));
      // END TODO 06.13
      probe("06.13", {name(u), ", gathered"}, whole, {sharding.count}, communication_);
    }
    CUDA_CHECK(cudaEventRecord(fetched_[k % 2], communication_));
  }

  // Call before the work of pass k is enqueued. The order of the calls is that of the communication stream: to
  // prefetch is to enqueue the gather of the next pass before the work of this one, and so before what waits for that.
  Unit& begin(int k) {
    if (prefetch(k) == Prefetch::none) fetch(k);
    if (prefetch(k + 1) == Prefetch::pre) fetch(k + 1);
    // TODO 06.14: Let the compute stream wait for what was fetched for pass k: for the event fetched_[k % 2].
    //   fetch() has recorded the event: to wait for it is all (docs/calls.md). The passes take turns with two events,
    //   because with prefetching fetch() has recorded that of pass k + 1 by now, too.
    CUDA_CHECK(cudaStreamWaitEvent(compute_, fetched_[k % 2]));
    // END TODO 06.14
    Unit& unit = units_[passes_[k].unit];
    probe("06.14", {name(passes_[k].unit), " when its work begins"}, full_values(k), {unit.model.count()}, compute_);
    unit.model.bind(full_values(k), full_gradient(k));
    return unit;
  }

  // Call when the work of pass k is enqueued, which writes result[n].
  void end(int k, const Real* result, int n) {
    // TODO 06.15: Let the communication stream wait for the work of pass k.
    //   Record the event worked_ on one stream, and let the other wait for it. What comes next on the communication
    //   stream overwrites parameters that this work reads, or reads gradients that it writes.
    CUDA_CHECK(cudaEventRecord(worked_, compute_));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, worked_));
    // END TODO 06.15
    probe("06.15", name(passes_[k].unit) + (passes_[k].backward ? ", its gradients" : ", its output"), result, {n},
          communication_);
  }

  // The gradients end with the padding, which no layer writes.
  void clear_padding(int k) {
    const Sharding& sharding = units_[passes_[k].unit].sharding;
    const std::size_t bytes = (sharding.padded() - sharding.count) * sizeof(Real);
    CUDA_CHECK(cudaMemsetAsync(full_gradient(k) + sharding.count, 0, bytes, compute_));
  }

  // Has the communication stream average the gradients of backward pass k over all ranks, into this rank's shard.
  void reduce(int k, bool first, bool last) {
    const int u = passes_[k].unit, size = units_[u].sharding.shard;
    const Range range({"reduce ", name(u)}, communication_);
    Real *whole = full_gradient(k), *sum = grad_shard(u);
    // What is to be added to, or to go to the host, needs a place on the device first: its own among the whole.
    const bool direct = first && !fsdp_.cpu_offload;
    Real* shard = direct ? sum : whole + groups_.shard.rank() * size;
    // TODO 06.16: Average the unit's gradients over the shard group, and keep this rank's shard of the averages.
    //   One NCCL call, from `whole` to `shard`, on the communication stream. Its count is that of one shard.
    NCCL_CHECK(ncclReduceScatter(whole, shard, size, kReal, ncclAvg, groups_.shard.comm(), communication_));
    // END TODO 06.16
    probe("06.16", {name(u), ", gradient shard"}, shard, {size}, communication_);
    if (!first) launch(add_scaled, size, communication_, shard, sum, 1.0f, size);
    if (last && groups_.replicate.size() > 1) {
      // TODO 06.17: Average `shard` over the ranks that hold the same one, in place.
      //   One NCCL call over groups_.replicate.comm(), on the communication stream. Why is once a step enough?
      NCCL_CHECK(ncclAllReduce(shard, shard, size, kReal, ncclAvg, groups_.replicate.comm(), communication_));
      // END TODO 06.17
      probe("06.17", {name(u), ", gradient shard of all replicas"}, shard, {size}, communication_);
    }
    if (!direct) CUDA_CHECK(cudaMemcpyAsync(sum, shard, size * sizeof(Real), cudaMemcpyDefault, communication_));
  }

  FsdpOptions fsdp_;
  const ShardGroups& groups_;
  cudaStream_t compute_;
  Stream communication_{"communication"};
  std::deque<Unit> units_;
  ShardLayout layout_;
  std::vector<Pass> passes_;
  PlacedBuffer<Real> values_, grads_;  // this rank's shards
  Optimizer optimizer_;
  Clipping clipping_;
  std::vector<DeviceBuffer<Real>> kept_, buffers_;  // of whole units
  Event fetched_[2], worked_, reduced_, updated_;
};

}  // namespace workshop
