// SPDX-License-Identifier: Apache-2.0
// Many small pieces. One group of messages reduces a piece and gathers the one before the previous one, so it waits
// only for the products of its own piece. The groups are on two streams in turn: a group begins while the messages of
// the previous one are still in flight.
#include <iterator>

#include "golf/judge/tensor_overlap.h"

namespace {

using Task = golf::TensorOverlap;

// Rows of each piece, found by search.py. With these, the messages of a group have left the link just when the products
// of the next piece are done.
constexpr int kRows[] = {8, 8, 8, 9, 8, 8, 9, 8, 8, 9, 9, 8, 8, 9, 9, 8, 8, 8, 9, 8, 8, 8, 8, 8, 8, 8, 8, 9, 8, 8, 8};
constexpr int kPieces = std::size(kRows);

// y and what arrives are a part for each rank, one after the other.
struct Piece {
  const float* x;
  float *h, *y, *received;
  int rows;

  int part() const { return rows * Task::kWidth / Task::kRanks; }
};

void compute(const golf::TensorOverlap& given, const Piece& piece, cudaStream_t stream) {
  golf::multiply(piece.x, given.W1, piece.h, piece.rows, Task::kWidth, Task::kFeatures, stream);
  golf::gelu(piece.h, piece.rows * Task::kFeatures, stream);
  golf::multiply(piece.h, given.W2, piece.y, piece.rows, Task::kFeatures, Task::kWidth, stream);
}

// Exchanges messages with all other ranks, in one group, which takes one latency: parts of `reduced` that each rank is
// to sum, and sums of parts of `gathered`. Both may be null.
void exchange(const golf::TensorOverlap& given, const Piece* reduced, const Piece* gathered, ncclComm_t comm,
              cudaStream_t stream) {
  NCCL_CHECK(ncclGroupStart());
  for (int distance = 1; distance < Task::kRanks; ++distance) {
    const int peer = (given.rank + distance) % Task::kRanks;
    if (reduced != nullptr) {
      const int part = reduced->part();
      NCCL_CHECK(ncclSend(reduced->y + peer * part, part, ncclFloat, peer, comm, stream));
      NCCL_CHECK(ncclRecv(reduced->received + (distance - 1) * part, part, ncclFloat, peer, comm, stream));
    }
    if (gathered != nullptr) {
      const int part = gathered->part();
      NCCL_CHECK(ncclSend(gathered->y + given.rank * part, part, ncclFloat, peer, comm, stream));
      NCCL_CHECK(ncclRecv(gathered->y + peer * part, part, ncclFloat, peer, comm, stream));
    }
  }
  NCCL_CHECK(ncclGroupEnd());
  if (reduced == nullptr) return;
  const int part = reduced->part();
  for (int i = 0; i < Task::kRanks - 1; ++i) {
    golf::add(reduced->y + given.rank * part, reduced->received + i * part, part, stream);
  }
}

}  // namespace

void tensor_overlap(const golf::TensorOverlap& given) {
  const cudaStream_t products = given.streams[0], messages[] = {given.streams[1], given.streams[2]};
  Piece pieces[kPieces];
  int first = 0;
  for (int i = 0; i < kPieces; ++i) {
    pieces[i] = {given.x + first * Task::kWidth, given.scratch + first * Task::kFeatures,
                 given.y + first * Task::kWidth, given.scratch + Task::kRows * Task::kFeatures + first * Task::kWidth,
                 kRows[i]};
    first += kRows[i];
    compute(given, pieces[i], products);
    golf::wait(messages[i % 2], products);
    // Stream and communicator are those of piece i - 2, so its sum is there.
    exchange(given, &pieces[i], i < 2 ? nullptr : &pieces[i - 2], given.tensor[i % 2], messages[i % 2]);
  }
  // The last two pieces in one group.
  golf::wait(messages[0], messages[1]);
  NCCL_CHECK(ncclGroupStart());
  exchange(given, nullptr, &pieces[kPieces - 2], given.tensor[0], messages[0]);
  exchange(given, nullptr, &pieces[kPieces - 1], given.tensor[0], messages[0]);
  NCCL_CHECK(ncclGroupEnd());
}
