// SPDX-License-Identifier: Apache-2.0
// Three more ways to all-reduce a vector: recursive doubling and a tree, from sends and receives, and two levels, from
// collectives within the nodes and between them. Compares the results with ncclAllReduce, and their times.
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "00_collectives/support/sum_check.h"
#include "common/device/launch.h"
#include "common/nccl/group.h"
#include "common/nccl/off_the_record.h"
#include "common/record/record.h"

namespace {

using namespace workshop;

__global__ void add(float* sum, const float* x, int count) {
  for (int i : grid_stride(count)) sum[i] += x[i];
}

// The ranks that reduce, and the stream that they use.
struct ReducingRanks {
  ncclComm_t comm;
  cudaStream_t stream;
  int rank, world;
};

// ---- recursive doubling --------------------------------------------------------------------------------------------

// Replaces data[count] on every rank with its sum over all ranks, whose number must be a power of two. `received` has
// room for `count` elements.
void recursive_doubling(float* data, float* received, int count, const ReducingRanks& ranks) {
  for (int distance = 1; distance < ranks.world; distance *= 2) {
    int partner = 0;
    // TODO 00.16: Set `partner` to the rank that this rank exchanges vectors with.
    //   Before this step, the `distance` ranks of each block (ranks 0 to distance - 1, the next `distance` ranks, …)
    //   have the same sum. Two neighboring blocks become one: each rank of the lower block exchanges with the rank of
    //   the same place in the upper block. In binary, the numbers of the two ranks differ in one digit only.
    todo("00.16");
    // END TODO 00.16
    probe("00.16", "rank to exchange with", std::array{partner});
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(data, count, ncclFloat, partner, ranks.comm, ranks.stream));
    NCCL_CHECK(ncclRecv(received, count, ncclFloat, partner, ranks.comm, ranks.stream));
    NCCL_CHECK(ncclGroupEnd());
    launch(add, count, ranks.stream, data, received, count);
    probe("00.16", "sum so far", data, {count}, ranks.stream);
  }
  probe("00.I", "vector after recursive doubling", data, {count}, ranks.stream);
}

// ---- a tree --------------------------------------------------------------------------------------------------------

// The role of a rank in a step of the tree in which a child and its parent are `distance` ranks apart. Many ranks have
// no role.
struct TreeStep {
  bool is_child, is_parent;  // of rank - distance; of rank + distance
};

TreeStep tree_step(int distance, const ReducingRanks& ranks) {
  bool is_child = false, is_parent = false;
  // TODO 00.17: Set is_child and is_parent.
  //   The parents of a step are the ranks whose numbers are multiples of 2·distance. The child of parent r is rank
  //   r + distance, if there is such a rank. The number of ranks, ranks.world, need not be a power of two.
  todo("00.17");
  // END TODO 00.17
  probe("00.17", "whether child, whether parent", std::array{int{is_child}, int{is_parent}});
  return {is_child, is_parent};
}

// Leaves the sum over all ranks in the data[count] of rank 0. On the other ranks, partial sums remain.
void tree_reduce(float* data, float* received, int count, const ReducingRanks& ranks) {
  for (int distance = 1; distance < ranks.world; distance *= 2) {
    const auto [is_child, is_parent] = tree_step(distance, ranks);
    if (is_child) NCCL_CHECK(ncclSend(data, count, ncclFloat, ranks.rank - distance, ranks.comm, ranks.stream));
    if (is_parent) {
      NCCL_CHECK(ncclRecv(received, count, ncclFloat, ranks.rank + distance, ranks.comm, ranks.stream));
      launch(add, count, ranks.stream, data, received, count);
    }
    probe("00.17", "sum over this rank's part of the tree", data, {count}, ranks.stream);
  }
}

// Copies rank 0's data[count] to all ranks.
void tree_broadcast(float* data, int count, const ReducingRanks& ranks) {
  int distance = 1;
  while (2 * distance < ranks.world) distance *= 2;
  for (; distance >= 1; distance /= 2) {
    const auto [is_child, is_parent] = tree_step(distance, ranks);
    // TODO 00.18: Send the vector from the parents of this step to their children.
    //   A child receives it in `data` from rank - distance; a parent sends it to rank + distance.
    todo("00.18");
    // END TODO 00.18
    probe("00.18", "vector after this step", data, {count}, ranks.stream);
  }
  probe("00.J", "vector after the broadcast", data, {count}, ranks.stream);
}

// ---- two levels ----------------------------------------------------------------------------------------------------

// `node`: the ranks of this rank's node. `across`: the ranks with the same place on their nodes, one of each node.
struct Levels {
  Group node, across;
};

