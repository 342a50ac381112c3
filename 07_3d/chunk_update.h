// SPDX-License-Identifier: Apache-2.0
// Turns the gradients of a model chunk into its next parameters, together with all data-parallel replicas of the chunk.
#pragma once

#include <array>
#include <deque>
#include <optional>

#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp_overlap.h"
#include "04_pipeline/stage.h"
#include "06_fsdp/zero.h"
#include "07_3d/mesh.h"
#include "07_3d/support/spread_shards.h"
#include "09_expert_parallel/moe_parallel.h"
#include "common/nccl/group.h"
#include "common/record/record.h"
#include "common/training/training.h"

namespace workshop {

// The update of one chunk.
// Not sharded: averages the gradients in buckets behind the last backward pass, and each replica updates all parameters
// (chapter 02). Sharded (ZeRO stage 1, chapter 06): each replica receives the averages of its shard of the gradients,
// updates its shard of the parameters with its shard of the optimizer state, and the parameters are gathered.
// With --ep (chapter 09), both happen in parts, after the backward pass: shared parameters have other replicas than
// experts.
// If tensor parallelism cuts the chunk, "all" means this rank's part: its replicas have the same part.
class ChunkUpdate {
 public:
  // `replicas` are the ranks that hold the same chunk. If `sharded`, `model` must be created with Storage::bound; the
  // constructor binds it to memory with room for the padding of the shards.
  ChunkUpdate(const Options& options, Model& model, const Group& replicas, bool sharded, double bucket_bytes,
              cudaStream_t stream)
      : model_(model), stream_(stream), part_{0, model.count()} {
    probe("07.6", "ranks that average their gradients", replicas.members());
    probe("07.6", "bytes of a full bucket", std::array{bucket_bytes});
    probe("07.C", "given to emplace_back: whether sharded, parameters", std::array{int{sharded}, model.count()});
    if (sharded) {
      const Sharding sharding(model.count(), replicas.size(), replicas.rank());
      part_ = {sharding.offset, sharding.shard};
      for (auto& [buffer, kind] : {std::pair(&values_, Memory::parameters), std::pair(&grads_, Memory::gradients)}) {
        *buffer = DeviceBuffer<Real>(sharding.padded(), kind);
        CUDA_CHECK(cudaMemsetAsync(buffer->data(), 0, buffer->bytes(), stream));
      }
      model.bind(values_.data(), grads_.data());
      shards_.emplace(options, sharding, replicas, "chunk", stream);
    } else {
      if (replicas.size() > 1) reducer_.emplace(model, bucket_bytes, replicas, stream);
      optimizer_.emplace(options, model.count(), stream);
    }
    probe("07.C", "offset and count of this replica's part, whether the model has memory",
          std::array{part_.offset, part_.count, int{model.values() != nullptr}});
  }

  // With --ep, experts have other replicas than shared parameters. So the ranges of the chunk with experts and those
  // without are averaged separately, after the backward pass. Call this before the model gets its parameters.
  void spread_experts(const Options& options, const Mesh& mesh) {
    mesh_ = &mesh;
    reducer_.reset();
    if (shards_) {
      shards_.reset();
      values_ = {};  // freed before others are allocated, or both would be held at once
      grads_ = {};
      spread_shards_.emplace(options, model_, mesh, stream_);
      part_ = {0, model_.count()};
    }
    ranges_ = ranges_of(model_);
  }

  // Call in the last backward pass of a step, or in its last `weights`, after enqueueing the gradients of a layer.
  void layer_ready(int layer) {
    probe("07.D", "given to layer_ready: layer, parameters of the chunk", std::array{layer, model_.count()});
    if (reducer_) reducer_->on_layer_done(layer);
  }

  // Call after all gradients are enqueued. Afterwards this replica has the averages of its part of the gradients.
  void average() {
    probe("07.D", "given to average: parameters of the chunk", std::array{model_.count()});
    const Range range("average", stream_);
    if (spread_shards_) return spread_shards_->average();
    if (mesh_ != nullptr) {
      return average_gradients(ranges_, mesh_->data, {mesh_->experts, mesh_->expert_replicas}, stream_);
    }
    if (shards_) shards_->scatter(model_.grads(), grads());
    if (reducer_) reducer_->finish();
    probe("07.D", "averaged gradients of this replica's part", grads(), {part_.count}, stream_);
  }

