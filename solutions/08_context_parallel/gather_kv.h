// SPDX-License-Identifier: Apache-2.0
// Context parallelism by an all-gather (Llama 3: Dubey et al., 2024): every rank gathers the keys and values of all
// ranks, and attends to them one rank after the other. In the backward pass it gathers them again, and a reduce-scatter
// sums the gradients and brings each rank its own. Nothing is hidden, and all keys and values of a layer are in memory
// at a time; but with a few key heads (grouped-query attention) they are small, and any mask can be applied.
#pragma once

#include "01_single_gpu/transformer.h"
#include "08_context_parallel/partial_attention.h"
#include "common/nccl/group.h"

namespace workshop {

class GatherAttention : public Attention {
 public:
  // `heads` has the positions of one rank. The group must outlive this.
  GatherAttention(const Heads& heads, const SequenceCut& cut, int attention_block, const Group& group)
      : Attention(heads, false), parts_(heads, cut, group.rank(), attention_block), group_(group) {}

  int kept() const override { return parts_.kept(); }
  int scratch() const override { return 0; }
  void allocate(int max_samples) override {
    parts_.allocate(max_samples);
    if (kv_.size() > 0) return;
    const int count = max_samples * heads().positions * 2 * heads().features();
    mine_ = DeviceBuffer<Real>(count, Memory::buckets);
    kv_ = DeviceBuffer<Real>(group_.size() * count, Memory::buckets);
    dkv_ = DeviceBuffer<float>(group_.size() * count, Memory::buckets);
    home_ = DeviceBuffer<float>(count, Memory::buckets);
  }

  void forward(const Blas& blas, const AttentionValues& values, int samples, int, int,
               const Dropout& dropout) override {
    const cudaStream_t stream = blas.stream();
    const int count = count_of(samples);
    parts_.begin();
    gather(values, samples, stream);
    // WRITE 08.H: Attend to the keys and values of each rank, in the order of the ranks.
    //   kv_ has those of all ranks one after the other, `count` elements each. parts_.attend(blas, values, kv, source,
    //   samples, dropout) merges what this rank's queries see among kv, the keys and values of rank `source`, into the
    //   context.
    for (int source = 0; source < group_.size(); ++source) {
      parts_.attend(blas, values, kv_.data() + static_cast<std::ptrdiff_t>(source) * count, source, samples, dropout);
    }
    // END WRITE 08.H
    parts_.finish(values, samples, stream);
    probe("08.H", "context", values.context, {samples * heads().positions, heads().features()}, stream);
  }

  void backward(const Blas& blas, const AttentionValues& values, const AttentionValues& gradients, int samples,
                const Dropout& dropout) override {
    const cudaStream_t stream = blas.stream();
    const int count = count_of(samples);
    parts_.begin_backward(values, gradients, samples, stream);
    gather(values, samples, stream);
    // WRITE 08.I: Compute the gradients of the keys and values of all ranks, and bring each rank its own in home_.
    //   kv_ has the keys and values of all ranks one after the other, `count` elements each, and dkv_ has as much room
    //   for their gradients, in floats. The sums of the last call are still in it. parts_.add_gradients(blas, values,
    //   gradients, kv, source, dkv, samples, dropout) adds to dkv what this rank's queries contribute to the gradients
    //   of kv, the keys and values of rank `source`. Call it for each rank, in their order. Then one NCCL call sums
    //   dkv_ over the ranks of group_.comm(), and leaves each rank the `count` sums of its own keys and values in
    //   home_. Everything is on `stream`.
    CUDA_CHECK(cudaMemsetAsync(dkv_.data(), 0, group_.size() * count * sizeof(float), stream));
    for (int source = 0; source < group_.size(); ++source) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(source) * count;
      parts_.add_gradients(blas, values, gradients, kv_.data() + at, source, dkv_.data() + at, samples, dropout);
    }
    // TODO 08.11: Sum the gradients over the ranks, and leave each rank those of its own keys and values, in home_.
    //   dkv_ has `count` floats for each rank, in the order of the ranks. One NCCL call over group_.comm(), on
    //   `stream`.
    NCCL_CHECK(ncclReduceScatter(dkv_.data(), home_.data(), count, ncclFloat, ncclSum, group_.comm(), stream));
    // END TODO 08.11
    // END WRITE 08.I
    probe("08.11", "gradients of this rank's keys and values", home_.data(), {count}, stream);
    parts_.finish_backward(gradients, home_.data(), samples, stream);
  }

 private:
  int count_of(int samples) const { return samples * heads().positions * 2 * heads().features(); }

  // Gathers the keys and values of all ranks in kv_.
  void gather(const AttentionValues& values, int samples, cudaStream_t stream) {
    const int count = count_of(samples);
    parts_.pack(mine_.data(), values, samples, stream);
    // TODO 08.10: Gather the keys and values of all ranks in kv_, in the order of the ranks.
    //   Each rank has `count` elements of type kReal in mine_. One NCCL call over group_.comm(), on `stream`.
    NCCL_CHECK(ncclAllGather(mine_.data(), kv_.data(), count, kReal, group_.comm(), stream));
    // END TODO 08.10
    probe("08.10", "keys and values of all ranks", kv_.data(), {group_.size() * count}, stream);
  }

  PartialAttention parts_;
  const Group& group_;
  DeviceBuffer<Real> mine_, kv_;    // keys and values: this rank's, and those of all ranks
  DeviceBuffer<float> dkv_, home_;  // gradients: of all, and of this rank's
};

}  // namespace workshop
