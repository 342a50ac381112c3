// SPDX-License-Identifier: Apache-2.0
// Clipping by the norm of the whole model's gradient, of which each rank of the mesh has a part.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "01_single_gpu/clip.h"
#include "05_tensor_parallel/shards.h"
#include "chunk_update.h"
#include "mesh.h"

namespace workshop {

class MeshClipping {
 public:
  // `updates`, of the chunks of this rank, and `mesh` must live as long. `sharded`: a replica has its shard of the
  // gradients alone (ZeRO), else all replicas have the same.
  MeshClipping(const Options& options, std::deque<ChunkUpdate>& updates, const Mesh& mesh, bool sharded,
               cudaStream_t stream)
      : updates_(updates),
        mesh_(mesh),
        sharded_(sharded),
        stream_(stream),
        clipping_(options, largest_part(updates), stream) {
    if (!options.needs_norm()) return;
    for (const ChunkUpdate& chunk : updates) {
      counted_.push_back(counted_once(chunk.model().parameters(), mesh.tensor, chunk.part()));
    }
  }

  // *norm, which is zero at first, becomes the norm of all gradients, averaged, on every rank the same: the one that a
  // single process finds. This rank's are clipped by it. Nothing happens where no norm is needed and `norm` is null.
  void clip(float* norm) {
    if (norm == nullptr) return;
    for (std::size_t c = 0; c < updates_.size(); ++c) {
      const Real* grads = updates_[c].model().grads();
      for (const Extent& range : counted_[c]) clipping_.add_squares(grads + range.offset, range.count, norm);
    }
    const auto sum_over = [&](const Group& group) {
      if (group.size() > 1) NCCL_CHECK(ncclAllReduce(norm, norm, 1, ncclFloat, ncclSum, group.comm(), stream_));
    };
    // TODO 07.16: Add the squares up, so that every element of the whole gradient counts once.
    //   So far *norm has the squares of this rank's own gradients, those that 05.19 lets count. sum_over(group) adds up
    //   what the group's ranks have in it. Call it for each of mesh_.tensor, mesh_.pipeline and mesh_.data whose ranks
    //   have other elements. Does it matter if the optimizer's state is `sharded_`?
    todo("07.16");
    // END TODO 07.16
    probe("07.16", "square of the gradient's norm", norm, {1}, stream_);
    clipping_.finish(norm, {});
    for (ChunkUpdate& chunk : updates_) clipping_.clip(chunk.grads(), chunk.part().count, norm);
  }

 private:
  static int largest_part(const std::deque<ChunkUpdate>& updates) {
    int largest = 0;
    for (const ChunkUpdate& chunk : updates) largest = std::max(largest, chunk.part().count);
    return largest;
  }

  std::deque<ChunkUpdate>& updates_;
  const Mesh& mesh_;
  bool sharded_;
  cudaStream_t stream_;
  Clipping clipping_;
  std::vector<std::vector<Extent>> counted_;  // of each chunk
};

}  // namespace workshop
