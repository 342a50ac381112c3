// SPDX-License-Identifier: Apache-2.0
// Ring attention (Liu et al., 2023): the ranks form a ring, around which the keys and values travel. While a rank
// computes with those that are there, the next ones arrive. In the backward pass, the gradients of keys and values
// travel along, one step behind them: each rank adds what its queries contribute, and the last step brings them home.
//
// Step i of c, on the two streams of rank r:
//
//   compute         attention to the keys of rank r - i   →  wait until those of rank r - i - 1 are here
//   communication   wait until step i - 1 is computed     →  send the keys of rank r - i, receive those of r - i - 1
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "01_single_gpu/transformer.h"
#include "08_context_parallel/partial_attention.h"
#include "common/nccl/group.h"

namespace workshop {

class RingAttention : public Attention {
 public:
  // `heads` has the positions of one rank. The group must outlive this.
  RingAttention(const Heads& heads, const SequenceCut& cut, int attention_block, const Group& group)
      : Attention(heads, false), parts_(heads, cut, group.rank(), attention_block), group_(group) {}

  int kept() const override { return parts_.kept(); }
  int scratch() const override { return 0; }
  void allocate(int max_samples) override {
    parts_.allocate(max_samples);
    if (kv_[0].size() > 0) return;
    const int count = max_samples * heads().positions * 2 * heads().features();
    for (auto& kv : kv_) kv = DeviceBuffer<Real>(count, Memory::buckets);
    for (auto& dkv : dkv_) dkv = DeviceBuffer<float>(count, Memory::buckets);
    mine_ = DeviceBuffer<float>(count, Memory::activations);
  }

  void forward(const Blas& blas, const AttentionValues& values, int samples, int, int,
               const Dropout& dropout) override {
    const cudaStream_t compute = blas.stream();
    probe_sources();
    parts_.begin();
    parts_.pack(kv_[0].data(), values, samples, compute);
    // WRITE 08.E: In each step, attend to the keys and values that are here, while the next ones arrive.
    //   There are c = group_.size() steps. parts_.attend(blas, values, kv, source, samples, dropout) merges what this
    //   rank's queries see among kv, the keys and values of rank `source`, into the context, on `compute`. source(step)
    //   says whose keys and values are here in a step. In step 0, these are the rank's own, in kv_[0]; those that
    //   arrive during step i go to kv_[(i + 1) % 2]. begin_exchange(i, samples, compute) sends and receives beside the
    //   computation; after end_exchange(compute), what has arrived can be read. In the last step, nothing has to
    //   arrive: you may call both functions, or neither.
    for (int step = 0; step < group_.size(); ++step) {
      if (step + 1 < group_.size()) begin_exchange(step, samples, compute);
      parts_.attend(blas, values, kv_[step % 2].data(), source(step), samples, dropout);
      if (step + 1 < group_.size()) end_exchange(compute);
    }
    // END WRITE 08.E
    parts_.finish(values, samples, compute);
    probe("08.E", "context", values.context, {samples * heads().positions, heads().features()}, compute);
  }

