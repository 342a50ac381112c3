// SPDX-License-Identifier: Apache-2.0
// Fully sharded data parallelism. A rank keeps a shard of every unit: of its parameters, its gradients and its
// optimizer state. The parameters of a unit are gathered right before its forward or backward pass, and their buffer is
// reused for another unit right after it; the gradients are reduced and scattered as soon as they are computed. Follows
// PyTorch's FSDP (Zhao et al., VLDB 2023).
//
// The passes run on the compute stream; gathers and reductions run on the communication stream. Each stream runs in
// order, so four waits between them are enough: TODOs 06.9, 06.10, 06.12 and 06.13. With --backward-prefetch pre,
// backward pass k enqueues:
//
//   compute                      wait for gather k   →  backward pass k
//   communication   gather k+1   →  wait for backward pass k   →  reduce k
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/optimizer.h"
#include "06_fsdp/support/fsdp_options.h"
#include "06_fsdp/units.h"
#include "common/nccl/group.h"
#include "common/nccl/off_the_record.h"
#include "common/record/record.h"
#include "common/training/training.h"
#include "model/clip.h"
#include "model/elementwise.h"

namespace workshop {

// ---- who shares a model --------------------------------------------------------------------------------------------

// The two groups of a rank in hybrid sharding. The ranks of a shard group hold one copy of the model, each a shard of
// it. The ranks of a replicate group hold the same shard of different replicas of the model.
struct ShardGroups {
  Group shard, replicate;
};

// Makes shard groups of `size` ranks each; `size` must divide the world size. Collective over the world.
inline ShardGroups make_shard_groups(const Group& world, int size) {
  ShardGroups groups;
  const int rank = world.rank();
  // TODO 06.7: Split the world into shard groups of `size` adjacent ranks, and into replicate groups.
  //   Set groups.shard = world.split(color, key, "shard"), and groups.replicate in the same way. Ranks that pass the
  //   same color form a group, in the order of their keys: keep the order of the world. Every rank must make both
  //   calls, in the same order. With size 2, the shard groups are ranks 0 1 | 2 3: which of these ranks hold the same
  //   shard?
  todo("06.7");
  // END TODO 06.7
  const Group &shard = groups.shard, &replicate = groups.replicate;
  probe("06.7", "rank and size in the shard group, then in the replicate group",
        std::vector<int>{shard.rank(), shard.size(), replicate.rank(), replicate.size()});
  return groups;
}

// ---- the passes of a batch -----------------------------------------------------------------------------------------

// One pass through a unit. A batch makes two passes through each unit.
struct Pass {
  int unit;
  bool backward;
  bool gather;  // the unit's parameters must be gathered for this pass
};

inline std::vector<Pass> make_passes(int units, bool reshard_after_forward) {
  std::vector<Pass> passes;
  // TODO 06.8: List the passes of one batch in their order: passes.push_back({unit, backward, gather}).
  //   Go forward from the first unit to the last, then backward. Which units must be gathered again for their backward
  //   pass?
  todo("06.8");
  // END TODO 06.8
  std::vector<int> numbers;
  for (const Pass& pass : passes) {
    numbers.insert(numbers.end(), {pass.unit, pass.backward, pass.gather});
  }
  probe("06.8", "unit, backward and gather of each pass", numbers);
  if (static_cast<int>(passes.size()) != 2 * units) {
    fail(kFailed, std::to_string(passes.size()) + " passes through " + std::to_string(units) +
                      " units: each has two, see TODO 06.8, part of WRITE 06.J");
  }
  return passes;
}

// ---- memory for whole units ----------------------------------------------------------------------------------------

// How many buffers for whole units there are, each as long as the largest unit. `forward` is the number of parameter
// buffers that the forward passes use in turn, and `backward` that of the backward passes. `gradients` is the number of
// gradient buffers, which only the backward passes use:
//
//   the next unit of the backward pass is gathered      forward    backward   gradients
//   before the work (pre)                               2          2          2
//   between the work and the reduction (post)           2 or 1 *   1          2
//   when its own work begins (none)                     2 or 1 *   1          1
//
//   * 2 if the forward pass prefetches
//
// With two parameter buffers, the next unit arrives in one while the work reads the other; a gather after the work
// needs only one. With two gradient buffers, one unit is reduced while the gradients of the next are computed. With
// `none`, one is enough: the next gather waits for the reduction, so no gradients are computed meanwhile. With `pre`,
// `forward` is always 2, because the first unit of the backward pass is gathered during the last forward pass. With
// --no-reshard-after-forward, each unit has a parameter buffer of its own: `forward` and `backward` are 0.
//
// The forward passes have no gradients, so their second parameter buffer may be a gradient buffer of the backward
// passes.
struct BufferPlan {
  explicit BufferPlan(const FsdpOptions& fsdp) {
    const Prefetch prefetch = fsdp.backward();
    if (fsdp.reshard_after_forward) {
      forward = fsdp.prefetch || prefetch == Prefetch::pre ? 2 : 1;
      backward = prefetch == Prefetch::pre ? 2 : 1;
    }
    gradients = prefetch == Prefetch::none ? 1 : 2;
    count = std::max(forward, backward + gradients);
    probe("06.K", "buffers: forward, backward, gradients, in all", std::array{forward, backward, gradients, count});
  }

