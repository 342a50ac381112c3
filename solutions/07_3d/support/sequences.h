// SPDX-License-Identifier: Apache-2.0
// What cuts the sequences in train_3d (--cp, chapter 08), and spreads experts (--ep, chapter 09). Without --cp,
// everything except cut_network() does nothing.
#pragma once

#include <optional>

#include "07_3d/mesh.h"
#include "07_3d/support/mesh_settings.h"
#include "08_context_parallel/sequence.h"
#include "08_context_parallel/support/context_models.h"
#include "09_expert_parallel/support/expert_models.h"
#include "common/training/training.h"

namespace workshop {

// In `place`, each rank of a context group counts as a replica, although these ranks share their samples. Returns the
// place in which the whole group counts as one replica. Only one rank of the group reports the losses.
inline ReplicaPlace share_samples(ReplicaPlace place, const Mesh& mesh) {
  place.replicas /= mesh.shape.context;
  place.replica /= mesh.shape.context;
  place.reports = place.reports && mesh.context_rank() == 0;
  return place;
}

// Makes the language model with its layers cut over the tensor group and its sequences over the context group (ring
// attention). With --experts, it has this rank's experts.
inline Network cut_network(const Options& options, const MeshSettings& settings, const Mesh& mesh) {
  if (options.gpt.experts > 0) return make_expert_network(options, {mesh.experts, mesh.tensor, mesh.context});
  const SequenceCut cut = cut_of(options, mesh.shape.context, "zigzag");
  return make_ring_network(options, cut, mesh.context, mesh.tensor, settings.sequence_parallel);
}

// Returns `data` with samples of all positions, from which OwnPositions takes this rank's.
inline DataSource whole_samples(DataSource data, const Options& options, const Mesh& mesh) {
  probe("07.I", "given to whole_samples: whether this rank reads the inputs", std::array{int{data.needs_x}});
  if (mesh.shape.context > 1) data.in = data.out = options.gpt.context;
  return data;
}

// This rank's part of batches and losses.
class OwnPositions {
 public:
  OwnPositions(const Options& options, const Mesh& mesh, cudaStream_t stream) : mesh_(mesh), stream_(stream) {
    if (mesh.shape.context == 1) return;
    cut_.emplace(cut_of(options, mesh.shape.context, "zigzag").of(mesh.context_rank()), options.batch_size, stream);
  }

  Batch operator()(const Batch& batch) { return cut_ ? (*cut_)(batch) : batch; }
  // Makes the losses those of whole samples.
  void average(const LossLog& losses) const {
    if (cut_) average_parts(losses, mesh_.context, stream_);
  }

 private:
  const Mesh& mesh_;
  cudaStream_t stream_;
  std::optional<BatchCut> cut_;
};

}  // namespace workshop