  void backward(const Blas& blas, const AttentionValues& values, const AttentionValues& gradients, int samples,
                const Dropout& dropout) override {
    const cudaStream_t compute = blas.stream();
    const int count = count_of(samples);
    parts_.begin_backward(values, gradients, samples, compute);
    parts_.pack(kv_[0].data(), values, samples, compute);
    const auto clear = [&](float* sums) { CUDA_CHECK(cudaMemsetAsync(sums, 0, count * sizeof(float), compute)); };
    // WRITE 08.F: Go around the ring again, and bring the gradients of all keys and values home.
    //   There are c = group_.size() steps. The keys and values of step i are in the same places as in forward(), and
    //   source(i) says whose they are. Their gradients travel with them, one step behind: dkv_[i % 2] is for those of
    //   the keys of step i. If c is 1, leave out all exchanges. In step i:
    //   - begin_exchange(i, samples, compute, true), in every step, the last one, too. From step 1 on, it also sends
    //     dkv_[(i - 1) % 2], which step i - 1 has completed, and receives in dkv_[i % 2] what the earlier ranks have
    //     added up.
    //   - Meanwhile, parts_.add_gradients(blas, values, gradients, kv, source, dkv, samples, dropout) adds to dkv what
    //     this rank's queries contribute to the gradients of kv. For dkv, take mine_, and clear it in each step:
    //     clear(sums) sets `count` floats to zero. In step 0, no gradients arrive: take dkv_[0] itself.
    //   - After end_exchange(compute), the kernel add_floats(y, x, factor, n) adds mine_ to what has arrived.
    //   After the last step comes one more exchange, begin_exchange(c, samples, compute, true). It brings every rank
    //   the gradients of its own keys and values, to dkv_[c % 2]. With one rank, they stay in dkv_[0].
    for (int step = 0; step < group_.size(); ++step) {
      float* sums = dkv_[step % 2].data();
      float* own = step == 0 ? sums : mine_.data();
      if (group_.size() > 1) begin_exchange(step, samples, compute, true);
      clear(own);
      parts_.add_gradients(blas, values, gradients, kv_[step % 2].data(), source(step), own, samples, dropout);
      if (group_.size() > 1) end_exchange(compute);
      // TODO 08.9: Complete `sums`, the gradients of the keys and values of this step.
      //   `own` is what this rank's queries contribute. In step 0, `own` is `sums`. Later, `sums` has what the earlier
      //   ranks have contributed; it has arrived by now. launch(add_floats, count, compute, y, x, factor, count) adds
      //   factor·x to y.
      if (step > 0) launch(add_floats, count, compute, sums, own, 1.0f, count);
      // END TODO 08.9
      probe("08.9", "gradients of keys and values so far", sums, {count}, compute);
      probe("08.9", "what this rank contributes (one way)", own, {count}, compute);
    }
    if (group_.size() > 1) {
      begin_exchange(group_.size(), samples, compute, true);
      end_exchange(compute);
    }
    // END WRITE 08.F
    const float* home = dkv_[group_.size() > 1 ? group_.size() % 2 : 0].data();
    probe("08.F", "gradients of this rank's keys and values", home, {count}, compute);
    parts_.finish_backward(gradients, home, samples, compute);
  }

 private:
  int count_of(int samples) const { return samples * heads().positions * 2 * heads().features(); }

  // Returns whose keys and values are here in a step.
  int source(int step) const {
    int source = 0;
    // TODO 08.5: Set `source` to the rank whose keys and values this rank has in step `step`.
    //   In step 0, these are its own. In each step, they are sent to the next rank: rank group_.rank() + 1, or 0 after
    //   the last one. The number of ranks is group_.size().
    source = (group_.rank() - step + group_.size()) % group_.size();
    // END TODO 08.5
    return source;
  }

  void probe_sources() const {
    if (!probing()) return;
    std::vector<int> sources;
    for (int step = 0; step < group_.size(); ++step) sources.push_back(source(step));
    probe("08.5", "rank whose keys are here, in each step", sources);
  }

