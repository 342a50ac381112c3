// SPDX-License-Identifier: Apache-2.0
// Which positions of each sample a rank has. Norms, linear layers, dropout, the embedding and the loss work on each
// position separately: a rank computes them for its own positions. Only attention looks from one position to others.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/data/batch.h"
#include "common/device/device.h"
#include "common/nccl/group.h"
#include "common/record/record.h"
#include "model/positions.h"

namespace workshop {

// Which positions each rank has. The last position sees all others, the first sees only itself. So with `none`, where a
// rank has consecutive positions, the last rank computes nearly twice as much as the ranks do on average. With
// `zigzag`, each rank has a piece from the front and the piece as far from the end.
enum class Balance { none, zigzag };

// How the positions of a sequence are cut over the ranks. `ranks` divides `whole`; with zigzag, 2·ranks does.
struct SequenceCut {
  int whole, ranks;
  Balance balance;

  // Returns the positions of a rank.
  Positions of(int rank) const {
    if (ranks == 1) return whole;
    // WRITE 08.A: Return the positions of this rank: Positions(whole, count, first, run, second).
    //   Of `count` rows, the first `run` are the positions first, first + 1, …, the others second, second + 1, …; see
    //   model/positions.h. Balance::none: rank r has the r-th of `ranks` equal pieces, so all its positions follow each
    //   other: Positions(whole, count, first). Balance::zigzag: there are 2·ranks equal pieces, and each rank has two:
    //   rank 0 the first and the last, rank 1 the second and the last but one, …. The first run is the piece in front.
    int count = whole / ranks, first = 0, run = count, second = 0;
    // TODO 08.1: Set first, run and second.
    //   Of the rank's `count` rows, the first `run` are the positions from `first` on, the others those from `second`
    //   on. Balance::none: rank r has the r-th of `ranks` equal pieces: which position is its first? Then run == count,
    //   and second stays 0. Balance::zigzag: there are 2·ranks equal pieces, and each rank has two: rank 0 the first
    //   and the last, rank 1 the second and the last but one, …. `first` is where the one in front begins.
    if (balance == Balance::none) {
      first = rank * count;
    } else {
      run = count / 2;
      first = rank * run;
      second = (2 * ranks - 1 - rank) * run;
    }
    // END TODO 08.1
    return {whole, count, first, run, second};
    // END WRITE 08.A
  }

  // Returns where the runs of consecutive positions of a rank begin. All runs of all ranks are equally long.
  std::vector<int> runs(int rank) const {
    const Positions at = of(rank);
    if (at.run == at.count) return {at.first};
    return {at.first, at.second};
  }
};

// Records which positions each rank has.
inline void probe_cut(const SequenceCut& cut) {
  for (int rank = 0; rank < cut.ranks; ++rank) {
    const Positions at = cut.of(rank);
    std::vector<int> positions;
    for (int row = 0; row < at.count; ++row) positions.push_back(at[row]);
    probe("08.1", "positions of rank " + std::to_string(rank), positions);
    probe("08.1", "rows in the first run of rank " + std::to_string(rank), std::array{at.run});
  }
}

// Copies the tokens of this rank's positions, mine[rows], from those of all positions.
static __global__ void cut_tokens(std::int32_t* mine, const std::int32_t* tokens, Positions at, int rows) {
  for (int row : grid_stride(rows)) mine[row] = tokens[at.row_of_whole(row)];
}

// Cuts batches: the tokens of this rank's positions, and the words that follow them.
class BatchCut {
 public:
  BatchCut(const Positions& mine, int max_samples, cudaStream_t stream)
      : mine_(mine),
        x_(max_samples * mine.count, Memory::data),
        y_(max_samples * mine.count, Memory::data),
        stream_(stream) {}

  // Returns this rank's part of the batch, which is valid until the next call.
  Batch operator()(const Batch& batch) {
    const int rows = batch.samples * mine_.count;
    const auto cut = [&](DeviceBuffer<std::int32_t>& to, const void* tokens) {
      launch(cut_tokens, rows, stream_, to.data(), static_cast<const std::int32_t*>(tokens), mine_, rows);
    };
    cut(x_, batch.x);
    cut(y_, batch.y);
    Batch part = batch.with_x(x_.data());
    part.y = y_.data();
    part.x_bytes = part.y_bytes = mine_.count * sizeof(std::int32_t);
    return part;
  }

 private:
  Positions mine_;
  DeviceBuffer<std::int32_t> x_, y_;
  cudaStream_t stream_;
};

// Averages the losses of an epoch over the ranks, in place: each rank has the mean over its own tokens.
inline void average_parts(const LossLog& losses, const Group& group, cudaStream_t stream) {
  probe("08.D", "given to average_parts: losses of the epoch", losses.losses(), {losses.count()}, stream);
  NCCL_CHECK(ncclAllReduce(losses.losses(), losses.losses(), losses.count(), ncclFloat, ncclAvg, group.comm(), stream));
}

}  // namespace workshop
