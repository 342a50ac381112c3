// SPDX-License-Identifier: Apache-2.0
// The partition of layers among ranks, by number and by parameters, against every possible partition.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "03_model_parallel/model_parallel.h"

namespace workshop {
namespace {

using Bounds = std::vector<int>;

// Partitions the layers of an MLP with these widths.
Bounds partition_mlp(const std::vector<int>& widths, int parts, Partition how) {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) counts.push_back((std::int64_t{widths[i]} + 1) * widths[i + 1]);
  return partition_layers(counts, parts, how);
}

// Returns the number of parameters of the largest part.
std::int64_t largest_part(const std::vector<int>& widths, const Bounds& bounds) {
  std::int64_t largest = 0;
  for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
    std::int64_t sum = 0;
    for (int i = bounds[p]; i < bounds[p + 1]; ++i) sum += (std::int64_t{widths[i]} + 1) * widths[i + 1];
    largest = std::max(largest, sum);
  }
  return largest;
}

// Returns the smallest possible largest_part() over all partitions of the layers from bounds.back() on into `parts`
// parts.
std::int64_t smallest_possible(const std::vector<int>& widths, int parts, Bounds bounds = {0}) {
  const int layers = static_cast<int>(widths.size()) - 1;
  if (parts == 1) {
    bounds.push_back(layers);
    return largest_part(widths, bounds);
  }
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (int end = bounds.back() + 1; end <= layers - (parts - 1); ++end) {
    Bounds longer = bounds;
    longer.push_back(end);
    best = std::min(best, smallest_possible(widths, parts - 1, longer));
  }
  return best;
}

TEST(Partition, UniformPartsDifferByOneLayerAtMostAndTheFirstAreLonger) {
  EXPECT_EQ(partition_mlp({6, 4, 2}, 1, Partition::uniform), (Bounds{0, 2}));
  EXPECT_EQ(partition_mlp({6, 4, 2}, 2, Partition::uniform), (Bounds{0, 1, 2}));
  const std::vector<int> eleven_layers(12, 8);
  EXPECT_EQ(partition_mlp(eleven_layers, 4, Partition::uniform), (Bounds{0, 3, 6, 9, 11}));
  EXPECT_EQ(partition_mlp(eleven_layers, 11, Partition::uniform), (Bounds{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(Partition, ParametersWeighLayers) {
  // One layer has nearly all parameters, so it gets a rank of its own.
  EXPECT_EQ(partition_mlp({4, 4, 100, 100, 4, 4}, 3, Partition::parameters), (Bounds{0, 2, 3, 5}));
  // Layers of equal size are divided as evenly as by number.
  EXPECT_EQ(partition_mlp(std::vector<int>(9, 5), 4, Partition::parameters), (Bounds{0, 2, 4, 6, 8}));
}

TEST(Partition, NoPartIsEmpty) {
  // The first layers would all fit into one part.
  EXPECT_EQ(partition_mlp({1, 1, 1, 1, 1000}, 4, Partition::parameters), (Bounds{0, 1, 2, 3, 4}));
  EXPECT_EQ(partition_mlp({1000, 1000, 1, 1, 1}, 3, Partition::parameters).size(), 4u);
}

TEST(Partition, ParametersAreCountedBeyond32Bits) {
  const std::vector<int> widths(5, 60000);  // 3.6 billion parameters per layer
  EXPECT_EQ(partition_mlp(widths, 2, Partition::parameters), (Bounds{0, 2, 4}));
}

TEST(Partition, NoDivisionHasASmallerLargestPart) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int layers = 1 + static_cast<int>(random() % 9), parts = 1 + static_cast<int>(random() % layers);
    std::vector<int> widths;
    for (int i = 0; i <= layers; ++i) widths.push_back(1 + static_cast<int>(random() % 60));
    const Bounds bounds = partition_mlp(widths, parts, Partition::parameters);
    ASSERT_EQ(bounds.size(), static_cast<std::size_t>(parts) + 1);
    EXPECT_EQ(largest_part(widths, bounds), smallest_possible(widths, parts)) << "trial " << trial;
  }
}

}  // namespace
}  // namespace workshop