  int forward = 0, backward = 0, gradients = 0;
  int count = 0;  // buffers in all
};

// The memory of one pass: for all parameters of its unit, and for all their gradients, [sharding.padded()] each.
struct PassBuffers {
  Real *values, *grads;
};

// The buffers of a BufferPlan. [k] returns those of pass k of a batch.
class UnitBuffers {
 public:
  UnitBuffers(const FsdpOptions& fsdp, const std::deque<Unit>& units, const std::vector<Pass>& passes) : plan_(fsdp) {
    std::size_t largest = 0;
    for (const Unit& unit : units) {
      const std::size_t padded = unit.sharding.padded();
      largest = std::max(largest, padded);
      if (!fsdp.reshard_after_forward) kept_.emplace_back(DeviceBuffer<Real>(padded, Memory::buckets));
    }
    while (static_cast<int>(turns_.size()) < plan_.count)
      turns_.emplace_back(DeviceBuffer<Real>(largest, Memory::buckets));
    for (const Pass& pass : passes) passes_.push_back(choose(static_cast<int>(passes_.size()), pass));
    probe_sharing();
  }

  const PassBuffers& operator[](int k) const { return passes_[k]; }

 private:
  // The buffers of pass k. A forward pass has no gradients, so it may name any gradient buffer.
  PassBuffers choose(int k, const Pass& pass) const {
    const int turns = pass.backward ? plan_.backward : plan_.forward;
    Real* values = kept_.empty() ? turns_[k % turns].data() : kept_[pass.unit].data();
    Real* grads = turns_[plan_.backward + k % plan_.gradients].data();
    return {values, grads};
  }

  // Records which passes share a buffer.
  void probe_sharing() const {
    const int count = static_cast<int>(passes_.size()), first_backward = count / 2;
    std::vector<int> in_one;
    for (int k = first_backward; k < count; ++k) in_one.push_back(passes_[k].values == passes_[k].grads);
    probe("06.L", "each backward pass: 1 if its parameters and gradients are in one buffer", in_one);
    probe("06.L", "each pass: after how many passes its parameter buffer is used again",
          reuse(&PassBuffers::values, 0));
    probe("06.L", "each backward pass: after how many passes its gradient buffer is used again",
          reuse(&PassBuffers::grads, first_backward));
  }

  // For each pass from `first` on: after how many passes its buffer is used again; 0: not again in the batch.
  std::vector<int> reuse(Real* PassBuffers::*buffer, int first) const {
    std::vector<int> after;
    for (auto pass = passes_.begin() + first; pass != passes_.end(); ++pass) {
      const auto same = [&](const PassBuffers& other) { return other.*buffer == (*pass).*buffer; };
      const auto next = std::find_if(pass + 1, passes_.end(), same);
      after.push_back(next == passes_.end() ? 0 : static_cast<int>(next - pass));
    }
    return after;
  }

