// SPDX-License-Identifier: Apache-2.0
// Which rank has which layers: a network is cut into contiguous parts, one a rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/options.h"
#include "common/record.h"

namespace workshop {

enum class Partition {
  uniform,     // as equal numbers of layers as possible
  parameters,  // the largest number of parameters of a part as small as possible
  time,        // the largest time of a part as small as possible, that its layers take forward and backward
};

// The layers of an MLP differ less than the blocks of a language model from its embedding and its head, and than the
// layers of AlexNet, which the course balances by their parameters.
inline Partition default_partition(const Options& options) {
  return options.model == ModelKind::mlp ? Partition::uniform : Partition::parameters;
}

// The option --partition, where "" is the default.
inline void add_partition(Options& options, std::string& partition, const std::string& parts) {
  options.add("--partition", partition,
              "what the " + parts +
                  " get equal shares of: layers, parameters, or the time that a measurement at the start finds; "
                  "default: parameters, mlp: uniform",
              {"uniform", "parameters", "time"});
}
inline Partition partition_of(const std::string& partition, const Options& options) {
  if (partition.empty()) return default_partition(options);
  if (partition == "time") return Partition::time;
  return partition == "uniform" ? Partition::uniform : Partition::parameters;
}

// `parts` parts whose numbers of layers differ by at most one; the earlier parts have the longer ones.
inline std::vector<int> uniform_bounds(int layers, int parts) {
  std::vector<int> bounds = {0};
  for (int p = 0; p < parts; ++p) {
    int end = bounds.back();
    // TODO 03.1: Move `end` from the end of the part before to the end of part p.
    //   layers / parts layers for everyone leave layers % parts layers over: the first parts have one more each.
    todo("03.1");
    // END TODO 03.1
    bounds.push_back(end);
  }
  return bounds;
}

// Fills the parts one after the other, each with as many layers as it may have. If even that leaves layers over, so
// that the last bound is too small, no parts of at most `limit` parameters exist. `counts` are the parameters of each
// layer, or what else is to be balanced.
inline std::vector<int> fill_parts(const std::vector<std::int64_t>& counts, int parts, std::int64_t limit) {
  const int layers = static_cast<int>(counts.size());
  std::vector<int> bounds = {0};
  for (int p = 0; p < parts; ++p) {
    int end = bounds.back();
    // TODO 03.2: Move `end` from the end of the part before to the end of part p.
    //   The part takes layer after layer, counts[end] parameters each, while its sum stays at most `limit` and a layer
    //   is left for each of the parts - 1 - p parts that follow: no part may be empty.
    todo("03.2");
    // END TODO 03.2
    bounds.push_back(end);
  }
  return bounds;
}

// `parts` parts whose largest number of parameters is as small as possible: what DeepSpeed calls partition_balanced.
// The smallest limit that fill_parts() can keep is found by bisection.
inline std::vector<int> balanced_bounds(const std::vector<std::int64_t>& counts, int parts) {
  const int layers = static_cast<int>(counts.size());
  std::int64_t low = *std::max_element(counts.begin(), counts.end());  // no part can do with less
  std::int64_t high = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const bool possible = fill_parts(counts, parts, middle).back() == layers;
    possible ? high = middle : low = middle + 1;
  }
  return fill_parts(counts, parts, low);
}

// Bounds of the parts: part p has the layers [bounds[p], bounds[p + 1]); parts + 1 numbers from 0 to the number of
// layers. `counts` are the parameters of each layer, or its time. Every part has a layer: 1 <= parts <= layers is
// required.
inline std::vector<int> partition_layers(const std::vector<std::int64_t>& counts, int parts, Partition how) {
  const int layers = static_cast<int>(counts.size());
  const std::vector<int> bounds =
      how == Partition::uniform ? uniform_bounds(layers, parts) : balanced_bounds(counts, parts);

  const bool ascending = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal()) == bounds.end();
  if (!ascending || bounds.back() != layers) {
    std::string numbers;
    for (int bound : bounds) numbers += std::to_string(bound) + " ";
    fail(kFailed, "the bounds of the parts are " + numbers + "but must ascend from 0 to " + std::to_string(layers) +
                      ": see TODO " + (how == Partition::uniform ? "03.1" : "03.2"));
  }
  return bounds;
}

}  // namespace workshop
