// SPDX-License-Identifier: Apache-2.0
// Averages gradients during the backward pass: in buckets, on their own stream.
//
// The backward pass finishes the gradients of the last layer first. As soon as all layers of a bucket are done, its
// all-reduce starts on the communication stream, while the compute stream works on the layers below. PyTorch's DDP does
// the same (Li et al., VLDB 2020). Here all gradients lie in one array, so a bucket is a range of it and nothing is
// copied.
#pragma once

#include <array>
#include <vector>

#include "common/nccl/group.h"
#include "model/model.h"

namespace workshop {

// The gradients of the layers [first_layer, last_layer]: `count` elements of the model's array, starting at `offset`.
struct Bucket {
  int first_layer, last_layer;
  int offset, count;
};

// Divides the model into buckets, in the order in which the backward pass finishes them: last layer first. A bucket is
// full as soon as it has at least `bucket_bytes`. Every layer is in exactly one bucket.
inline std::vector<Bucket> make_buckets(const Model& model, double bucket_bytes) {
  std::vector<Bucket> buckets;
  // WRITE 02.E: Append the buckets to `buckets`, as the comments above say.
  //   The layers have the numbers 0 … model.depth() - 1. The Extent model.layers()[i] says where layer i is: its .count
  //   elements start at .offset of the model's arrays. A Real takes sizeof(Real) bytes. A layer is never divided. The
  //   last bucket may be less than full.
  int last = model.depth() - 1, count = 0;
  for (int i = last; i >= 0; --i) {
    const Extent layer = model.layers()[i];
    // TODO 02.6: Add layer i to the current bucket. If the bucket is full or no layer is left, append it to buckets.
    //   The current bucket has the layers (i, last] and `count` elements so far. It is full when it has at least
    //   `bucket_bytes` bytes. Layer i has layer.count elements of sizeof(Real) bytes each, starting at layer.offset:
    //   its weights and biases together (O·I + O for a linear layer). The offset of a bucket is that of its lowest
    //   layer. After appending, reset `last` and `count` for the next bucket.
    count += layer.count;
    if (count * sizeof(Real) >= bucket_bytes || i == 0) {
      buckets.push_back({i, last, layer.offset, count});
      last = i - 1;
      count = 0;
    }
    // END TODO 02.6
  }
  // END WRITE 02.E
  std::vector<int> ranges;
  for (const Bucket& b : buckets) ranges.insert(ranges.end(), {b.first_layer, b.last_layer, b.offset, b.count});
  probe("02.6", "first layer, last layer, offset and count of each bucket", ranges);
  if (buckets.empty() || buckets.back().first_layer != 0) {
    fail(kFailed, "the first layers are in no bucket: see TODO 02.6, part of WRITE 02.E");
  }
  return buckets;
}

// Averages a model's gradients over its replicas, bucket by bucket, while the backward pass runs.
class GradientReducer {
 public:
  // `compute` must be the stream of the backward pass and of the update.
  GradientReducer(const Model& model, double bucket_bytes, const Group& replicas, cudaStream_t compute)
      : GradientReducer(model, make_buckets(model, bucket_bytes), replicas, compute) {}
  GradientReducer(const Model& model, const std::vector<Bucket>& buckets, const Group& replicas, cudaStream_t compute)
      : grads_(model.grads()),
        total_(model.count()),
        buckets_(buckets),
        ready_(buckets_.size()),
        comm_(replicas.comm()),
        compute_(compute) {}

  // Starts the all-reduce of a bucket if layer i completes it. Call it in the last backward pass of a step, for every
  // layer, right after enqueueing the work that computes the layer's gradients.
  void on_layer_done(int i) {
    probe("02.F", "given to on_layer_done: layer", std::array{i});
    // WRITE 02.F: If layer i completes its bucket, average the bucket over all ranks while compute_ goes on.
    //   The current bucket is number next_; its lowest layer completes it. Average in place, in one NCCL call over
    //   comm_, on communication_. The bucket's gradients, `count` of type kReal, begin at grads_ + offset. They are
    //   there when everything that is enqueued on compute_ by now is done: use the event ready_[next_] (docs/calls.md).
    //   Neither the host nor compute_ may wait for anything here. Then go on to the next bucket.
    const Bucket& bucket = buckets_[next_];
    if (i != bucket.first_layer) return;
    Real* grads = grads_ + bucket.offset;
    // TODO 02.7: Make the communication stream wait until the compute stream has written the bucket's gradients.
    //   Record the event ready_[next_] on one stream and make the other wait for it: cudaEventRecord(event, stream),
    //   cudaStreamWaitEvent(stream, event) (docs/calls.md). The host must not wait.
    CUDA_CHECK(cudaEventRecord(ready_[next_], compute_));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, ready_[next_]));
    // END TODO 02.7
    probe("02.7", "bucket before its all-reduce", grads, {bucket.count}, communication_);
    // TODO 02.8: Average the bucket over all ranks, in place, on the communication stream.
    //   Use one NCCL call for the whole bucket, the call of TODO 02.2, over comm_.
    NCCL_CHECK(ncclAllReduce(grads, grads, bucket.count, kReal, ncclAvg, comm_, communication_));
    // END TODO 02.8
    probe("02.8", "bucket after its all-reduce", grads, {bucket.count}, communication_);
    ++next_;
    // END WRITE 02.F
  }

  // Makes the compute stream wait until all buckets are averaged. Call it before the update.
  void finish() {
    probe("02.G", "given to finish: nothing", std::array{0});
    probe("02.F", "gradients after the last all-reduce", grads_, {total_}, communication_);
    // WRITE 02.G: Let compute_ go on only when the all-reduces of all buckets are done, and prepare for the next step.
    //   Use the event done_. The host must not wait. The next step begins with the first bucket.
    // TODO 02.9: Make the compute stream wait for the communication stream.
    //   Record the event done_ and wait for it, as in TODO 02.7: which stream does which? One event is enough for all
    //   buckets: why?
    CUDA_CHECK(cudaEventRecord(done_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, done_));
    // END TODO 02.9
    next_ = 0;
    // END WRITE 02.G
    probe("02.9", "gradients before the update", grads_, {total_}, compute_);
  }

 private:
  Real* grads_;  // [total_]
  int total_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;      // index of the bucket whose layers the backward pass is working on
  std::vector<Event> ready_;  // one per bucket
  Event done_;
  ncclComm_t comm_;
  cudaStream_t compute_;
  Stream communication_{"communication", Priority::high};
};

}  // namespace workshop
