// SPDX-License-Identifier: Apache-2.0
// The parts of model parallelism that later chapters reuse: which rank holds which layers, and how the losses get from
// the last rank, which computes them, to rank 0, which prints them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/nccl/group.h"
#include "common/record/record.h"

namespace workshop {

// ---- the partition -------------------------------------------------------------------------------------------------

// What the partition balances.
enum class Partition {
  uniform,     // layers: the parts differ by at most one
  parameters,  // parameters: the largest part is as small as possible
  time,        // forward and backward time: the slowest part is as fast as possible
};

// Returns the bounds of `parts` parts whose numbers of layers differ by at most one. The first parts are the larger
// ones.
inline std::vector<int> uniform_bounds(int layers, int parts) {
  // WRITE 03.A: Return the bounds: 0, then the end of each part.
  //   These are parts + 1 numbers; the last is `layers`. Part p has the layers bounds[p] to bounds[p + 1] - 1. The
  //   layers that the division leaves over go to the first parts, one to each.
  std::vector<int> bounds = {0};
  for (int p = 0; p < parts; ++p) {
    int end = bounds.back();
    // TODO 03.1: Move `end` from the end of the previous part to the end of part p.
    //   Each part gets layers / parts layers. layers % parts layers are left over: the first parts get one more each.
    end += layers / parts + (p < layers % parts ? 1 : 0);
    // END TODO 03.1
    bounds.push_back(end);
  }
  return bounds;
  // END WRITE 03.A
}

// Fills one part after the other, each with as many layers as `limit` allows, and returns the bounds. If layers are
// left over (the last bound is less than the number of layers), then no parts of at most `limit` exist. `counts` holds
// the parameters of each layer, or whatever else is balanced.
inline std::vector<int> fill_parts(const std::vector<std::int64_t>& counts, int parts, std::int64_t limit) {
  // WRITE 03.B: Return the bounds of the parts, filled one after the other: 0, then the end of each part.
  //   A part takes the next layers, as many as it can: its sum of counts may be `limit`, but not more, and a layer must
  //   be left for each part that follows. A part whose first layer is larger than `limit` stays empty. A part's sum may
  //   be too large for an int.
  const int layers = static_cast<int>(counts.size());
  std::vector<int> bounds = {0};
  for (int p = 0; p < parts; ++p) {
    int end = bounds.back();
    // TODO 03.2: Move `end` from the end of the previous part to the end of part p.
    //   The part takes layer after layer, counts[end] parameters each, while its sum stays at most `limit` and at least
    //   one layer is left for each of the parts - 1 - p parts that follow: no part may be empty.
    const int last = layers - (parts - 1 - p);
    for (std::int64_t sum = 0; end < last && sum + counts[end] <= limit; ++end) sum += counts[end];
    // END TODO 03.2
    bounds.push_back(end);
  }
  return bounds;
  // END WRITE 03.B
}

// Returns the bounds of `parts` parts whose largest number of parameters is as small as possible, as DeepSpeed's
// partition_balanced does. Finds the smallest limit that fill_parts() can keep, by bisection.
inline std::vector<int> balanced_bounds(const std::vector<std::int64_t>& counts, int parts) {
  const int layers = static_cast<int>(counts.size());
  std::int64_t low = *std::max_element(counts.begin(), counts.end());  // some part has the largest layer
  std::int64_t high = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const bool possible = fill_parts(counts, parts, middle).back() == layers;
    possible ? high = middle : low = middle + 1;
  }
  return fill_parts(counts, parts, low);
}

// Returns the bounds of the parts: part p has the layers [bounds[p], bounds[p + 1]). These are parts + 1 numbers from 0
// to the number of layers. `counts` holds the parameters or the time of each layer. Requires 1 <= parts <= layers, so
// that every part gets a layer.
inline std::vector<int> partition_layers(const std::vector<std::int64_t>& counts, int parts, Partition how) {
  const int layers = static_cast<int>(counts.size());
  const std::vector<int> bounds =
      how == Partition::uniform ? uniform_bounds(layers, parts) : balanced_bounds(counts, parts);

  const bool ascending = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal()) == bounds.end();
  if (!ascending || bounds.back() != layers) {
    std::string numbers;
    for (int bound : bounds) numbers += std::to_string(bound) + " ";
    fail(kFailed, "the bounds of the parts are " + numbers + "but must ascend from 0 to " + std::to_string(layers) +
                      ": see TODO " +
                      (how == Partition::uniform ? "03.1, part of WRITE 03.A" : "03.2, part of WRITE 03.B"));
  }
  return bounds;
}

// ---- the losses ----------------------------------------------------------------------------------------------------

// Sends the losses of the epoch from the last stage, which computes them, to the first one, which prints them. Call it
// once per epoch on all stages.
inline void send_losses(const LossLog& losses, const Group& stages, cudaStream_t stream) {
  const int rank = stages.rank(), last = stages.size() - 1;
  if (last == 0) return;
  if (rank == last) {
    probe("03.5", "given to send_losses: losses of the epoch", losses.losses(), {losses.count()}, stream);
  }
  const ncclComm_t comm = stages.comm();
  // TODO 03.5: Send losses.losses(), losses.count() floats, from the last rank to the same place on rank 0.
  if (rank == last) NCCL_CHECK(ncclSend(losses.losses(), losses.count(), ncclFloat, 0, comm, stream));
  if (rank == 0) NCCL_CHECK(ncclRecv(losses.losses(), losses.count(), ncclFloat, last, comm, stream));
  // END TODO 03.5
  if (rank == 0) probe("03.5", "losses of the epoch", losses.losses(), {losses.count()}, stream);
}

}  // namespace workshop
