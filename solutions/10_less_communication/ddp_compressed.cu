// SPDX-License-Identifier: Apache-2.0
// Data parallelism that sends less: ddp_overlap.cu, but each bucket of gradients is compressed before it is sent.
// Compare the two programs: CompressedReducer replaces GradientReducer and has the same buckets, streams and events.
// Its Compressor averages a bucket, with the kernels of compression.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "02_ddp/ddp_overlap.h"
#include "10_less_communication/compression.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"
#include "model/elementwise.h"

using namespace workshop;

struct CompressionOptions {
  std::string kind = "topk";
  double ratio = 0.1;
  bool error_feedback = false;

  bool is_sparse() const { return kind == "topk" || kind == "randomk"; }
  bool is_coded() const { return kind == "int8" || kind == "sign"; }
  int kept(int n) const { return std::clamp(static_cast<int>(std::ceil(ratio * n)), 1, n); }
};

// Averages arrays over all ranks, approximately. The values are floats, in mixed precision too; topk and randomk send
// the ones that they pick as Reals.
class Compressor {
 public:
  // For arrays of at most `most` values. All work runs on `stream`.
  Compressor(const CompressionOptions& options, int most, const Group& replicas, cudaStream_t stream)
      : options_(options),
        code_(options.kind == "sign" ? Code::sign : Code::int8),
        replicas_(replicas),
        comm_(replicas.comm()),
        stream_(stream) {
    const std::size_t ranks = replicas.size();
    if (options.is_sparse()) {
      picked_ = DeviceBuffer<Real>(ranks * options.kept(most), Memory::buckets);
      places_ = DeviceBuffer<int>(ranks * options.kept(most), Memory::buckets);
    }
    if (options.kind == "topk") largest_ = LargestValues(most);
    if (!options.is_coded()) return;
    codes_ = DeviceBuffer<std::uint8_t>(ranks * code_bytes(code_, part_length(most)), Memory::buckets);
    received_ = DeviceBuffer<std::uint8_t>(codes_.size(), Memory::buckets);
    scales_ = DeviceBuffer<float>(ranks, Memory::buckets);
    of_pieces_ = DeviceBuffer<float>(Pieces(most).count, Memory::buckets);
  }

  // Replaces values[n] by the mean of what the ranks send. With --error-feedback, left_out[n] receives what this rank
  // does not send. `number` must differ for every call (it seeds randomk).
  void average(float* values, float* left_out, int n, int number) {
    if (options_.error_feedback) {
      probe("10.I", "given to compressor_.average: whether left_out is there", std::array{int{left_out != nullptr}});
      probe("10.7", "bucket with what was left out before", values, {n}, stream_);
    }
    if (options_.kind == "topk") return send_largest(values, left_out, n);
    if (options_.kind == "randomk") return send_random(values, left_out, n, number);
    send_codes(values, left_out, n);
  }

