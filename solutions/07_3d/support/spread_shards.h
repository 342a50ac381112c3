// SPDX-License-Identifier: Apache-2.0
// ZeRO stage 1 (chapter 06) for a chunk whose experts are spread over ranks (chapter 09): its shared parameters are
// divided among all replicas, those of experts among the ranks that have the same ones.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "01_single_gpu/optimizer.h"
#include "06_fsdp/units.h"
#include "07_3d/mesh.h"
#include "09_expert_parallel/moe_parallel.h"
#include "common/training/training.h"
#include "model/elementwise.h"

namespace workshop {

class SpreadShards {
 public:
  // `model` must be created with Storage::bound: this binds it to memory of its own. `mesh` must outlive this.
  SpreadShards(const Options& options, Model& model, const Mesh& mesh, cudaStream_t stream)
      : model_(model), stream_(stream) {
    // The calls of NCCL read a few values beyond a range, up to one for each rank.
    const int room = model.count() + mesh.data.size();
    for (auto& [buffer, kind] : {std::pair(&values_, Memory::parameters), std::pair(&grads_, Memory::gradients)}) {
      *buffer = DeviceBuffer<Real>(room, kind);
      CUDA_CHECK(cudaMemsetAsync(buffer->data(), 0, buffer->bytes(), stream));
    }
    model.bind(values_.data(), grads_.data());
    int largest = 0;
    for (const auto& [range, of_experts] : ranges_of_parameters(model.parameters())) {
      const Group& ranks = of_experts ? mesh.expert_replicas : mesh.data;
      // The gradients of an expert are sums over the ranks of mesh.experts, so they are divided by the number of these
      // ranks, too (average_gradients() of chapter 09).
      const float factor = of_experts ? 1.0f / static_cast<float>(mesh.shape.expert) : 1.0f;
      shards_.emplace_back(options, range, ranks, factor, stream);
      largest = std::max(largest, shards_.back().sharding.padded());
    }
    room_ = DeviceBuffer<Real>(largest, Memory::buckets);
  }

  // Averages the gradients: this rank gets those of its shards, in the model's memory.
  void average() {
    for (const Shard& shard : shards_) {
      const Extent own = shard.own();
      NCCL_CHECK(ncclReduceScatter(model_.grads() + shard.range.offset, room_.data(), shard.sharding.shard, kReal,
                                   ncclAvg, shard.ranks->comm(), stream_));
      copy(model_.grads() + own.offset, room_.data(), own.count);
      if (shard.factor != 1) launch(scale_by, own.count, stream_, model_.grads() + own.offset, shard.factor, own.count);
    }
  }

  // Updates this rank's shards. Afterwards, every rank has all parameters of the chunk.
  void update(double lr_factor) {
    for (Shard& shard : shards_) {
      const int own = shard.own().offset;
      shard.optimizer.step(model_.values() + own, model_.grads() + own, lr_factor);
    }
    gather();
  }

  void add_to(Training& training) {
    const std::vector<TensorPart> parts = parts_of(model_, nullptr);
    for (Shard& shard : shards_) {
      const Extent own = shard.own();
      Real* values = model_.values() + own.offset;
      float* weights = shard.optimizer.weights(values);
      OptimizerState state = shard.optimizer.state(values);
      const bool is_last = &shard == &shards_.back();
      state.loaded = [this, is_last, loaded = state.loaded] {
        if (loaded) loaded();
        if (is_last) gather();
      };
      training.add_all(range_of(parts, own.offset, own.offset + own.count, weights), weights, state);
    }
  }

  // This rank's shards, as parts of the chunk.
  std::vector<Extent> own() const {
    std::vector<Extent> extents;
    for (const Shard& shard : shards_) extents.push_back(shard.own());
    return extents;
  }

 private:
  // This rank's shard of a range of the chunk.
  struct Shard {
    Shard(const Options& options, Extent range, const Group& ranks, float factor, cudaStream_t stream)
        : range(range),
          ranks(&ranks),
          factor(factor),
          sharding(range.count, ranks.size(), ranks.rank()),
          optimizer(options, sharding.unpadded, stream) {}
    Extent own() const { return {range.offset + sharding.offset, sharding.unpadded}; }

    Extent range;
    const Group* ranks;
    float factor;
    Sharding sharding;
    Optimizer optimizer;
  };

  // Returns ranges of consecutive parameters, and whether they belong to experts.
  static std::vector<std::pair<Extent, bool>> ranges_of_parameters(const std::vector<Parameter>& parameters) {
    std::vector<std::pair<Extent, bool>> ranges;
    int offset = 0;
    for (const Parameter& p : parameters) {
      if (ranges.empty() || ranges.back().second != is_of_expert(p)) ranges.push_back({{offset, 0}, is_of_expert(p)});
      ranges.back().first.count += p.count();
      offset += p.count();
    }
    return ranges;
  }

  void gather() {
    for (const Shard& shard : shards_) {
      const Real* own = model_.values() + shard.range.offset + shard.sharding.offset;
      NCCL_CHECK(ncclAllGather(own, room_.data(), shard.sharding.shard, kReal, shard.ranks->comm(), stream_));
      copy(model_.values() + shard.range.offset, room_.data(), shard.range.count);
    }
  }
  void copy(Real* to, const Real* from, int count) const {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(Real), cudaMemcpyDeviceToDevice, stream_));
  }

  Model& model_;
  cudaStream_t stream_;
  DeviceBuffer<Real> values_, grads_, room_;
  std::deque<Shard> shards_;
};

}  // namespace workshop