  BufferPlan plan_;
  std::vector<DeviceBuffer<Real>> kept_;   // one per unit with --no-reshard-after-forward, else empty
  std::vector<DeviceBuffer<Real>> turns_;  // in a backward pass: plan_.backward for parameters, the rest for gradients
  std::vector<PassBuffers> passes_;        // of each pass
};

// ---- the model -----------------------------------------------------------------------------------------------------

// Returns where each unit's shard begins in the array that holds all shards of a rank, then the length of that
// array. All shards are in one array so that their update is one launch.
inline std::vector<int> shard_offsets(const std::deque<Unit>& units) {
  std::vector<int> offsets = {0};
  for (const Unit& unit : units) offsets.push_back(offsets.back() + unit.sharding.shard);
  return offsets;
}

// A model sharded over a shard group. All ranks must make the same calls. Only initialize() and record() wait for the
// device.
class FullyShardedModel {
 public:
  FullyShardedModel(const Network& network, const Options& options, const FsdpOptions& fsdp, const ShardGroups& groups,
                    cudaStream_t compute)
      : compute_(compute),
        fsdp_(fsdp),
        groups_(groups),
        units_(make_units(network, {fsdp.unit_layers, fsdp.min_unit_parameters}, options.batch_size,
                          groups.shard.size(), groups.shard.rank(), compute)),
        passes_(make_passes(units(), fsdp.reshard_after_forward)),
        buffers_(fsdp, units_, passes_),
        offsets_(shard_offsets(units_)),
        values_(offsets_.back(), Memory::parameters, place()),
        grads_(offsets_.back(), Memory::gradients, place()),
        optimizer_(options, offsets_.back(), compute, place()),
        clipping_(options, offsets_.back(), compute),
        gradients_{.held = {{grads_.data(), static_cast<std::size_t>(offsets_.back())}}} {
    std::vector<int> when;
    for (int k = 0; k <= 2 * units(); ++k) when.push_back(static_cast<int>(prefetch(k)));
    probe("06.O", "for each pass: 0 pre, 1 post, 2 none", when);
  }

  // Runs the forward passes of one batch. Returns the output of the last unit, as Model::forward() does.
  const Real* forward(const Batch& batch) {
    const Real* output = nullptr;
    const void* x = batch.x;
    for (int k = 0; k < units(); ++k) {
      Unit& unit = begin(k);
      {
        const Range range({"forward of ", unit_name(passes_[k].unit)}, compute_);
        x = output = unit.model.forward(batch.with_x(x), unit.activations);
      }
      end(k, output, batch.samples * unit.model.output_size());
    }
    probe("06.M", "output of the last unit", output, {batch.samples * units_.back().model.output_size()}, compute_);
    return output;
  }

  // Adds this batch's share of the mean loss over `samples_of_step` samples to *loss, and prepares the backward pass.
  void loss(const void* y, int samples_of_step, float* loss) {
    const Range range("loss", compute_);
    units_.back().model.loss(units_.back().activations, y, samples_of_step, loss);
  }

  // Computes and reduces the gradients of one batch. `first` and `last` say whether it is the first or the last batch
  // of the step. After the last batch, this rank's gradient shards are the sum over the batches, averaged over all
  // ranks.
  void backward(bool first, bool last) {
    for (int k = units(); k < 2 * units(); ++k) {
      const int u = passes_[k].unit;
      Unit& unit = begin(k);
      {
        const Range range({"backward of ", unit_name(u)}, compute_);
        clear_padding(k);
        unit.model.backward(unit.activations, /*accumulate=*/false, {},
                            u > 0 ? units_[u - 1].model.output_gradient() : nullptr);
      }
      end(k, buffers_[k].grads, unit.model.count());
      reduce(k, first, last);
    }
    probe("06.N", "gradient shards after the batch", grads_.data(), {offsets_.back()}, communication_);
  }