// Replaces data[count] on every rank with its sum over all ranks. The number of ranks of a node must divide `count`.
void two_levels(float* data, int count, const Levels& levels, cudaStream_t stream) {
  const int shard = count / levels.node.size();
  float* const mine = data + levels.node.rank() * shard;
  NCCL_CHECK(ncclReduceScatter(data, mine, shard, ncclFloat, ncclSum, levels.node.comm(), stream));
  // TODO 00.19: Sum this rank's shard over all nodes, in place.
  //   It is the `shard` elements from `mine` on. The ranks of levels.across have the same shard of their nodes' sums.
  todo("00.19");
  // END TODO 00.19
  probe("00.19", "shard of the whole sum", mine, {shard}, stream);
  NCCL_CHECK(ncclAllGather(mine, data, shard, ncclFloat, levels.node.comm(), stream));
  probe("00.K", "vector after two levels", data, {count}, stream);
}

// ---- the comparison ------------------------------------------------------------------------------------------------

struct Algorithm {
  std::string name;
  std::function<void(float* data)> enqueue;
};

// Sums known vectors with the algorithm, compares the result with ncclAllReduce's, and prints the time of a second sum.
// Returns whether the result is right.
bool check_and_time(const Algorithm& algorithm, const std::vector<float>& nccl, const Job& job, cudaStream_t stream) {
  DeviceBuffer<float> data(nccl.size(), Memory::data);
  data.upload(vector_of(job.rank(), static_cast<int>(nccl.size())), stream);
  algorithm.enqueue(data.data());  // also connects the ranks
  const double difference = difference_of(data.download(stream), nccl, algorithm.name, job);
  const OffTheRecord off_the_record;
  const double seconds = seconds_of([&] { algorithm.enqueue(data.data()); }, job, stream);
  record_value("seconds of " + algorithm.name, seconds);
  print0("%-18s  %12.2f us\n", algorithm.name.c_str(), seconds * 1e6);
  return difference >= 0;
}

}  // namespace

int main(int argc, char** argv) {
  int count = 1000, on_node = 0;
  Options options("00_collectives/all_reduces", "Compares three ways to all-reduce a vector with NCCL's");
  options.without_training();
  options.add("--count", count, "elements of the vector that is reduced", 1, 1 << 24);
  options.add("--ranks-per-node", on_node, "for two levels; default: all ranks are on one node", 1, 1 << 20);
  options.parse(argc, argv);
  Job job(options);
  if (on_node == 0) on_node = job.world();
  if (job.world() % on_node != 0)
    usage_error("--ranks-per-node is '%d'; expected a divisor of the %d ranks", on_node, job.world());
  Stream stream;
  const ReducingRanks ranks = {job.comm(), stream, job.rank(), job.world()};
  const Levels levels = {job.group().split(job.rank() / on_node, job.rank(), "node"),
                         job.group().split(job.rank() % on_node, job.rank(), "across")};
  count = (count + on_node - 1) / on_node * on_node;  // two levels need shards of equal length

  DeviceBuffer<float> by_nccl(count, Memory::data), received(count, Memory::buckets);
  by_nccl.upload(vector_of(job.rank(), count), stream);
  const auto nccl = [&](float* data) {
    NCCL_CHECK(ncclAllReduce(data, data, count, ncclFloat, ncclSum, job.comm(), stream));
  };
  nccl(by_nccl.data());
  const std::vector<float> expected = by_nccl.download(stream);

  std::vector<Algorithm> algorithms;
  const bool power_of_two = (job.world() & (job.world() - 1)) == 0;
  if (power_of_two) {
    algorithms.push_back(
        {"recursive doubling", [&](float* data) { recursive_doubling(data, received.data(), count, ranks); }});
  }
  algorithms.push_back({"tree", [&](float* data) {
                          tree_reduce(data, received.data(), count, ranks);
                          tree_broadcast(data, count, ranks);
                        }});
  algorithms.push_back({"two levels", [&](float* data) { two_levels(data, count, levels, stream); }});
  algorithms.push_back({"ncclAllReduce", nccl});

  print0("%d ranks, %d per node, %d elements\n", job.world(), on_node, count);
  if (!power_of_two) print0("recursive doubling left out: it needs a power of two of ranks\n");
  bool right = true;
  for (const Algorithm& algorithm : algorithms) right = check_and_time(algorithm, expected, job, stream) && right;
  if (std::ranges::min(job.group().gather(int{right})) == 0) return kFailed;
  print0("all agree with ncclAllReduce up to rounding\n");
  return 0;
}
