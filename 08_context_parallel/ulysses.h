// SPDX-License-Identifier: Apache-2.0
// Context parallelism by all-to-alls (DeepSpeed-Ulysses: Jacobs et al., 2023). Heads do not look at each other. So the
// ranks exchange positions for heads: before the attention, each rank has all heads of its positions; then it has all
// positions of its heads, and computes chapter 01's attention for them. A second all-to-all brings the context back.
// The number of ranks must divide that of the heads.
//
//   [B, T/c, H, d]  ─ all-to-all →  [B, T, H/c, d]  ─ attention →  [B, T, H/c, d]  ─ all-to-all →  [B, T/c, H, d]
#pragma once

#include <memory>

#include "01_single_gpu/transformer.h"
#include "08_context_parallel/sequence.h"
#include "08_context_parallel/support/recorded_attention.h"
#include "common/nccl/group.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// What the all-to-alls move: `samples` samples of T = positions·ranks positions. A row has `parts` parts (queries, keys
// and values: 3; context: 1), each of width·ranks features, `width` for each rank.
struct HeadExchange {
  int ranks, samples, positions, parts, width;

  __host__ __device__ int rows() const { return samples * positions; }
  __host__ __device__ int columns() const { return parts * width; }  // of a row, on the rank that has these heads
  int per_rank() const { return rows() * columns(); }
  int count() const { return ranks * per_rank(); }

  // Element i of [ranks, samples, positions, parts, width]: what goes to or comes from each rank.
  // Returns its place among the rows of one rank, with all heads: [samples, positions, parts, ranks, width].
  __device__ int among_rows(int i) const {
    const int rank = i / (rows() * columns()), row = i / columns() % rows(), part = i / width % parts;
    return ((row * parts + part) * ranks + rank) * width + i % width;
  }
  // Returns its place among the heads of one rank, with all positions: [samples, ranks, positions, parts, width].
  __device__ int among_heads(int i) const {
    const int rank = i / (rows() * columns()), row = i / columns() % rows();
    const int sample = row / positions, position = rank * positions + row % positions;
    return (sample * ranks * positions + position) * columns() + i % columns();
  }
};

// by_rank has a block for each rank, with what goes to that rank or has come from it. heads: all positions of this
// rank's heads; rows: all heads of its positions.
static __global__ void rows_to_ranks(Reals by_rank, ConstReals rows, HeadExchange e, int n) {
  for (int i : grid_stride(n)) by_rank[i] = rows[e.among_rows(i)];
}
static __global__ void ranks_to_rows(Reals rows, ConstReals by_rank, HeadExchange e, int n) {
  for (int i : grid_stride(n)) rows[e.among_rows(i)] = by_rank[i];
}
static __global__ void heads_to_ranks(Reals by_rank, ConstReals heads, HeadExchange e, int n) {
  for (int i : grid_stride(n)) by_rank[i] = heads[e.among_heads(i)];
}
static __global__ void ranks_to_heads(Reals heads, ConstReals by_rank, HeadExchange e, int n) {
  for (int i : grid_stride(n)) heads[e.among_heads(i)] = by_rank[i];
}

// ---- attention -----------------------------------------------------------------------------------------------------

class UlyssesAttention : public Attention {
 public:
  // `heads` has the positions of one rank and all heads; `inside` is the attention of this rank's heads over whole
  // sequences. The group must outlive this.
  UlyssesAttention(const Heads& heads, std::shared_ptr<Attention> inside, const Group& group)
      : Attention(heads, false), inside_(std::make_shared<RecordedAttention>(std::move(inside))), group_(group) {}

  // What `inside` keeps, and the context of this rank's heads.
  int kept() const override { return inside_->kept() + heads().positions * heads().features(); }
  int scratch() const override { return inside_->scratch(); }
  void allocate(int max_samples) override {
    if (send_.size() > 0) return;  // all blocks share this
    inside_->allocate(max_samples);
    const int rows = max_samples * heads().positions, E = heads().features();
    send_ = DeviceBuffer<Real>(rows * 3 * E, Memory::buckets);
    receive_ = DeviceBuffer<Real>(rows * 3 * E, Memory::buckets);
    dcontext_ = DeviceBuffer<Real>(rows * E, Memory::activations);
  }

