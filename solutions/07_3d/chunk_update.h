// SPDX-License-Identifier: Apache-2.0
// Turns the gradients of a model chunk into its next parameters, together with all data-parallel replicas of the chunk.
#pragma once

#include <optional>

#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp_overlap.h"
#include "06_fsdp/zero.h"
#include "common/nccl/group.h"
#include "common/record/record.h"
#include "common/training/training.h"

namespace workshop {

// The update of one chunk.
// Not sharded: averages the gradients in buckets behind the last backward pass, and each replica updates all parameters
// (chapter 02). Sharded (ZeRO stage 1, chapter 06): each replica receives the averages of its shard of the gradients,
// updates its shard of the parameters with its shard of the optimizer state, and the parameters are gathered.
// If tensor parallelism cuts the chunk, "all" means this rank's part: its replicas have the same part.
class ChunkUpdate {
 public:
  // `replicas` are the ranks that hold the same chunk. If `sharded`, `model` must be created with Storage::bound; the
  // constructor binds it to memory with room for the padding of the shards.
  ChunkUpdate(const Options& options, Model& model, const Group& replicas, bool sharded, double bucket_bytes,
              cudaStream_t stream)
      : model_(model), stream_(stream), part_{0, model.count()} {
    probe("07.6", "ranks that average their gradients", replicas.members());
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
  }

  // Call in the last backward pass of a step, after enqueueing the gradients of a layer.
  void layer_ready(int layer) {
    if (reducer_) reducer_->on_layer_done(layer);
  }

  // Call after all gradients are enqueued. Afterwards this replica has the averages of its part of the gradients.
  void average() {
    const Range range("average", stream_);
    if (shards_) shards_->scatter(model_.grads(), grads());
    if (reducer_) reducer_->finish();
  }

  const Model& model() const { return model_; }
  // This replica's part of the chunk: its averaged gradients, and its extent within the chunk's parameters.
  Real* grads() const { return model_.grads() + part_.offset; }
  Extent part() const { return part_; }

  // Updates this replica's part at `lr_factor` times the learning rate. Afterwards every replica has the whole chunk.
  void update(double lr_factor) {
    const Range range("update", stream_);
    optimizer().step(values(), grads(), lr_factor);
    if (shards_) shards_->gather(values(), model_.values());
  }

  // Adds the chunk and this rank's optimizer state to the checkpoints.
  void add_to(Training& training) {
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
  DeviceBuffer<Real> values_, grads_;  // the model's and padding, if sharded
  std::optional<ShardedUpdate> shards_;
  std::optional<GradientReducer> reducer_;  // unless sharded, or there is nothing to average
  std::optional<Optimizer> optimizer_;      // unless sharded
};

}  // namespace workshop