 private:
  // Writes to left_out[n] what remains of values[n] once the values that are sent, picked[k], are subtracted.
  void keep_rest(float* left_out, const float* values, const Real* picked, const int* places, int k, int n) const {
    probe("10.J", "given to keep_rest: values", values, {n}, stream_);
    probe("10.J", "given to keep_rest: values picked", picked, {k}, stream_);
    probe("10.J", "given to keep_rest: their places", places, {k}, stream_);
    // WRITE 10.J: Write what is not sent of values[n] to left_out[n].
    //   picked[j], which is sent, was picked from values[places[j]], j = 0 … k - 1, and no place is picked twice.
    //   `values` must stay as it is. All work runs on stream_. Kernels for such arrays are in compression.h.
    // TODO 10.8: Copy values[n] to left_out, and subtract picked[k] from it at places[k].
    //   cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), then a launch of take_away_at(values,
    //   picked, places, k) from compression.h.
    CUDA_CHECK(cudaMemcpyAsync(left_out, values, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
    launch(take_away_at, k, stream_, left_out, picked, places, k);
    // END TODO 10.8
    // END WRITE 10.J
    probe("10.8", "left out by this rank", left_out, {n}, stream_);
    probe("10.J", "values, which stay as they are", values, {n}, stream_);
  }

  // The ranks' largest values are at different places, so every rank needs all values and their places.
  void send_largest(float* values, float* left_out, int n) {
    // WRITE 10.K: Replace values[n] by the mean of the k largest values of each rank, k = options_.kept(n).
    //   A rank counts as zero at places that it does not pick. largest_.pick(picked, places, k, values, n, stream_)
    //   picks the values with the largest magnitudes, in the order of their places. picked_ has ranks·k elements of
    //   type kReal, places_ ranks·k ints. Gather what all ranks pick, with one call for the values and one for the
    //   places. With options_.error_feedback, call keep_rest(left_out, values, …) with what this rank picks. Everything
    //   runs on stream_, over comm_; replicas_ is the group. launch(add_at, k, stream_, …) of compression.h adds k
    //   values at their places.
    const int k = options_.kept(n), ranks = replicas_.size(), rank = replicas_.rank();
    Real *picked = picked_.data(), *mine = picked + static_cast<std::size_t>(rank) * k;
    int *places = places_.data(), *my_places = places + static_cast<std::size_t>(rank) * k;
    largest_.pick(mine, my_places, k, values, n, stream_);
    if (options_.error_feedback) keep_rest(left_out, values, mine, my_places, k, n);
    // TODO 10.9: Gather what all ranks have picked: mine[k] in picked[ranks, k], my_places[k] in places[ranks, k].
    //   Two calls of ncclAllGather(send, receive, count, type, comm_, stream_), in place: this rank's part is already
    //   where it belongs. Values are of type kReal, places of type ncclInt.
    NCCL_CHECK(ncclAllGather(mine, picked, k, kReal, comm_, stream_));
    NCCL_CHECK(ncclAllGather(my_places, places, k, ncclInt, comm_, stream_));
    // END TODO 10.9
    probe("10.9", "values picked by each rank", picked, {ranks, k}, stream_);
    probe("10.9", "place of each value picked", places, {ranks, k}, stream_);
    CUDA_CHECK(cudaMemsetAsync(values, 0, n * sizeof(float), stream_));
    // TODO 10.10: Average what was picked: values[places[r, j]] += picked[r, j] / ranks, for all j of each rank r.
    //   One launch of add_at(values, picked, places, factor, k) from compression.h per rank: two ranks may have picked
    //   the same place, but no rank picks a place twice.
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
      launch(add_at, k, stream_, values, picked + r * k, places + r * k, 1.0f / static_cast<float>(ranks), k);
    }
    // END TODO 10.10
    // END WRITE 10.K
    probe("10.10", "mean of what the ranks have picked", values, {n}, stream_);
  }

  // All ranks draw the same places, so an all-reduce can average the values there.
  void send_random(float* values, float* left_out, int n, int number) {
    const int k = options_.kept(n);
    // WRITE 10.L: Replace values[n] by the mean of k values of each rank, at random places that all ranks share.
    //   Elsewhere, the result is zero. Use picked_ (kReal), places_, and the kernels of compression.h: draw_places with
    //   the seed static_cast<std::uint64_t>(number) << 32, then take_at. Its for_all is true only without error
    //   feedback: then nothing is sent later, so what is picked must stand for all values. With
    //   options_.error_feedback, call keep_rest(left_out, values, …) with what this rank picks. One NCCL call over
    //   comm_ is enough. Everything runs on stream_.
    launch(draw_places, k, stream_, places_.data(), static_cast<std::uint64_t>(number) << 32, k, n);
    launch(take_at, k, stream_, picked_.data(), values, places_.data(), !options_.error_feedback, k, n);
    if (options_.error_feedback) keep_rest(left_out, values, picked_.data(), places_.data(), k, n);
    NCCL_CHECK(ncclAllReduce(picked_.data(), picked_.data(), k, kReal, ncclAvg, comm_, stream_));
    CUDA_CHECK(cudaMemsetAsync(values, 0, n * sizeof(float), stream_));
    launch(add_at, k, stream_, values, picked_.data(), places_.data(), 1.0f, k);
    // END WRITE 10.L
    probe("10.L", "mean of what the ranks have picked", values, {n}, stream_);
  }

  // Each rank averages one part of the array from the codes that the others send it, and sends the code of the mean to
  // all. An all-reduce cannot add codes, because each rank has its own scale.
  void send_codes(float* values, float* left_out, int n) {
    const int ranks = replicas_.size(), rank = replicas_.rank();
    const int length = part_length(n), bytes = code_bytes(code_, length);
    const std::size_t offset = static_cast<std::size_t>(rank) * length;
    const int mine = in_part(rank, n);
    std::uint8_t *codes = codes_.data(), *my_code = codes + static_cast<std::size_t>(rank) * bytes;
    std::uint8_t* received = received_.data();
    float *scales = scales_.data(), *my_scale = scales + rank;
    float* part = values + std::min<std::size_t>(offset, n);

    make_code(codes, my_scale, values, n);
    if (options_.error_feedback) {
      CUDA_CHECK(cudaMemcpyAsync(left_out, values, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
      launch(add_decoded, n, stream_, left_out, codes, my_scale, -1.0f, code_, n);
      probe("10.M", "left out of the values", left_out, {n}, stream_);
    }
    // WRITE 10.N: Let each rank average its part of the array, from the codes that the others send it.
    //   codes[ranks, bytes] is this rank's code of all values, part r of them for rank r, and *my_scale is its scale.
    //   Gather the ranks' scales in scales[ranks]. At received[r, bytes], receive rank r's code of this rank's part;
    //   its type is ncclUint8. Replace part[mine], this rank's part of `values`, by the mean over the ranks of what
    //   these codes stand for. launch(add_decoded, …) of compression.h adds factor times each value of a code.
    //   Everything runs on stream_, over comm_.
    NCCL_CHECK(ncclAllGather(my_scale, scales, 1, ncclFloat, comm_, stream_));
    // TODO 10.12: Send part r of codes[ranks, bytes] to rank r; received[r] gets rank r's code of this rank's part.
    //   An all-to-all with `bytes` elements of type ncclUint8 per part: one group with a send and a receive for each
    //   rank, including this one.
    NCCL_CHECK(ncclGroupStart());
    for (int r = 0; r < ranks; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * bytes;
      NCCL_CHECK(ncclSend(codes + at, bytes, ncclUint8, r, comm_, stream_));
      NCCL_CHECK(ncclRecv(received + at, bytes, ncclUint8, r, comm_, stream_));
    }
    NCCL_CHECK(ncclGroupEnd());
    // END TODO 10.12
    CUDA_CHECK(cudaMemsetAsync(part, 0, mine * sizeof(float), stream_));
    for (int r = 0; r < ranks; ++r) {
      launch(add_decoded, mine, stream_, part, received + static_cast<std::size_t>(r) * bytes, scales + r,
             1.0f / static_cast<float>(ranks), code_, mine);
    }
    // END WRITE 10.N
    probe("10.12", "mean of this rank's part", part, {mine}, stream_);

    // WRITE 10.O: Send the code of this rank's mean to all ranks, and replace values[n] by what all ranks' codes say.
    //   make_code(code, scale, values, n) makes the code of part[mine] at my_code, with its scale at my_scale. Gather
    //   the codes in codes[ranks, bytes] and the scales in scales[ranks]. The part of rank r begins at values +
    //   r·length and has in_part(r, n) values. With options_.error_feedback, this rank's part of left_out must also get
    //   what the code of the mean loses. Only this rank knows that loss, so it keeps it for all ranks: a later average
    //   divides it by their number. add_floats of model/elementwise.h adds a factor times an array. Everything runs on
    //   stream_, over comm_.
    make_code(my_code, my_scale, part, mine);
    if (options_.error_feedback) {  // only this rank knows what the code of the mean loses, so it keeps that for all
      float* part_left_out = left_out + (part - values);
      launch(add_floats, mine, stream_, part_left_out, part, static_cast<float>(ranks), mine);
      launch(add_decoded, mine, stream_, part_left_out, my_code, my_scale, -static_cast<float>(ranks), code_, mine);
    }
    NCCL_CHECK(ncclAllGather(my_code, codes, bytes, ncclUint8, comm_, stream_));
    NCCL_CHECK(ncclAllGather(my_scale, scales, 1, ncclFloat, comm_, stream_));
    CUDA_CHECK(cudaMemsetAsync(values, 0, n * sizeof(float), stream_));
    for (int r = 0; r < ranks; ++r) {
      const int count = in_part(r, n);
      launch(add_decoded, count, stream_, values + static_cast<std::size_t>(r) * length,
             codes + static_cast<std::size_t>(r) * bytes, scales + r, 1.0f, code_, count);
    }
    // END WRITE 10.O
    probe("10.O", "what the codes of the means say", values, {n}, stream_);
    if (options_.error_feedback) probe("10.O", "left out of the values and of the mean", left_out, {n}, stream_);
  }

  void make_code(std::uint8_t* code, float* scale, const float* values, int n) const {
    probe("10.M", "given to make_code: values", values, {n}, stream_);
    const Pieces pieces(n);
    launch(largest_or_sum, pieces.count, stream_, of_pieces_.data(), values, code_, pieces);
    launch(make_scale, 1, stream_, scale, of_pieces_.data(), code_, pieces.count, n);
    probe("10.11", "scale", scale, {1}, stream_);
    launch(encode, code_bytes(code_, n), stream_, code, values, scale, code_, n);
  }

  // An array is cut into one part per rank, in whole bytes of signs. The last parts may be shorter, or empty.
  int part_length(int n) const { return ((n + replicas_.size() - 1) / replicas_.size() + 7) / 8 * 8; }
  int in_part(int r, int n) const { return std::clamp(n - r * part_length(n), 0, part_length(n)); }

  CompressionOptions options_;
  Code code_;
  const Group& replicas_;
  ncclComm_t comm_;
  cudaStream_t stream_;
  LargestValues largest_;
  DeviceBuffer<Real> picked_;  // [ranks, k]
  DeviceBuffer<int> places_;   // [ranks, k]
  DeviceBuffer<std::uint8_t> codes_, received_;
  DeviceBuffer<float> scales_, of_pieces_;
};

// Averages a model's gradients over its replicas, bucket by bucket, hidden behind the backward pass.
class CompressedReducer {
 public:
  CompressedReducer(const Model& model, double bucket_bytes, const CompressionOptions& options, const Group& replicas,
                    cudaStream_t compute)
      : options_(options),
        grads_(model.grads()),
        total_(model.count()),
        buckets_(make_buckets(model, bucket_bytes)),
        ready_(buckets_.size()),
        replicas_(replicas),
        compute_(compute),
        left_out_(options.error_feedback ? total_ : 0, Memory::buckets),
        exact_(kMixedPrecision ? largest_bucket() : 0, Memory::buckets),
        compressor_(options, largest_bucket(), replicas, communication_) {
    if (options.error_feedback) CUDA_CHECK(cudaMemsetAsync(left_out_.data(), 0, left_out_.bytes(), compute));
  }

  // Adds what this rank has left out, which differs from rank to rank, to checkpoints.
  void add_to(Training& training) {
    training.add(&steps_);
    if (!options_.error_feedback) return;
    training.add(
        of_replica({whole_tensor("left_out", {total_}, left_out_.data())}, replicas_.rank(), replicas_.size()));
  }

  // Averages the current bucket once layer i has filled it. Call in the last backward pass of a step, once the
  // gradients of layer i are enqueued.
  void on_layer_done(int i) {
    const Bucket& bucket = buckets_[next_];
    if (i != bucket.first_layer) return;
    CUDA_CHECK(cudaEventRecord(ready_[next_], compute_));
    CUDA_CHECK(cudaStreamWaitEvent(communication_, ready_[next_]));
    average(bucket);
    ++next_;
  }

  // Makes the compute stream wait until all buckets are averaged. Call before the update.
  void finish() {
    CUDA_CHECK(cudaEventRecord(done_, communication_));
    CUDA_CHECK(cudaStreamWaitEvent(compute_, done_));
    if (options_.error_feedback) probe("10.7", "gradients before the update", grads_, {total_}, compute_);
    next_ = 0;
    ++steps_;
  }

 private:
  void average(const Bucket& bucket) {
    Real* of_model = grads_ + bucket.offset;
    if (options_.kind == "none") {
      NCCL_CHECK(ncclAllReduce(of_model, of_model, bucket.count, kReal, ncclAvg, replicas_.comm(), communication_));
      return;
    }
    float* left_out = options_.error_feedback ? left_out_.data() + bucket.offset : nullptr;
    const int number = steps_ * static_cast<int>(buckets_.size()) + static_cast<int>(next_) + 1;
    // WRITE 10.I: Replace the bucket's gradients by what compressor_ makes of them, with error feedback if asked for.
    //   of_model[bucket.count] are the gradients. compressor_.average(values, left_out, n, number) averages an array of
    //   floats in place and, if left_out is not null, writes to it what this rank does not send. With
    //   options_.error_feedback, what earlier steps left out of this bucket is in left_out, and has to be sent now.
    //   If kMixedPrecision, the gradients are not floats: convert them to exact_ and back, with the kernels
    //   to_floats(floats, reals, n) and to_reals(reals, floats, n). Otherwise, as_floats_or_null(of_model) is the
    //   array. Everything runs on communication_, which has waited for the gradients.
    float* grads = kMixedPrecision ? exact_.data() : as_floats_or_null(of_model);
    if (kMixedPrecision) launch(to_floats, bucket.count, communication_, grads, of_model, bucket.count);
    if (options_.error_feedback) {
      // TODO 10.7: Add what the previous steps left out of this bucket, left_out[bucket.count], to grads.
      //   One launch of add_floats(y, x, factor, n), y += factor·x, on the communication stream.
      launch(add_floats, bucket.count, communication_, grads, left_out, 1.0f, bucket.count);
      // END TODO 10.7
    }
    compressor_.average(grads, left_out, bucket.count, number);
    if (kMixedPrecision) launch(to_reals, bucket.count, communication_, of_model, grads, bucket.count);
    // END WRITE 10.I
    if (options_.error_feedback) probe("10.7", "left out of the bucket", left_out, {bucket.count}, communication_);
  }

  int largest_bucket() const { return std::ranges::max(buckets_, {}, &Bucket::count).count; }

  CompressionOptions options_;
  Real* grads_;  // [total_]
  int total_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;      // the bucket that the backward pass is filling
  std::vector<Event> ready_;  // one per bucket
  Event done_;
  const Group& replicas_;
  cudaStream_t compute_;
  Stream communication_{"communication", Priority::high};
  int steps_ = 0;                 // steps so far
  DeviceBuffer<float> left_out_;  // [total_], with --error-feedback
  DeviceBuffer<float> exact_;     // in mixed precision: a bucket's gradients as floats, which are compressed
  Compressor compressor_;
};

int main(int argc, char** argv) {
  Options options("10_less_communication/ddp_compressed",
                  "Trains a model with data parallelism, with compressed gradients.", Sampling::distributed);
  double bucket_mb = 25;
  CompressionOptions compression;
  options.add("--bucket-mb", bucket_mb, "size at which a bucket of gradients is full (MiB)", 0.0);
  options.add("--compress", compression.kind, "what is sent of a bucket", {"none", "topk", "randomk", "int8", "sign"});
  options.add("--ratio", compression.ratio, "share of the values that topk and randomk send", 0.0, 1);
  options.add_flag("--error-feedback", compression.error_feedback, "add what was left out to the next step's gradient");
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("full");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  if (job.rank() == 0) model.initialize(options.model_seed);
  // One call for all parameters, which are contiguous.
  NCCL_CHECK(ncclBroadcast(model.values(), model.values(), model.count(), kReal, 0, job.comm(), stream));
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  CompressedReducer reducer(model, bucket_mb * (1 << 20), compression, job.group(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  add_all(training, model, optimizer);  // the same on all ranks, so rank 0 saves
  reducer.add_to(training);

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first, [&](int layer) {
          if (batch.last) reducer.on_layer_done(layer);  // only now are the sums over the step's batches complete
        });
      }
      reducer.finish();
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, job.rank(), stream);
}
