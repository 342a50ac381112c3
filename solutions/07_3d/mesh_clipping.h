// SPDX-License-Identifier: Apache-2.0
// Clipping by the norm of the whole model's gradient, of which each rank of the mesh has a part.
#pragma once

#include <deque>

#include "05_tensor_parallel/shards.h"
#include "07_3d/chunk_update.h"
#include "07_3d/mesh.h"
#include "model/clip.h"

namespace workshop {

class MeshClipping {
 public:
  // `updates`, of the chunks of this rank, and `mesh` must live as long. `sharded`: a replica has only its shard of the
  // gradients (ZeRO), else all replicas have the same.
  MeshClipping(const Options& options, const std::deque<ChunkUpdate>& updates, const Mesh& mesh, bool sharded,
               cudaStream_t stream)
      : mesh_(mesh),
        sharded_(sharded),
        mine_(options.needs_norm() ? gradients_of(updates, mesh.tensor) : GradientParts{}),
        clipping_(options, mine_.largest(), stream),
        stream_(stream) {}

  bool enabled() const { return clipping_.enabled(); }

  // Makes *norm, which is zero at first, the norm of all gradients, averaged: the one that a single process finds, and
  // the same on every rank. Clips this rank's gradients by it.
  void clip(float* norm) const {
    clipping_.add_squares(mine_, norm);
    const auto sum_over = [&](const Group& group) { clipping_.sum_over(group, norm); };
    // TODO 07.7: Add the squares up, so that every element of the whole gradient counts once.
    //   So far *norm has the squares of this rank's own gradients, those that 05.11 lets count. sum_over(group) adds up
    //   what the group's ranks have in it. Call it for each of mesh_.tensor, mesh_.pipeline and mesh_.data whose ranks
    //   have other elements. Does it matter if the optimizer's state is `sharded_`?
    sum_over(mesh_.tensor);
    sum_over(mesh_.pipeline);
    if (sharded_) sum_over(mesh_.data);
    // END TODO 07.7
    probe("07.7", "square of the gradient's norm", norm, {1}, stream_);
    clipping_.take_root(norm);
    clipping_.scale(mine_, norm);
  }

 private:
  static GradientParts gradients_of(const std::deque<ChunkUpdate>& updates, const Group& tensor) {
    GradientParts mine;
    for (const ChunkUpdate& chunk : updates) {
      mine.held.emplace_back(chunk.grads(), chunk.part().count);
      for (const Extent& range : counted_once(chunk.model().parameters(), tensor, chunk.part()))
        mine.counted.emplace_back(chunk.model().grads() + range.offset, range.count);
    }
    return mine;
  }

  const Mesh& mesh_;
  bool sharded_;
  GradientParts mine_;
  Clipping clipping_;
  cudaStream_t stream_;
};

}  // namespace workshop
