// SPDX-License-Identifier: Apache-2.0
// The two groups that a rank of hybrid sharding is in.
#pragma once

#include <vector>

#include "common/group.h"
#include "common/record.h"

namespace workshop {

// The ranks of a shard group hold one model together, a shard each; those of a replicate group hold the same shard of
// different replicas of the model.
struct ShardGroups {
  Group shard, replicate;
};

// Shard groups of `size` ranks, which must divide the world. Collective over the world.
inline ShardGroups make_shard_groups(const Group& world, int size) {
  const int rank = world.rank();
  ShardGroups groups;
  // TODO 06.10: Split the world into shard groups of `size` adjacent ranks, and into replicate groups.
  //   groups.shard = world.split(color, key, "shard"), and groups.replicate likewise: ranks that give the same color
  //   come into one group, in the order of their keys, which is to be the order that they have in the world. Every rank
  //   makes both calls, in the same order. With size 2, ranks 0 1 | 2 3 are the shard groups: which two of them hold
  //   the same shard?
  groups.shard = world.split(rank / size, rank, "shard");
  groups.replicate = world.split(rank % size, rank, "replicate");
  // END TODO 06.10
  const Group &shard = groups.shard, &replicate = groups.replicate;
  probe("06.10", "rank in and size of the shard group, then of the replicate group",
        std::vector<int>{shard.rank(), shard.size(), replicate.rank(), replicate.size()});
  return groups;
}

}  // namespace workshop