  const Model& model() const { return model_; }
  // This replica's part of the chunk: its averaged gradients, and its extent within the chunk's parameters.
  Real* grads() const { return model_.grads() + part_.offset; }
  Extent part() const { return part_; }
  // The parts of the chunk that this replica updates: part() or, with shards of spread experts, several.
  std::vector<Extent> parts() const { return spread_shards_ ? spread_shards_->own() : std::vector{part_}; }

  // Updates this replica's part at `lr_factor` times the learning rate. Afterwards every replica has the whole chunk.
  void update(double lr_factor) {
    probe("07.E", "given to update: gradients", grads(), {part_.count}, stream_);
    probe("07.E", "given to update: factor of the learning rate", std::array{lr_factor});
    const Range range("update", stream_);
    if (spread_shards_) return spread_shards_->update(lr_factor);
    optimizer().step(values(), grads(), lr_factor);
    if (shards_) shards_->gather(values(), model_.values());
    probe("07.E", "parameters of the chunk after the update", model_.values(), {model_.count()}, stream_);
  }

  // Adds the chunk and this rank's optimizer state to the checkpoints.
  void add_to(Training& training) {
    probe("07.I", "given to add_to: parameters of the chunk", std::array{model_.count()});
    if (spread_shards_) return spread_shards_->add_to(training);
    float* weights = optimizer().weights(values());
    OptimizerState state = optimizer().state(values());
    if (shards_) {
      state.loaded = [this, loaded = state.loaded] {
        if (loaded) loaded();
        shards_->gather(values(), model_.values());
      };
    }
    const int last = part_.offset + part_.count;
    training.add_all(range_of(parts_of(model_, nullptr), part_.offset, last, weights), weights, state);
  }

 private:
  Real* values() const { return model_.values() + part_.offset; }
  Optimizer& optimizer() { return shards_ ? shards_->optimizer() : *optimizer_; }

  Model& model_;
  cudaStream_t stream_;
  Extent part_;
  DeviceBuffer<Real> values_, grads_;  // if sharded: the model's memory, with padding
  std::optional<ShardedUpdate> shards_;
  std::optional<GradientReducer> reducer_;     // unless sharded, or there is nothing to average
  std::optional<Optimizer> optimizer_;         // unless sharded
  const Mesh* mesh_ = nullptr;                 // with --ep
  GradientRanges ranges_;                      // with --ep
  std::optional<SpreadShards> spread_shards_;  // with --ep, if sharded
};

// Returns an update for each chunk of this rank's stage. `stage` and `mesh` must outlive them.
inline std::deque<ChunkUpdate> updates_of(const Options& options, PipelineStage& stage, const Mesh& mesh, bool sharded,
                                          double bucket_bytes, cudaStream_t stream) {
  probe("07.F", "given to make_updates: whether sharded, chunks",
        std::array{int{sharded}, static_cast<int>(stage.chunks().size())});
  for (const ModelChunk& chunk : stage.chunks())
    probe("07.F", "given to make_updates: parameters of a chunk", std::array{chunk.model.count()});
  probe("07.F", "given to make_updates: bytes of a full bucket", std::array{bucket_bytes});
  std::deque<ChunkUpdate> updates;
  // TODO 07.6: Create a ChunkUpdate for each chunk in stage.chunks().
  //   updates.emplace_back(options, chunk.model, group, sharded, bucket_bytes, stream) creates one that averages over
  //   `group`. A mean makes sense for gradients of the same parameters and different samples, or different positions of
  //   the samples: which group of `mesh` has those?
  todo("07.6");
  // END TODO 07.6
  return updates;
}

// The same, and tells them where the experts are.
inline std::deque<ChunkUpdate> make_updates(const Options& options, PipelineStage& stage, const Mesh& mesh,
                                            bool sharded, double bucket_bytes, cudaStream_t stream) {
  std::deque<ChunkUpdate> updates = updates_of(options, stage, mesh, sharded, bucket_bytes, stream);
  if (mesh.shape.expert > 1) {
    for (ChunkUpdate& chunk : updates) chunk.spread_experts(options, mesh);
  }
  return updates;
}

}  // namespace workshop
