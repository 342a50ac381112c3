// SPDX-License-Identifier: Apache-2.0
// Gradients averaged while the backward pass goes on: in buckets, on a stream of their own.
//
// The backward pass finishes the gradients of the last layer first. As soon as all layers of a bucket are done, its
// all-reduce starts on the communication stream, while the compute stream works on the layers below. So does PyTorch's
// DDP (Li et al., VLDB 2020); here all gradients lie in one array, so that a bucket is a range of it and nothing is
// copied.
#pragma once

#include <vector>

#include "common/nccl/group.h"
#include "model/model.h"

namespace workshop {

// The gradients of the layers [first_layer, last_layer]: `count` numbers from `offset` on in the model's array.
struct Bucket {
  int first_layer, last_layer;
  int offset, count;
};

// Cuts the model into buckets, in the order in which the backward pass finishes them: last layer first. A bucket is
// full as soon as it has `bucket_bytes`.
inline std::vector<Bucket> make_buckets(const Model& model, double bucket_bytes) {
  std::vector<Bucket> buckets;
  int last = model.depth() - 1, count = 0;
  for (int i = last; i >= 0; --i) {
    const Extent layer = model.layers()[i];
    // TODO 02.6: Add layer i to the bucket that is being filled; once it is full, or no layer is left, append it.
    //   The bucket being filled has the layers (i, last] and `count` numbers so far; it is full at `bucket_bytes`
    //   bytes. The layer has layer.count numbers, weights and biases together (in·out + out of a linear layer), from
    //   layer.offset on, each of sizeof(Real) bytes. The bucket's offset is that of its lowest layer. Then `last` and
    //   `count` start over.
    count += layer.count;
    if (count * sizeof(Real) >= bucket_bytes || i == 0) {
      buckets.push_back({i, last, layer.offset, count});
      last = i - 1;
      count = 0;
    }
    // END TODO 02.6
  }
  std::vector<int> ranges;
  for (const Bucket& b : buckets) ranges.insert(ranges.end(), {b.first_layer, b.last_layer, b.offset, b.count});
  probe("02.6", "first layer, last layer, offset and count of each bucket", ranges);
  if (buckets.empty() || buckets.back().first_layer != 0) {
    fail(kFailed, "the first layers are in no bucket: see TODO 02.6");
  }
  return buckets;
}

// Averages a model's gradients over its replicas, bucket by bucket, behind the backward pass.
class GradientReducer {
 public:
  // `compute` is the stream of the backward pass and the update.
  GradientReducer(const Model& model, double bucket_bytes, const Group& replicas, cudaStream_t compute)
      : grads_(model.grads()),
        total_(model.count()),
        buckets_(make_buckets(model, bucket_bytes)),
        ready_(buckets_.size()),
        comm_(replicas.comm()),
        compute_(compute) {}

  // Call in the last backward pass of a step, once the gradients of layer i are enqueued. Starts the all-reduce of the
  // bucket that this layer completes.
  void on_layer_done(int i) {
    const Bucket& bucket = buckets_[next_];
    if (i != bucket.first_layer) return;
    Real* grads = grads_ + bucket.offset;
    // TODO 02.7: Let the communication stream wait for the gradients that the compute stream has still to write.
    //   Record the event ready_[next_] on one stream, and let the other wait for it: cudaEventRecord(event, stream),
    //   cudaStreamWaitEvent(stream, event) (docs/calls.md). The host must not wait.
    CUDA_CHECK(cudaEventRecord(ready_[next_], compute_));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, ready_[next_]));
    // END TODO 02.7
    probe("02.7", "bucket before its all-reduce", grads, {bucket.count}, communication_);
    // TODO 02.8: Average the bucket over all ranks, in place, on the communication stream.
    //   One NCCL call for all parameters of the bucket, that of TODO 02.2, over comm_.
    NCCL_CHECK(ncclAllReduce(grads, grads, bucket.count, kReal, ncclAvg, comm_, communication_));
    // END TODO 02.8
    probe("02.8", "bucket after its all-reduce", grads, {bucket.count}, communication_);
    ++next_;
  }

  // Call before the update: makes the compute stream wait until all buckets are averaged.
  void finish() {
    // TODO 02.9: Let the compute stream wait for the communication stream.
    //   Record the event done_ and wait for it, as in TODO 02.7: which stream does which? One event is enough for all
    //   buckets: why?
    CUDA_CHECK(cudaEventRecord(done_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, done_));
    // END TODO 02.9
    probe("02.9", "gradients before the update", grads_, {total_}, compute_);
    next_ = 0;
  }

 private:
  Real* grads_;  // [total_]
  int total_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;      // the bucket that the backward pass is filling
  std::vector<Event> ready_;  // one per bucket
  Event done_;
  ncclComm_t comm_;
  cudaStream_t compute_;
  Stream communication_{"communication"};
};

}  // namespace workshop
