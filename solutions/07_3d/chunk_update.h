// SPDX-License-Identifier: Apache-2.0
// From the gradients of a model chunk to its next parameters, over all data-parallel replicas of the chunk.
#pragma once

#include <optional>

#include "01_single_gpu/optimizer.h"
#include "02_ddp/buckets.h"
#include "06_fsdp/units.h"
#include "common/group.h"
#include "common/training.h"

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
      : model_(model), replicas_(replicas), stream_(stream) {
    probe("07.6", "ranks that average their gradients", replicas.members());
    if (sharded) {
      shards_.emplace(model.count(), replicas.size());
      for (auto& [buffer, kind] : {std::pair(&values_, Memory::parameters), std::pair(&grads_, Memory::gradients)}) {
        *buffer = DeviceBuffer<Real>(shards_->padded(), kind);
        CUDA_CHECK(cudaMemsetAsync(buffer->data(), 0, buffer->bytes(), stream));
      }
      model.bind(values_.data(), grads_.data());
    } else if (replicas.size() > 1) {
      average_.emplace(model, bucket_bytes, replicas, stream);
    }
    optimizer_.emplace(options, sharded ? shards_->shard : model.count(), stream);
  }

  // Call in the last backward pass of a step, once the gradients of a layer are enqueued.
  void layer_ready(int layer) {
    if (average_) average_->layer_ready(layer);
  }

  // Call when all gradients are enqueued. From then on this replica has the averages of its part of them.
  void average() {
    const Range range("average", stream_);
    if (shards_) return scatter_gradients();
    if (average_) average_->finish();
  }

  const Model& model() const { return model_; }
  // This replica's part of the chunk: its gradients, averaged, and where that is among the chunk's parameters.
  Real* grads() const { return model_.grads() + part().offset; }
  Extent part() const {
    return shards_ ? Extent{replicas_.rank() * shards_->shard, shards_->shard} : Extent{0, model_.count()};
  }

  // Updates this replica's part at `lr_factor` times the learning rate, and the replicas have the whole chunk again.
  void update(double lr_factor) {
    const Range range("update", stream_);
    optimizer_->step(model_.values() + part().offset, grads(), lr_factor);
    if (shards_) gather_values();
  }

  // Has checkpoints keep the chunk and this rank's optimizer state.
  void add_to(Training& training) {
    const auto [first, count] = part();
    Real* values = model_.values() + first;
    float* weights = optimizer_->weights(values);
    OptimizerState state = optimizer_->state(values);
    if (shards_) {
      state.loaded = [this, loaded = state.loaded] {
        if (loaded) loaded();
        gather_values();
      };
    }
    training.add_all(range_of(parts_of(model_, nullptr), first, first + count, weights), weights, state);
  }

 private:
  void scatter_gradients() {
    const int shard = shards_->shard;
    Real* grad = grads_.data() + replicas_.rank() * shard;  // this rank's, [shard]
    // TODO 07.8: Average the gradients over the replicas, of which each gets its shard alone, in place.
    //   One NCCL call: from grads_.data() to `grad`, over replicas_.comm(), on stream_. Its count is that of a shard.
    NCCL_CHECK(ncclReduceScatter(grads_.data(), grad, shard, kReal, ncclAvg, replicas_.comm(), stream_));
    // END TODO 07.8
    probe("07.8", "gradients of this rank's shard, averaged", grad, {shard}, stream_);
  }

  void gather_values() {
    const int shard = shards_->shard;
    const Real* value = values_.data() + replicas_.rank() * shard;  // this rank's, [shard]
    // TODO 07.9: Give every replica the updated parameters of all shards, in place.
    //   One NCCL call: from `value` to values_.data(). Its count is that of a shard.
    NCCL_CHECK(ncclAllGather(value, values_.data(), shard, kReal, replicas_.comm(), stream_));
    // END TODO 07.9
    probe("07.9", "parameters of all shards", values_.data(), {model_.count()}, stream_);
  }

  Model& model_;
  const Group& replicas_;
  cudaStream_t stream_;
  std::optional<OverlappedAverage> average_;  // unless there is nothing to average, or it is sharded
  std::optional<Sharding> shards_;
  DeviceBuffer<Real> values_, grads_;  // of the model and padding, if sharded
  std::optional<Optimizer> optimizer_;
};

}  // namespace workshop