  // Leaves queries, keys and values of all positions of this rank's heads in values.qkv.
  void forward(const Blas& blas, const AttentionValues& values, int samples, int, int,
               const Dropout& dropout) override {
    const cudaStream_t stream = blas.stream();
    const AttentionValues whole = all_positions(values, samples);
    to_heads(values.qkv, whole.qkv, 3, samples, stream);
    inside_->forward(blas, whole, samples, 0, inside_->heads().positions, of_heads(dropout));
    to_rows(whole.context, values.context, 1, samples, stream);
    probe("08.K", "context", values.context, {samples * heads().positions, heads().features()}, stream);
  }

  void backward(const Blas& blas, const AttentionValues& values, const AttentionValues& gradients, int samples,
                const Dropout& dropout) override {
    const cudaStream_t stream = blas.stream();
    const AttentionValues whole = all_positions(values, samples);
    to_heads(gradients.context, dcontext_.data(), 1, samples, stream);
    inside_->backward(blas, whole, {gradients.qkv, gradients.p, dcontext_.data()}, samples, of_heads(dropout));
    to_rows(gradients.qkv, gradients.qkv, 3, samples, stream);
    probe("08.L", "gradient of queries, keys and values", gradients.qkv,
          {samples * heads().positions, 3 * heads().features()}, stream);
  }

 private:
  // Queries, keys, values and context of all positions of this rank's heads. The context lies behind what `inside`
  // keeps.
  AttentionValues all_positions(const AttentionValues& values, int samples) const {
    return {values.qkv, values.p, values.p + samples * inside_->kept()};
  }
  // Drops the same probabilities as one rank with all heads would.
  Dropout of_heads(const Dropout& dropout) const {
    if (!dropout.active()) return dropout;
    return dropout.piece(group_.rank(), group_.size(), inside_->heads().probabilities());
  }
  HeadExchange exchange(int samples, int parts) const {
    return {group_.size(), samples, heads().positions, parts, heads().features() / group_.size()};
  }

  void to_heads(const Real* rows, Real* heads, int parts, int samples, cudaStream_t stream) const {
    const HeadExchange e = exchange(samples, parts);
    probe("08.J", "given to to_heads: rows", rows, {e.count()}, stream);
    launch(rows_to_ranks, e.count(), stream, send_.data(), rows, e, e.count());
    all_to_all(e.per_rank(), stream);
    launch(ranks_to_heads, e.count(), stream, heads, receive_.data(), e, e.count());
    probe("08.12", "all positions of this rank's heads", heads, {e.count()}, stream);
  }
  void to_rows(const Real* heads, Real* rows, int parts, int samples, cudaStream_t stream) const {
    const HeadExchange e = exchange(samples, parts);
    probe("08.J", "given to to_rows: heads", heads, {e.count()}, stream);
    launch(heads_to_ranks, e.count(), stream, send_.data(), heads, e, e.count());
    all_to_all(e.per_rank(), stream);
    launch(ranks_to_rows, e.count(), stream, rows, receive_.data(), e, e.count());
  }

  // Sends the i-th piece of send_ to rank i, and receives a piece from each rank in receive_.
  void all_to_all(int count, cudaStream_t stream) const {
    probe("08.J", "given to all_to_all: what goes to each rank", send_.data(), {group_.size() * count}, stream);
    NCCL_CHECK(ncclGroupStart());
    for (int rank = 0; rank < group_.size(); ++rank) {
      // TODO 08.12: Send rank `rank` its piece of send_, and receive the piece from it in receive_.
      //   A piece has `count` elements of type kReal. ncclSend(address, count, type, peer, comm, stream) and ncclRecv()
      //   over group_.comm(); the group around the loop starts all of them together.
      todo("08.12");
      // END TODO 08.12
    }
    NCCL_CHECK(ncclGroupEnd());
    probe("08.12", "what has come from each rank", receive_.data(), {group_.size() * count}, stream);
  }

  std::shared_ptr<Attention> inside_;
  const Group& group_;
  DeviceBuffer<Real> send_, receive_;  // a piece for each rank, and one from each
  DeviceBuffer<Real> dcontext_;        // of all positions of this rank's heads
};

}  // namespace workshop