 private:
  // ---- one pass: begin, its work, end; if it is a backward pass, reduce, too ----
  cudaStream_t compute_;
  Stream communication_{"communication", Priority::high};
  Event fetched_[2];         // recorded after the gather for pass k: fetched_[k % 2]
  Event worked_;             // recorded after the work of a pass
  Event reduced_, updated_;  // recorded after all reductions of a step, and after its update

  // When the gather for pass k is enqueued. No pass comes before the first one, so nothing can prefetch for it. No
  // reduction comes between the last forward and the first backward pass, so `post` means nothing there.
  Prefetch prefetch(int k) const {
    if (k == 0 || k >= 2 * units()) return Prefetch::none;
    if (k < units()) return fsdp_.prefetch ? Prefetch::pre : Prefetch::none;
    return k == units() && fsdp_.backward() == Prefetch::post ? Prefetch::none : fsdp_.backward();
  }

  // Call before enqueuing the work of pass k. Returns its unit, bound to parameters that will have arrived by the time
  // the work runs.
  Unit& begin(int k) {
    probe("06.P", "given to begin: pass", std::array{k});
    Unit& unit = units_[passes_[k].unit];
    // TODO 06.9: Fetch the units whose turn it is, and let the compute stream wait for the gather of this pass.
    //   fetch(k) enqueues the gather for pass k on the communication stream and records the event fetched_[k % 2] after
    //   it. prefetch(k) says when to call fetch(k): at the beginning of pass k itself (Prefetch::none), at the
    //   beginning of the previous pass (Prefetch::pre), or at the end of the previous pass (Prefetch::post; end() does
    //   that). So two passes may have to be fetched here, k and k + 1.
    todo("06.9");
    // END TODO 06.9
    unit.model.bind(buffers_[k].values, buffers_[k].grads);
    probe("06.9", {unit_name(passes_[k].unit), ", last pass fetched before its work begins"},
          std::array{last_fetched_});
    probe("06.9", {unit_name(passes_[k].unit), " when its work begins"}, buffers_[k].values, {unit.model.count()},
          compute_);
    const bool bound =
        unit.model.values() == buffers_[k].values && (unit.model.grads() == buffers_[k].grads || !passes_[k].backward);
    probe("06.P", {unit_name(passes_[k].unit), ": bound to the buffers of this pass, fetches so far"},
          std::array<int, 2>{bound, fetches_});
    return unit;
  }

  // Enqueues the gather for pass k on the communication stream, and records fetched_[k % 2] after it. The event matters
  // even if nothing is gathered: it comes after the reduction of pass k - 2, and that reduction reads the buffer to
  // which pass k will write its gradients.
  void fetch(int k) {
    const int u = passes_[k].unit;
    Real* whole = buffers_[k].values;
    probe("06.Q", "given to fetch: pass", std::array{k});
    last_fetched_ = k;
    ++fetches_;
    if (passes_[k].gather) {
      const Range range({"gather ", unit_name(u)}, communication_);
      const Real* shard = shard_on_device(u, whole, communication_);
      NCCL_CHECK(ncclAllGather(shard, whole, units_[u].sharding.shard, kReal, groups_.shard.comm(), communication_));
    }
    CUDA_CHECK(cudaEventRecord(fetched_[k % 2], communication_));
    probe("06.Q", {unit_name(u), ", gathered"}, whole, {units_[u].model.count()}, communication_);
  }

