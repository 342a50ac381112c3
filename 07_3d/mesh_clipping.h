// SPDX-License-Identifier: Apache-2.0
// Clipping by the norm of the whole model's gradient. Each rank of the mesh has a part of that gradient.
#pragma once

#include <deque>

#include "05_tensor_parallel/shards.h"
#include "07_3d/chunk_update.h"
#include "07_3d/mesh.h"
#include "model/clip.h"

namespace workshop {

class MeshClipping {
 public:
  // `updates` are those of this rank's chunks; they and `mesh` must outlive this object. `sharded`: each replica has
  // only its shard of the gradients (ZeRO); otherwise all replicas have the same gradients.
  MeshClipping(const Options& options, const std::deque<ChunkUpdate>& updates, const Mesh& mesh, bool sharded,
               cudaStream_t stream)
      : mesh_(mesh),
        sharded_(sharded),
        mine_(options.needs_norm() ? gradients_of(updates, mesh, sharded) : GradientParts{}),
        clipping_(options, mine_.largest(), stream),
        stream_(stream) {}

  bool enabled() const { return clipping_.enabled(); }

  // Clips this rank's gradients by the norm of all averaged gradients, and stores that norm in *norm, which must be
  // zero. The norm is the same on every rank, and the same as in a single process.
  void clip(float* norm) const {
    probe("07.G", "given to clip: where the norm goes", norm, {1}, stream_);
    for (const GradientParts::Range part : mine_.held)
      probe("07.G", "given to clip: gradients", part.data(), {static_cast<int>(part.size())}, stream_);
    clipping_.add_squares(mine_, norm);
    const auto sum_over = [&](const Group& group) { clipping_.sum_over(group, norm); };
    // TODO 07.7: Sum the squares over the groups, so that every element of the whole gradient counts once.
    //   So far *norm is the sum of the squares of this rank's own gradients, as far as 05.11 lets them count.
    //   sum_over(group) adds up *norm over the group's ranks. Call it for each of mesh_.tensor, mesh_.pipeline and
    //   mesh_.data whose ranks have different elements. Does it matter whether the optimizer state is `sharded_`?
    todo("07.7");
    // END TODO 07.7
    if (mesh_.shape.expert > 1 && !sharded_) sum_over(mesh_.experts);
    probe("07.7", "square of the gradient's norm", norm, {1}, stream_);
    clipping_.take_root(norm);
    clipping_.scale(mine_, norm);
    probe("07.G", "norm of the whole gradient", norm, {1}, stream_);
    for (const GradientParts::Range part : mine_.held)
      probe("07.G", "clipped gradients", part.data(), {static_cast<int>(part.size())}, stream_);
  }

 private:
  static GradientParts gradients_of(const std::deque<ChunkUpdate>& updates, const Mesh& mesh, bool sharded) {
    GradientParts mine;
    for (const ChunkUpdate& chunk : updates) {
      const std::vector<Parameter>& parameters = chunk.model().parameters();
      Real* grads = chunk.model().grads();
      const auto count = [&](Extent within) {
        for (const Extent& range : counted_once(parameters, mesh.tensor, within))
          mine.counted.emplace_back(grads + range.offset, range.count);
      };
      for (const Extent& part : chunk.parts()) {
        mine.held.emplace_back(grads + part.offset, part.count);
        if (sharded || mesh.experts.rank() == 0) count(part);
      }
      if (sharded || mesh.experts.rank() == 0) continue;
      // With --ep, a parameter of no expert counts on only one of the ranks that together have all experts.
      int offset = 0;
      for (const Parameter& p : parameters) {
        if (is_of_expert(p)) count({offset, p.count()});
        offset += p.count();
      }
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
