// SPDX-License-Identifier: Apache-2.0
// A model cut into units, and each unit's arrays cut into shards, one per rank: what ZeRO and FSDP have in common.
//
// A unit is some consecutive layers, whose parameters are one flat array, padded until the number of ranks divides it.
// A rank holds all of an array of this length (parameters, gradients, optimizer state) or only its shard of it. Which
// of them it holds whole is what ZeRO's stages (Rajbhandari et al., SC 2020) and FSDP's modes (Zhao et al., VLDB 2023)
// differ in.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "model/model.h"

namespace workshop {

// An array of `count` values over the ranks of a group, and the shard of it that belongs to rank `rank`.
struct Sharding {
  Sharding(int count, int ranks, int rank) : count(count), ranks(ranks), rank(rank) {
    // TODO 06.1: Cut the array into shards, one per rank. Which one is this rank's?
    //   Set `shard`, the number of values in a shard, and `offset`, where this rank's begins. NCCL's calls take one
    //   count for all ranks, so all shards are equally long, padding included, but no longer than they must be. They
    //   lie in the order of the ranks. What does rank 3 have of 38 values on 4 ranks?
    todo("06.1");
    // END TODO 06.1
    probe("06.1", "values, ranks, values in a shard, offset of this rank's",
          std::vector<int>{count, ranks, shard, offset});
    if (padded() < count || offset < 0 || offset + shard > padded()) {
      fail(kFailed, std::to_string(ranks) + " shards of " + std::to_string(shard) + " values, this rank's from " +
                        std::to_string(offset) + " on, do not hold " + std::to_string(count) +
                        " values: see TODO 06.1");
    }
  }

  int count, ranks, rank;
  int shard = 0;   // values in each shard; the last ones may be padding
  int offset = 0;  // of this rank's shard in the array
  int padded() const { return shard * ranks; }
  int unpadded() const { return std::clamp(count - offset, 0, shard); }  // values of this rank's shard, without padding
};

// Some layers of the network, with parameters and gradients bound to wherever they are at the time.
struct Unit {
  Unit(const Network& network, LayerRange layers, int batch_size, int ranks, int rank, cudaStream_t stream)
      : model(network, batch_size, stream, layers, Storage::bound),
        sharding(model.count(), ranks, rank),
        activations(model.make_activations()) {}

  Model model;
  Sharding sharding;
  Activations activations;
};

// What a unit is made of: layer after layer, until it has `layers` of them and at least `parameters` parameters. The
// last unit has those that are left.
struct UnitSize {
  int layers = 1, parameters = 0;
};

// Cuts the network into units, whose arrays have a shard on each of `ranks` ranks: this is rank `rank` of them.
inline std::deque<Unit> make_units(const Network& network, UnitSize size, int batch_size, int ranks, int rank,
                                   cudaStream_t stream) {
  std::deque<Unit> units;
  const std::vector<std::int64_t> counts = network.counts();
  for (int first = 0, end = 0; first < network.depth(); first = end) {
    for (std::int64_t sum = 0; end < network.depth() && (end < first + size.layers || sum < size.parameters); ++end)
      sum += counts[end];
    units.emplace_back(network, LayerRange{first, end}, batch_size, ranks, rank, stream);
  }
  return units;
}

inline std::string unit_name(int u) { return "unit " + std::to_string(u); }

// Copies this rank's shard of the unit's initial values to shard[sharding.shard]; padding is 0. All ranks draw the
// whole model's values and keep theirs, so that the model does not depend on the number of ranks. Waits for the stream.
inline void initialize_shard(const Unit& unit, std::uint64_t seed, Real* shard, cudaStream_t stream) {
  const Sharding& sharding = unit.sharding;
  std::vector<float> drawn = unit.model.initial_values(seed);
  drawn.resize(sharding.padded());
  const std::vector<Real> values(drawn.begin() + sharding.offset, drawn.begin() + sharding.offset + sharding.shard);
  CUDA_CHECK(cudaMemcpyAsync(shard, values.data(), values.size() * sizeof(Real), cudaMemcpyDefault, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

// What a checkpoint keeps of this rank's shard of the model's array, which lies in float32 from `weights` on. Of
// padding it keeps nothing.
inline std::vector<TensorPart> parts_of_shard(const Model& model, const Sharding& sharding, float* weights) {
  return range_of(parts_of(model, nullptr), sharding.offset, sharding.offset + sharding.shard, weights);
}

}  // namespace workshop