  // Call after enqueuing the work of pass k, which writes `n` values to `result`.
  void end(int k, const Real* result, int n) {
    const std::string of = unit_name(passes_[k].unit) + (passes_[k].backward ? ", its gradients" : ", its output");
    probe("06.R", {"given to end: ", of}, result, {n}, compute_);
    // TODO 06.10: Make the communication stream wait for the work of pass k.
    //   Record the event worked_ on one stream, and let the other wait for it. The next operation on the communication
    //   stream overwrites parameters that this work reads, or reads gradients that it writes.
    todo("06.10");
    // END TODO 06.10
    if (prefetch(k + 1) == Prefetch::post) fetch(k + 1);
    probe("06.10", of, result, {n}, communication_);
    probe("06.R", {of, ": fetches so far"}, std::array{fetches_});
  }

  // Enqueues the reduction after backward pass k on the communication stream: averages the gradients of its unit over
  // all ranks into this rank's shard.
  void reduce(int k, bool first, bool last) {
    const int u = passes_[k].unit, size = units_[u].sharding.shard;
    Real *whole = buffers_[k].grads, *sum = grad_shard(u);
    probe("06.S", "given to reduce: pass, first, last", std::array<int, 3>{k, first, last});
    probe("06.S", {"given to reduce: gradients of ", unit_name(u)}, whole, {units_[u].sharding.padded()},
          communication_);
    const Range range({"reduce ", unit_name(u)}, communication_);
    // A result that is added to earlier ones, or copied to the host, first goes to this rank's place in `whole`.
    const bool direct = first && !fsdp_.cpu_offload;
    Real* shard = direct ? sum : whole + units_[u].sharding.offset;
    // TODO 06.11: Average the unit's gradients over all ranks, and keep this rank's shard of the averages in `shard`.
    //   Enqueue three operations on the communication stream, with `size` values each. First average over
    //   groups_.shard, from `whole` to `shard`, in one NCCL call. Then, unless this batch is the `first` of the step,
    //   add `sum`, the sum of the earlier batches, to `shard`: launch(add_scaled, n, stream, y, x, 1.0f, n) computes
    //   y += 1.0f · x for n numbers. Then, if there are several replicas, average `shard` over groups_.replicate, in
    //   place, in one NCCL call. Once per step is enough for this one: when?
    todo("06.11");
    // END TODO 06.11
    if (!direct) CUDA_CHECK(cudaMemcpyAsync(sum, shard, size * sizeof(Real), cudaMemcpyDefault, communication_));
    probe("06.11", {unit_name(u), ", gradient shard"}, sum, {size}, communication_);
  }

  // Clears the padding after the gradients: no layer writes it, but the reduction reads it.
  void clear_padding(int k) {
    const Sharding& sharding = units_[passes_[k].unit].sharding;
    const std::size_t bytes = (sharding.padded() - sharding.count) * sizeof(Real);
    CUDA_CHECK(cudaMemsetAsync(buffers_[k].grads + sharding.count, 0, bytes, compute_));
  }

 public:
  // Updates this rank's shards, on the device or on the host, after clipping by the norm of the whole gradient if
  // --clip-norm asks for it.
  void update(Training& training) {
    // TODO 06.12: Make the compute stream wait until all gradients are reduced.
    //   Record the event reduced_ on one stream, and let the other wait for it. On which stream are the reductions?
    todo("06.12");
    // END TODO 06.12
    probe("06.12", "gradient shards before the update", grads_.data(), {offsets_.back()}, compute_);
    if (clipping_.enabled()) clipping_.clip(gradients_, groups_.shard, training.losses().gradient_norm());
    optimizer_.step(values_.data(), grads_.data(), training.lr_factor());
    // TODO 06.13: Make the communication stream wait for the update.
    //   As in TODO 06.12, with the event updated_ and the streams exchanged. What does the communication stream do next
    //   with these shards?
    todo("06.13");
    // END TODO 06.13
    probe("06.13", "parameter shards after the update", values_.data(), {offsets_.back()}, communication_);
  }

  // Initializes this rank's shards; with --sync-module-states, from rank 0's values. Collective over `ranks`, which
  // must be all ranks of the job. Waits for the stream.
  void initialize(std::uint64_t seed, const Group& ranks) {
    for (int u = 0; u < units(); ++u) {
      if (fsdp_.sync_module_states) {
        initialize_from_rank_0(u, seed, ranks);
      } else {
        initialize_shard(units_[u], seed, value_shard(u), compute_);
      }
    }
  }

