// SPDX-License-Identifier: Apache-2.0
// A mesh of ranks: every rank has coordinates in three dimensions and belongs to one group of ranks along each of them.
//
//   rank = ((pipeline · d) + data) · t + tensor          P = p · d · t ranks
//
// Ranks that differ only in the dimension that varies fastest are neighbors, and launchers put neighbors on the same
// node. So the dimensions are ordered by what they need from their links:
//
//   tensor    two all-reduces per pair of layers and micro-batch, which nothing hides: they need links within a node
//   data      one average of all gradients per step: many bytes, but they hide behind the backward pass
//   pipeline  one activation per micro-batch and boundary, to one neighbor: the slowest links are fast enough
//
// If chapter 08 cuts the sequences, too (--cp), each replica has c ranks along the data dimension instead of one: they
// have the same parameters and samples, and different positions. Their keys and values travel in every layer, so they
// are neighbors: data = replica · c + context. When gradients are averaged, they count as replicas, too.
//
// If chapter 09 spreads experts over ranks (--ep), every e neighbors along the data dimension have all experts
// together. For all other parameters, they are replicas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/job/job.h"
#include "common/nccl/group.h"
#include "common/record/record.h"

namespace workshop {

struct MeshShape {
  int data = 1, pipeline = 1, tensor = 1;  // d, p, t
  int context = 1;                         // c: neighbors along the data dimension that share their samples
  int expert = 1;                          // e: neighbors along the data dimension that together have all experts
  std::int64_t ranks() const { return std::int64_t{data} * pipeline * tensor; }
};

// The position of a rank in the mesh.
struct Coordinates {
  int pipeline, data, tensor;
};

inline int rank_of(const Coordinates& c, const MeshShape& shape) {
  return (c.pipeline * shape.data + c.data) * shape.tensor + c.tensor;
}

// The inverse of rank_of().
inline Coordinates coordinates_of(int rank, const MeshShape& shape) {
  int pipeline = 0, data = 0, tensor = 0;
  // TODO 07.1: Compute the three coordinates of `rank`.
  //   rank_of() above is the inverse. / and % take the coordinates apart like the digits of a number: the tensor
  //   coordinate varies fastest, then the data coordinate.
  todo("07.1");
  // END TODO 07.1
  return {pipeline, data, tensor};
}

// ---- groups --------------------------------------------------------------------------------------------------------

class Mesh {
 public:
  // Collective over the job, whose number of ranks must be shape.ranks(). Every rank makes the same splits in the same
  // order; otherwise some would wait forever.
  Mesh(const MeshShape& shape, const Job& job) : shape(shape), at(coordinates_of(job.rank(), shape)) {
    probe("07.1", "pipeline, data and tensor coordinate", std::vector<int>{at.pipeline, at.data, at.tensor});
    if (rank_of(at, shape) != job.rank()) {
      fail(kFailed, "my coordinates, pipeline " + std::to_string(at.pipeline) + ", data " + std::to_string(at.data) +
                        ", tensor " + std::to_string(at.tensor) + ", are those of rank " +
                        std::to_string(rank_of(at, shape)) + ": see TODO 07.1, part of WRITE 07.A");
    }
    int color = 0, key = 0;
    // TODO 07.2: Set color and key of the tensor group: the ranks with the same layers and batches as this one.
    //   They differ only in their tensor coordinate. Combine the other two coordinates into one color, which no other
    //   group may have: `at` has the coordinates, `shape` the sizes. The key orders the ranks in the group: rank i of
    //   the group must have the tensor coordinate i.
    todo("07.2");
    // END TODO 07.2
    tensor = job.group().split(color, key, "tensor");

    // TODO 07.3: Set color and key of the data group: the ranks with the same parameters and different batches.
    //   They differ only in their data coordinate; proceed as above.
    todo("07.3");
    // END TODO 07.3
    data = job.group().split(color, key, "data");

    // TODO 07.4: Set color and key of the pipeline group: the ranks with the other layers of this rank's replica.
    //   They differ only in their pipeline coordinate; proceed as above. Each tensor rank has its own pipeline.
    todo("07.4");
    // END TODO 07.4
    pipeline = job.group().split(color, key, "pipeline");
    require("tensor", "07.2", tensor, shape.tensor, [this](int i) { return Coordinates{at.pipeline, at.data, i}; });
    require("data", "07.3", data, shape.data, [this](int i) { return Coordinates{at.pipeline, i, at.tensor}; });
    require("pipeline", "07.4", pipeline, shape.pipeline, [this](int i) { return Coordinates{i, at.data, at.tensor}; });
    if (shape.context == 1) {
      replicas = data;
    } else {
      context = data.split(replica(), context_rank(), "context");
      replicas = data.split(context_rank(), replica(), "replicas");
    }
    if (shape.expert > 1) {
      experts = data.split(at.data / shape.expert, at.data, "experts");
      expert_replicas = data.split(at.data % shape.expert, at.data, "expert replicas");
    }
  }
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int replica() const { return at.data / shape.context; }
  int context_rank() const { return at.data % shape.context; }

  const MeshShape shape;
  const Coordinates at;
  Group tensor, data, pipeline;
  Group context;                   // the ranks with the other positions of this rank's samples
  Group experts, expert_replicas;  // with --ep: the ranks that together have all experts, and those with the same ones
  Group replicas;  // the ranks with other samples: the data group or, with --cp, its ranks with the same positions

 private:
  // Ends the job unless rank i of the group has the coordinates member(i): with wrong groups, the job would hang or
  // train something else.
  template <typename Member>
  void require(const std::string& name, const std::string& todo, const Group& group, int size, Member member) const {
    std::vector<int> expected;
    for (int i = 0; i < size; ++i) expected.push_back(rank_of(member(i), shape));
    probe(todo.c_str(), "ranks of the " + name + " group", group.members());
    if (group.members() == expected) return;
    const auto list = [](const std::vector<int>& ranks) {
      std::string text;
      for (int rank : ranks) text += " " + std::to_string(rank);
      return text;
    };
    fail(kFailed, "my " + name + " group is made of the ranks" + list(group.members()) + "; expected" + list(expected) +
                      ", in this order: see TODO " + todo + ", part of WRITE 07.B");
  }
};

// ---- nodes ---------------------------------------------------------------------------------------------------------

// Returns the first rank of the first tensor group that spans several nodes, or -1. `nodes` has the node of each rank.
inline int tensor_group_across_nodes(const std::vector<int>& nodes, int tensor) {
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const std::size_t first = rank - rank % tensor;
    if (nodes[rank] != nodes[first]) return static_cast<int>(first);
  }
  return -1;
}

// Ends all ranks with status 2 if a tensor group spans several nodes. Collective over the job. The ranks of a node have
// consecutive numbers, so the first of them identifies the node.
inline void require_tensor_groups_within_nodes(const MeshShape& shape, const Job& job) {
  const Ranks& ranks = job.ranks();
  const int first = tensor_group_across_nodes(job.group().gather(ranks.rank - ranks.local_rank), shape.tensor);
  if (first < 0) return;
  usage_error(
      "--tp is '%d', which puts ranks %d to %d, a tensor group, on several nodes; expected a divisor of the ranks on "
      "each node, or --allow-tp-across-nodes",
      shape.tensor, first, first + shape.tensor - 1);
}

}  // namespace workshop
