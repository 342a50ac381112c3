// SPDX-License-Identifier: Apache-2.0
// As in par.cu, but in chunks that follow each other: while one is spread within the first node, earlier ones cross,
// and still earlier ones are collected within the second node. Each chunk has the same fraction of every message
// between the nodes. A chunk begins to cross while the previous one is still in flight.
#include <iterator>

#include "golf/judge/all_to_all.h"

namespace {

using Task = golf::AllToAll;

// The size of each chunk in 2048ths, found by search.py. With these, a chunk is spread just when the previous one has
// left the links between the nodes.
constexpr int kUnits = 2048;
constexpr int kSizes[] = {34, 109, 114, 116, 114, 113, 118, 122, 122, 122, 122, 122, 122, 121, 120, 119, 114, 93, 31};

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

// Some of the units of each message.
struct Chunk {
  int first, size;

  void send(const float* from, int count, int peer, ncclComm_t comm, cudaStream_t stream) const {
    NCCL_CHECK(ncclSend(from + count / kUnits * first, count / kUnits * size, ncclFloat, peer, comm, stream));
  }
  void receive(float* to, int count, int peer, ncclComm_t comm, cudaStream_t stream) const {
    NCCL_CHECK(ncclRecv(to + count / kUnits * first, count / kUnits * size, ncclFloat, peer, comm, stream));
  }
};

void exchange_in_node(const golf::AllToAll& given, cudaStream_t stream) {
  const int rank = given.rank, first = rank / Task::kOnNode * Task::kOnNode;
  NCCL_CHECK(ncclGroupStart());
  for (int peer = first; peer < first + Task::kOnNode; ++peer) {
    if (peer == rank) continue;
    NCCL_CHECK(ncclSend(given.send + Task::send_offset(rank, peer), Task::count(rank, peer), ncclFloat,
                        peer % Task::kOnNode, given.node, stream));
    NCCL_CHECK(ncclRecv(given.receive + Task::receive_offset(rank, peer), Task::count(peer, rank), ncclFloat,
                        peer % Task::kOnNode, given.node, stream));
  }
  NCCL_CHECK(ncclGroupEnd());
}

void spread(const golf::AllToAll& given, const Chunk& chunk, cudaStream_t stream) {
  const float* const heavy = given.send + Task::send_offset(kFrom, kTo);
  NCCL_CHECK(ncclGroupStart());
  for (int via = 0; via < Task::kOnNode; ++via) {
    if (via == kFrom) continue;
    if (given.rank == kFrom) chunk.send(heavy + forwarded_offset(via), kForwarded, via, given.node, stream);
    if (given.rank == via) chunk.receive(given.scratch, kForwarded, kFrom, given.node, stream);
  }
  NCCL_CHECK(ncclGroupEnd());
}

void cross(const golf::AllToAll& given, const Chunk& chunk, ncclComm_t world, cudaStream_t stream) {
  const int rank = given.rank, other = (rank / Task::kOnNode + 1) % 2 * Task::kOnNode;
  NCCL_CHECK(ncclGroupStart());
  for (int peer = other; peer < other + Task::kOnNode; ++peer) {
    const int sent = rank == kFrom && peer == kTo ? kDirect : Task::count(rank, peer);
    const int received = rank == kTo && peer == kFrom ? kDirect : Task::count(peer, rank);
    chunk.send(given.send + Task::send_offset(rank, peer), sent, peer, world, stream);
    chunk.receive(given.receive + Task::receive_offset(rank, peer), received, peer, world, stream);
    if (peer != partner(rank) || rank == kFrom || rank == kTo) continue;
    if (rank < peer) chunk.send(given.scratch, kForwarded, peer, world, stream);
    if (rank > peer) chunk.receive(given.scratch, kForwarded, peer, world, stream);
  }
  NCCL_CHECK(ncclGroupEnd());
}

void collect(const golf::AllToAll& given, const Chunk& chunk, cudaStream_t stream) {
  float* const arriving = given.receive + Task::receive_offset(kTo, kFrom);
  NCCL_CHECK(ncclGroupStart());
  for (int via = Task::kOnNode; via < Task::kRanks; ++via) {
    if (via == kTo) continue;
    const int offset = forwarded_offset(partner(via));
    if (given.rank == kTo) chunk.receive(arriving + offset, kForwarded, via % Task::kOnNode, given.node, stream);
    if (given.rank == via) chunk.send(given.scratch, kForwarded, kTo % Task::kOnNode, given.node, stream);
  }
  NCCL_CHECK(ncclGroupEnd());
}

}  // namespace

void all_to_all(const golf::AllToAll& given) {
  const int rank = given.rank;
  const bool first_node = rank < Task::kOnNode;
  const cudaStream_t node = given.streams[0], crossing[] = {given.streams[1], given.streams[2]};
  golf::copy(given.receive + Task::receive_offset(rank, rank), given.send + Task::send_offset(rank, rank),
             Task::count(rank, rank), given.streams[3]);
  if (!first_node) exchange_in_node(given, node);  // before the first chunk arrives
  Chunk chunk = {0, 0};
  for (int c = 0; c < static_cast<int>(std::size(kSizes)); ++c) {
    chunk = {chunk.first + chunk.size, kSizes[c]};
    if (first_node) {
      if (c > 1) golf::wait(node, crossing[c % 2]);  // for chunk c - 2
      spread(given, chunk, node);
      golf::wait(crossing[c % 2], node);
    }
    cross(given, chunk, given.world[c % 2], crossing[c % 2]);
    if (!first_node) {
      golf::wait(node, crossing[c % 2]);
      collect(given, chunk, node);
    }
  }
  if (first_node) exchange_in_node(given, node);  // while the last chunk crosses
}
