// SPDX-License-Identifier: Apache-2.0
// Cuts a model into units, and the arrays of each unit into shards, one per rank. ZeRO and FSDP share this file.
//
// A unit consists of consecutive layers. Its parameters are one flat array, padded until the number of ranks divides
// its length. The gradients and the optimizer state have the same layout. A rank holds such an array whole, or only its
// shard of it: this is what distinguishes ZeRO's stages (Rajbhandari et al., SC 2020) and FSDP's modes (Zhao et al.,
// VLDB 2023).
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "model/model.h"

namespace workshop {

// The shards of an array of `count` values over the ranks of a group, and the one that belongs to rank `rank`.
struct Sharding {
  Sharding(int count, int ranks, int rank) : count(count), ranks(ranks), rank(rank) {
    // WRITE 06.A: Cut the array into one shard per rank: set `shard`, `offset` and `unpadded`, declared below.
    //   All shards have the same length, as short as possible, and lie in the order of the ranks. Together they may be
    //   longer than the array: the rest is padding, at the end. It may fill several shards, for example if there are
    //   more ranks than values.
    // TODO 06.1: Cut the array into shards, one per rank. Which one is this rank's?
    //   Set `shard` to the number of values in a shard, and `offset` to the index where this rank's shard begins. All
    //   shards have the same length, including padding, because NCCL's calls take one count for all ranks. Make them as
    //   short as possible. They lie in the order of the ranks. Which of 38 values does rank 3 of 4 own?
    shard = (count + ranks - 1) / ranks;
    offset = rank * shard;
    // END TODO 06.1
    unpadded = std::clamp(count - offset, 0, shard);
    // END WRITE 06.A
    probe("06.1", "values, ranks, values in a shard, offset of this rank's",
          std::vector<int>{count, ranks, shard, offset});
    if (padded() < count || offset < 0 || offset + shard > padded()) {
      fail(kFailed, std::to_string(ranks) + " shards of " + std::to_string(shard) + " values, this rank's from " +
                        std::to_string(offset) + " on, do not hold " + std::to_string(count) +
                        " values: see TODO 06.1, part of WRITE 06.A");
    }
  }

  int count, ranks, rank;
  int shard = 0;     // values in each shard; the last shards may end with padding, or be padding throughout
  int offset = 0;    // index of this rank's shard in the array
  int unpadded = 0;  // values of this rank's shard, without padding
  int padded() const { return shard * ranks; }
};

// Consecutive layers of the network. Bind it to the memory of its parameters and gradients before its first pass, and
// again whenever that memory changes.
struct Unit {
  Unit(const Network& network, LayerRange layers, int batch_size, int ranks, int rank, cudaStream_t stream)
      : model(network, batch_size, stream, layers, Storage::bound),
        sharding(model.count(), ranks, rank),
        activations(model.make_activations()) {}

  Model model;
  Sharding sharding;
  Activations activations;
};

// How large a unit must be: it takes layer after layer until it has `layers` layers and at least `parameters`
// parameters. The last unit takes the layers that are left.
struct UnitSize {
  int layers = 1, parameters = 0;
};

// Returns the layers of each unit, from the first unit to the last.
inline std::vector<LayerRange> cut_into_units(const Network& network, UnitSize size) {
  std::vector<LayerRange> units;
  // WRITE 06.B: Append the units to `units`, as the comment at UnitSize says.
  //   Layer i of the network, 0 … network.depth() - 1, has network.counts()[i] parameters, a std::int64_t. A LayerRange
  //   {first, last} does not include `last`. Every layer is in exactly one unit.
  const std::vector<std::int64_t> counts = network.counts();
  for (int first = 0, end = 0; first < network.depth(); first = end) {
    std::int64_t parameters = 0;
    while (end < network.depth() && (end < first + size.layers || parameters < size.parameters))
      parameters += counts[end++];
    units.push_back({first, end});
  }
  // END WRITE 06.B
  std::vector<int> numbers;
  for (const LayerRange& layers : units) numbers.insert(numbers.end(), {layers.first, layers.last});
  probe("06.B", "first layer of each unit, and the one behind its last", numbers);
  return units;
}

// Cuts the network into units for rank `rank` of `ranks`. Every rank owns one shard of every unit.
inline std::deque<Unit> make_units(const Network& network, UnitSize size, int batch_size, int ranks, int rank,
                                   cudaStream_t stream) {
  std::deque<Unit> units;
  std::vector<int> unpadded;
  for (const LayerRange& layers : cut_into_units(network, size)) {
    units.emplace_back(network, layers, batch_size, ranks, rank, stream);
    unpadded.push_back(units.back().sharding.unpadded);
  }
  probe("06.A", "values of this rank's shard of each unit, without padding", unpadded);
  return units;
}

inline std::string unit_name(int u) { return "unit " + std::to_string(u); }

// Copies this rank's shard of the unit's initial values to `shard`; padding is 0. Every rank draws all values up to the
// unit's last and keeps its own, so that they do not depend on the number of ranks. Waits for the stream.
inline void initialize_shard(const Unit& unit, std::uint64_t seed, Real* shard, cudaStream_t stream) {
  const Sharding& sharding = unit.sharding;
  std::vector<float> drawn = unit.model.initial_values(seed);
  drawn.resize(sharding.padded());
  const std::vector<Real> values(drawn.begin() + sharding.offset, drawn.begin() + sharding.offset + sharding.shard);
  CUDA_CHECK(cudaMemcpyAsync(shard, values.data(), values.size() * sizeof(Real), cudaMemcpyDefault, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Returns the parts of the model's tensors that are in this rank's shard, for a checkpoint. `weights` points to the
// shard's values in float32. Omits padding.
inline std::vector<TensorPart> parts_of_shard(const Model& model, const Sharding& sharding, float* weights) {
  return range_of(parts_of(model, nullptr), sharding.offset, sharding.offset + sharding.shard, weights);
}

}  // namespace workshop
