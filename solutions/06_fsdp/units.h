// SPDX-License-Identifier: Apache-2.0
// A model cut into units, and each unit's parameters sharded across ranks: what ZeRO and FSDP have in common.
//
// A unit is some consecutive layers, whose parameters are one flat array, padded until the ranks divide it. Of every
// array that a unit needs, parameters, gradients, optimizer state, a rank may hold all or just its shard; what the
// stages of ZeRO (Rajbhandari et al., SC 2020) and the modes of FSDP (Zhao et al., VLDB 2023) differ in is which.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "01_single_gpu/model.h"

namespace workshop {

// `count` values over `ranks` ranks, in equal shards: a reduce-scatter and an all-gather know no other ones.
struct Sharding {
  Sharding(int count, int ranks) : count(count), ranks(ranks) {
    // TODO 06.1: How many values has a rank's shard?
    //   As few as possible, the same number on every rank, and together at least `count`. 38 values on 4 ranks?
    shard = (count + ranks - 1) / ranks;
    // END TODO 06.1
    probe("06.1", "values, ranks, shard", std::vector<int>{count, ranks, shard});
    if (padded() < count) {
      fail(kFailed, std::to_string(ranks) + " shards of " + std::to_string(shard) + " do not hold " +
                        std::to_string(count) + " values: see TODO 06.1");
    }
  }

  int count, ranks;
  int shard = 0;  // values of each rank; those of the last ones may be padding
  int padded() const { return shard * ranks; }
};

// Some layers of the network, with parameters and gradients bound to wherever they are at the time.
struct Unit {
  Unit(const Network& network, LayerRange layers, int batch_size, int ranks, cudaStream_t stream)
      : model(network, batch_size, stream, layers, Storage::bound),
        sharding(model.count(), ranks),
        activations(model.make_activations()) {}

  Model model;
  Sharding sharding;
  Activations activations;
};

// The network in units that take layer after layer until they have `layers` of them and at least `parameters`
// parameters; the last one has those that are left.
inline std::deque<Unit> make_units(const Network& network, int layers, int batch_size, int ranks, cudaStream_t stream,
                                   int parameters = 0) {
  std::deque<Unit> units;
  const std::vector<std::int64_t> counts = network.counts();
  for (int first = 0, end = 0; first < network.depth(); first = end) {
    for (std::int64_t sum = 0; end < network.depth() && (end < first + layers || sum < parameters); ++end)
      sum += counts[end];
    units.emplace_back(network, LayerRange{first, end}, batch_size, ranks, stream);
  }
  return units;
}

// The initial values of a rank's shard of the unit; what is padding is 0. All ranks draw the whole model's and keep
// theirs, so that the model is the same one for every number of ranks.
inline std::vector<Real> initial_shard(const Unit& unit, int rank, std::uint64_t seed) {
  std::vector<float> values = unit.model.initial_values(seed);
  values.resize(unit.sharding.padded());
  const int size = unit.sharding.shard;
  std::vector<Real> shard(size);
  // TODO 06.2: Copy the shard of rank `rank` from `values` to `shard`.
  //   The shards lie in the order of the ranks, `size` values each. std::copy_n(from, count, to).
  std::copy_n(values.begin() + rank * size, size, shard.begin());
  // END TODO 06.2
  return shard;
}

}  // namespace workshop
