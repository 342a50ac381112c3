// SPDX-License-Identifier: Apache-2.0
// From the gradients of a model chunk to its next parameters, over all data-parallel replicas of the chunk.
#pragma once

#include <optional>

#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp_overlap.h"
#include "06_fsdp/zero.h"
#include "common/nccl/group.h"
#include "common/record/record.h"
#include "common/training/training.h"

namespace workshop {

// Either averages the gradients in buckets behind the last backward pass (chapter 02) and lets each replica update all
// parameters; or gives each replica an average of its shard of the gradients, which it updates with its shard of the
// optimizer's state, and gathers the parameters (ZeRO, stage 1: chapter 06). "All" are those of the chunk, and, where
// tensor parallelism cuts it, this rank's part of them: its replicas have the same part.
class ChunkUpdate {
 public:
  // `replicas` are the ranks that hold this chunk, too. A sharded `model` must have been made with Storage::bound, and
  // is bound here, to memory that its shards fill.
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

  // Call in the last backward pass of a step, once the gradients of a layer are enqueued.
  void layer_ready(int layer) {
    if (reducer_) reducer_->on_layer_done(layer);
  }

  // Call when all gradients are enqueued. From then on this replica has the averages of its part of them.
  void average() {
    const Range range("average", stream_);
    if (shards_) shards_->scatter(model_.grads(), grads());
    if (reducer_) reducer_->finish();
  }

  const Model& model() const { return model_; }
  // This replica's part of the chunk: its gradients, averaged, and where that is among the chunk's parameters.
  Real* grads() const { return model_.grads() + part_.offset; }
  Extent part() const { return part_; }

  // Updates this replica's part at `lr_factor` times the learning rate, and the replicas have the whole chunk again.
  void update(double lr_factor) {
    const Range range("update", stream_);
    optimizer().step(values(), grads(), lr_factor);
    if (shards_) shards_->gather(values(), model_.values());
  }

  // Has checkpoints keep the chunk and this rank's optimizer state.
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
  DeviceBuffer<Real> values_, grads_;  // of the model and padding, if sharded
  std::optional<ShardedUpdate> shards_;
  std::optional<GradientReducer> reducer_;  // unless it is sharded, or there is nothing to average
  std::optional<Optimizer> optimizer_;      // unless it is sharded
};

}  // namespace workshop