  // Sends the keys and values of step `step` to the next rank and receives those of the step after it, while `compute`
  // goes on. With `backward`, the gradients of step - 1 travel along.
  void begin_exchange(int step, int samples, cudaStream_t compute, bool backward = false) {
    const int count = count_of(samples), c = group_.size();
    const bool keys = step + 1 < c, gradients = backward && step > 0;
    arriving_ = std::span<const Real>(kv_[(step + 1) % 2].data(), keys ? count : 0);
    arriving_gradients_ = std::span<const float>(dkv_[step % 2].data(), gradients ? count : 0);
    if (keys || gradients)
      probe("08.G", "given to begin_exchange: step, whether backward", std::array{step, int{backward}});
    if (keys) probe("08.G", "given to begin_exchange: keys and values", kv_[step % 2].data(), {count}, compute);
    if (gradients) probe("08.G", "given to begin_exchange: gradients", dkv_[(step - 1) % 2].data(), {count}, compute);
    // WRITE 08.G: Send and receive on communication_, without holding up `compute`.
    //   If `keys`, kv_[step % 2] goes to the next rank, and the previous rank's arrives in kv_[(step + 1) % 2]. If
    //   `gradients`, dkv_[(step - 1) % 2] goes to the next rank, and the previous rank's arrives in dkv_[step % 2].
    //   With neither, nothing is sent. All have `count` elements; keys and values are of type kReal, the gradients are
    //   floats (ncclFloat). One group of NCCL calls over group_.comm() sends and receives all of it; a second one would
    //   only start after the first. communication_ must wait for everything that is enqueued on `compute` by now, which
    //   writes what is sent and reads what is overwritten: use the event computed_. Neither the host nor `compute` may
    //   wait.
    // TODO 08.6: Make communication_ wait for what `compute` has been given so far.
    //   It has written what is sent, and reads what will be overwritten. Use the event computed_:
    //   cudaEventRecord(event, stream), cudaStreamWaitEvent(stream, event) (docs/calls.md). The host must not wait.
    CUDA_CHECK(cudaEventRecord(computed_, compute));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, computed_));
    // END TODO 08.6
    if (keys) probe("08.6", "keys and values to send", kv_[step % 2].data(), {count}, communication_);
    if (gradients) probe("08.6", "gradients to send", dkv_[(step - 1) % 2].data(), {count}, communication_);
    int next = 0, previous = 0;
    // TODO 08.7: Set `next` and `previous`, this rank's neighbors in the ring.
    //   The ring has the ranks 0 to c - 1; after the last one comes rank 0. This rank is group_.rank().
    next = (group_.rank() + 1) % c;
    previous = (group_.rank() + c - 1) % c;
    // END TODO 08.7
    const ncclComm_t comm = group_.comm();
    NCCL_CHECK(ncclGroupStart());
    if (keys) {
      NCCL_CHECK(ncclSend(kv_[step % 2].data(), count, kReal, next, comm, communication_));
      NCCL_CHECK(ncclRecv(kv_[(step + 1) % 2].data(), count, kReal, previous, comm, communication_));
    }
    if (gradients) {
      NCCL_CHECK(ncclSend(dkv_[(step - 1) % 2].data(), count, ncclFloat, next, comm, communication_));
      NCCL_CHECK(ncclRecv(dkv_[step % 2].data(), count, ncclFloat, previous, comm, communication_));
    }
    NCCL_CHECK(ncclGroupEnd());
    // END WRITE 08.G
    if (keys) probe("08.7", "keys and values of the next step", kv_[(step + 1) % 2].data(), {count}, communication_);
    if (gradients) probe("08.G", "gradients of earlier ranks", dkv_[step % 2].data(), {count}, communication_);
  }

  // Makes `compute` wait for what begin_exchange() has begun.
  void end_exchange(cudaStream_t compute) {
    const int keys = static_cast<int>(arriving_.size()), gradients = static_cast<int>(arriving_gradients_.size());
    if (keys + gradients > 0) probe("08.8", "given to end_exchange: number of ranks", std::array{group_.size()});
    // TODO 08.8: Make `compute` wait until what is enqueued on communication_ is done.
    //   Use the event arrived_. The host must not wait.
    CUDA_CHECK(cudaEventRecord(arrived_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute, arrived_));
    // END TODO 08.8
    if (keys > 0) probe("08.8", "keys and values that have arrived", arriving_.data(), {keys}, compute);
    if (gradients > 0) probe("08.8", "gradients that have arrived", arriving_gradients_.data(), {gradients}, compute);
  }

  PartialAttention parts_;
  const Group& group_;
  DeviceBuffer<Real> kv_[2];                   // keys and values: those that are computed with, and those that arrive
  DeviceBuffer<float> dkv_[2];                 // their gradients: those that are sent, and those that arrive
  DeviceBuffer<float> mine_;                   // what this rank contributes to them
  std::span<const Real> arriving_;             // what end_exchange() records: the keys and values under way,
  std::span<const float> arriving_gradients_;  // and the gradients
  Event computed_, arrived_;
  Stream communication_{"communication", Priority::high};
};

}  // namespace workshop
