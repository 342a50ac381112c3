// SPDX-License-Identifier: Apache-2.0
// In three steps: rank 1 spreads a part of what it has for rank 6 over its node, all ranks send to the other node, and
// rank 6's node collects. So all four links between the nodes carry the same.
#include "golf/judge/all_to_all.h"

namespace {

using Task = golf::AllToAll;

constexpr int kKiB = 1024 / sizeof(float);
constexpr int kFrom = 1, kTo = 6;
constexpr int kForwarded = 200 * kKiB, kDirect = 160 * kKiB;  // by each other rank of kFrom's node; by kFrom itself

// Returns the rank of the other node that gets what this rank forwards, or the reverse.
int partner(int rank) {
  constexpr int kPartners[Task::kRanks] = {4, 6, 5, 7, 0, 2, 1, 3};
  return kPartners[rank];
}

// Returns where the part of kFrom's elements for kTo that rank `via` forwards begins among them.
int forwarded_offset(int via) { return kDirect + (via == 0 ? 0 : via - 1) * kForwarded; }

void send(const float* from, int count, int peer, ncclComm_t comm, cudaStream_t stream) {
  NCCL_CHECK(ncclSend(from, count, ncclFloat, peer, comm, stream));
}
void receive(float* to, int count, int peer, ncclComm_t comm, cudaStream_t stream) {
  NCCL_CHECK(ncclRecv(to, count, ncclFloat, peer, comm, stream));
}

}  // namespace

void all_to_all(const golf::AllToAll& given) {
  const int rank = given.rank;
  const bool first_node = rank < Task::kOnNode;
  const ncclComm_t world = given.world[0];
  const cudaStream_t stream = given.streams[0];
  const float* const heavy = given.send + Task::send_offset(rank, kTo);       // on kFrom
  float* const arriving = given.receive + Task::receive_offset(rank, kFrom);  // on kTo
  golf::copy(given.receive + Task::receive_offset(rank, rank), given.send + Task::send_offset(rank, rank),
             Task::count(rank, rank), stream);

  // Messages within a node, and what is to be forwarded.
  NCCL_CHECK(ncclGroupStart());
  for (int peer = first_node ? 0 : Task::kOnNode; peer < (first_node ? Task::kOnNode : Task::kRanks); ++peer) {
    if (peer == rank) continue;
    send(given.send + Task::send_offset(rank, peer), Task::count(rank, peer), peer, world, stream);
    receive(given.receive + Task::receive_offset(rank, peer), Task::count(peer, rank), peer, world, stream);
    if (rank == kFrom) send(heavy + forwarded_offset(peer), kForwarded, peer, world, stream);
    if (peer == kFrom) receive(given.scratch, kForwarded, peer, world, stream);
  }
  NCCL_CHECK(ncclGroupEnd());

  // Messages between the nodes.
  NCCL_CHECK(ncclGroupStart());
  for (int peer = first_node ? Task::kOnNode : 0; peer < (first_node ? Task::kRanks : Task::kOnNode); ++peer) {
    if (rank == kFrom && peer == kTo) {
      send(heavy, kDirect, peer, world, stream);
    } else {
      send(given.send + Task::send_offset(rank, peer), Task::count(rank, peer), peer, world, stream);
    }
    if (rank == kTo && peer == kFrom) {
      receive(arriving, kDirect, peer, world, stream);
    } else {
      receive(given.receive + Task::receive_offset(rank, peer), Task::count(peer, rank), peer, world, stream);
    }
    if (peer != partner(rank) || rank == kFrom || rank == kTo) continue;
    if (first_node) send(given.scratch, kForwarded, peer, world, stream);
    if (!first_node) receive(given.scratch, kForwarded, peer, world, stream);
  }
  NCCL_CHECK(ncclGroupEnd());

  if (first_node) return;
  NCCL_CHECK(ncclGroupStart());
  for (int via = Task::kOnNode; via < Task::kRanks; ++via) {
    if (via == kTo) continue;
    if (rank == kTo) receive(arriving + forwarded_offset(partner(via)), kForwarded, via, world, stream);
    if (rank == via) send(given.scratch, kForwarded, kTo, world, stream);
  }
  NCCL_CHECK(ncclGroupEnd());
}