  // Registers this rank's shards and the optimizer state for checkpoints.
  void add_to(Training& training) {
    float* weights = optimizer_.weights(values_.data());
    std::vector<TensorPart> parts;
    for (int u = 0; u < units(); ++u) {
      const auto shard = parts_of_shard(units_[u].model, units_[u].sharding, weights + offsets_[u]);
      parts.insert(parts.end(), shard.begin(), shard.end());
    }
    training.add_all(parts, weights, optimizer_.state(values_.data()));
  }

  // Gathers the full parameters unit by unit and writes them to the run record as those of replica number `replica`.
  // Reports on the training without being part of it, so it is left out of the ledger.
  void record(int replica) {
    const OffTheRecord off_the_record;
    for (int u = 0; u < units(); ++u) {
      Real* whole = buffers_[u].values;
      const Real* shard = shard_on_device(u, whole, compute_);
      NCCL_CHECK(ncclAllGather(shard, whole, units_[u].sharding.shard, kReal, groups_.shard.comm(), compute_));
      units_[u].model.bind(whole, buffers_[u].grads);
      record_parameters(units_[u].model, replica, compute_);
    }
  }

 private:
  Place place() const { return fsdp_.cpu_offload ? Place::host : Place::device; }
  int units() const { return static_cast<int>(units_.size()); }

  // This rank's shard of a unit's parameters and of their gradients, on the device or on the host.
  Real* value_shard(int u) const { return values_.data() + offsets_[u]; }
  Real* grad_shard(int u) const { return grads_.data() + offsets_[u]; }

  // Returns this rank's shard of a unit's parameters on the device. If the shard is on the host, copies it to its place
  // in `whole` first.
  const Real* shard_on_device(int u, Real* whole, cudaStream_t stream) {
    if (!fsdp_.cpu_offload) return value_shard(u);
    const Sharding& sharding = units_[u].sharding;
    Real* place = whole + sharding.offset;
    CUDA_CHECK(cudaMemcpyAsync(place, value_shard(u), sharding.shard * sizeof(Real), cudaMemcpyDefault, stream));
    return place;
  }

  // Initializes the shards of a unit from rank 0's values. The other ranks draw different values on purpose, to stand
  // for a program that has loaded a checkpoint on rank 0 only.
  void initialize_from_rank_0(int u, std::uint64_t seed, const Group& ranks) {
    const Sharding& sharding = units_[u].sharding;
    const std::vector<float> drawn = units_[u].model.initial_values(seed + ranks.rank());
    std::vector<Real> values(drawn.begin(), drawn.end());
    values.resize(sharding.padded());
    Real* whole = buffers_[u].values;
    CUDA_CHECK(cudaMemcpyAsync(whole, values.data(), values.size() * sizeof(Real), cudaMemcpyDefault, compute_));
    NCCL_CHECK(ncclBroadcast(whole, whole, values.size(), kReal, 0, ranks.comm(), compute_));
    CUDA_CHECK(cudaMemcpyAsync(value_shard(u), whole + sharding.offset, sharding.shard * sizeof(Real),
                               cudaMemcpyDefault, compute_));
    CUDA_CHECK(cudaStreamSynchronize(compute_));
  }

  FsdpOptions fsdp_;
  const ShardGroups& groups_;
  std::deque<Unit> units_;
  std::vector<Pass> passes_;
  UnitBuffers buffers_;
  std::vector<int> offsets_;           // of each unit's shard in the two arrays
  PlacedBuffer<Real> values_, grads_;  // this rank's shards
  Optimizer optimizer_;
  Clipping clipping_;
  GradientParts gradients_;  // all of grads_
  int last_fetched_ = -1;    // the argument of the last fetch()
  int fetches_ = 0;          // how often fetch() was called
};

}  // namespace workshop
