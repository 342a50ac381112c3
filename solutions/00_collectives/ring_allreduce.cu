// SPDX-License-Identifier: Apache-2.0
// All-reduce from sends and receives: the ranks form a ring, and each sends to the next rank and receives from the
// previous one. Compares the result with ncclAllReduce.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "00_collectives/support/sum_check.h"
#include "common/device/device.h"
#include "common/device/launch.h"
#include "common/job/job.h"
#include "common/record/record.h"

namespace {

using namespace workshop;

__global__ void add(float* sum, const float* x, int count) {
  for (int i : grid_stride(count)) sum[i] += x[i];
}

// A range of elements of the vector that is reduced.
struct RingChunk {
  int begin, size;
};

// Cuts the vector into one chunk per rank. If `count` is not divisible by the number of ranks, the first chunks have
// one element more. With fewer elements than ranks, the last chunks are empty.
class RingChunks {
 public:
  RingChunks(int count, int world) : count_(count), world_(world) {}
  // Returns chunk `index`, counted around the ring: -1 is the last chunk, `world` is the first.
  RingChunk operator[](int index) const {
    // WRITE 00.E: Find out where chunk `index` begins and how many elements it has.
    //   The chunks lie in the vector one after the other, chunk 0 first, and leave out nothing of its count_ elements.
    //   `index` may be any number from -world_ to world_: the indices world_ and -world_ are those of chunk 0, too.
    const int c = ((index % world_) + world_) % world_;
    const int begin = c * (count_ / world_) + std::min(c, count_ % world_);
    return {begin, count_ / world_ + (c < count_ % world_ ? 1 : 0)};
    // END WRITE 00.E
  }

 private:
  int count_, world_;
};

struct Ring {
  ncclComm_t comm;
  cudaStream_t stream;
  int rank, world;
};

// Records what pass_on() is asked to do.
void probe_given(const float* data, RingChunk outgoing, const float* received, RingChunk incoming, const Ring& ring) {
  const int in_its_place = received == data + incoming.begin ? 1 : 0;
  probe("00.F", "given to pass_on: outgoing begin, outgoing size, incoming size, arrives in its place",
        std::array{outgoing.begin, outgoing.size, incoming.size, in_its_place});
  probe("00.F", "given to pass_on: outgoing chunk", data + outgoing.begin, {outgoing.size}, ring.stream);
}

// Sends the chunk `outgoing` of `data` to the next rank and receives the previous rank's chunk in `received`.
void pass_on(const float* data, RingChunk outgoing, float* received, RingChunk incoming, const Ring& ring) {
  probe_given(data, outgoing, received, incoming, ring);
  // WRITE 00.F: Send the outgoing chunk to the next rank, and receive the incoming one from the previous rank.
  //   The outgoing chunk begins at data + outgoing.begin; the incoming one is written from `received` on. The next rank
  //   has the number after this rank's; after the last rank comes rank 0. All ranks do this at the same time, on
  //   ring.stream, and the host must not wait.
  // TODO 00.10: Send the outgoing chunk to the next rank and receive the incoming one from the previous rank.
  //   The outgoing chunk is outgoing.size floats from data + outgoing.begin. Which rank comes after the last one?
  //   All ranks do this at the same time. If each send had to finish first, which rank would receive? The host must not
  //   wait.
  const int next = (ring.rank + 1) % ring.world;
  const int previous = (ring.rank + ring.world - 1) % ring.world;
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(data + outgoing.begin, outgoing.size, ncclFloat, next, ring.comm, ring.stream));
  NCCL_CHECK(ncclRecv(received, incoming.size, ncclFloat, previous, ring.comm, ring.stream));
  NCCL_CHECK(ncclGroupEnd());
  // END TODO 00.10
  // END WRITE 00.F
  probe("00.10", "received", received, {incoming.size}, ring.stream);
}

// Takes world-1 steps, after which rank r has the sum over all ranks in chunk r+1. Its other chunks hold partial sums.
// `received` must have room for the largest chunk.
void ring_reduce_scatter(float* data, float* received, const RingChunks& chunks, const Ring& ring) {
  // WRITE 00.G: Pass partial sums around the ring, until rank r has the sum over all ranks in chunk r+1 of `data`.
  //   In every step, each rank passes on one chunk with pass_on() and adds the chunk that arrives in `received` to the
  //   same chunk of `data`. It begins with the chunk of its own number; the table in README.md has the steps. chunks[i]
  //   is chunk i, counted around the ring. The kernel add(sum, x, count) adds x to sum; launch(kernel, elements,
  //   stream, arguments...) starts it. All work is on ring.stream, and the host must not wait.
  for (int step = 0; step < ring.world - 1; ++step) {
    RingChunk outgoing = {}, incoming = {};
    // TODO 00.11: Set `outgoing` and `incoming` to this step's chunks of the reduce-scatter.
    //   In step 0, rank r sends chunk r. In every later step, it sends the chunk that it has just added to.
    //   The previous rank follows the same rule: which chunk arrives?
    outgoing = chunks[ring.rank - step];
    incoming = chunks[ring.rank - step - 1];
    // END TODO 00.11
    probe("00.11", "chunk to send", data + outgoing.begin, {outgoing.size}, ring.stream);
    probe("00.11", "chunk to add to", data + incoming.begin, {incoming.size}, ring.stream);
    pass_on(data, outgoing, received, incoming, ring);
    // TODO 00.12: Add `received` to the chunk of `data` that it belongs to: one launch of the kernel `add`.
    //   launch(kernel, elements, stream, the kernel's arguments...). Which operation on the stream must be done before
    //   the kernel starts, and what guarantees this? The host must not wait for it.
    launch(add, incoming.size, ring.stream, data + incoming.begin, received, incoming.size);
    // END TODO 00.12
    probe("00.12", "partial sum", data + incoming.begin, {incoming.size}, ring.stream);
  }
  // END WRITE 00.G
}

// Takes world-1 steps that carry the finished chunks around the ring. Afterwards, every rank has all of them.
void ring_all_gather(float* data, const RingChunks& chunks, const Ring& ring) {
  // WRITE 00.H: Pass the finished chunks around the ring, until every rank has all of them in `data`.
  //   Rank r begins with its finished chunk, r+1. A chunk that arrives replaces the old one; there is no other buffer.
  //   The host must not wait.
  for (int step = 0; step < ring.world - 1; ++step) {
    RingChunk outgoing = {}, incoming = {};
    // TODO 00.13: Set `outgoing` and `incoming` to this step's chunks of the all-gather.
    //   After the reduce-scatter, rank r has the finished chunk r+1 and sends it in step 0.
    //   Which chunk can it send in the next step, and which of its chunks does this step overwrite?
    outgoing = chunks[ring.rank + 1 - step];
    incoming = chunks[ring.rank - step];
    // END TODO 00.13
    probe("00.13", "offset to send from and offset to overwrite", std::array{outgoing.begin, incoming.begin});
    probe("00.13", "finished chunk to send", data + outgoing.begin, {outgoing.size}, ring.stream);
    probe("00.13", "chunk to overwrite", data + incoming.begin, {incoming.size}, ring.stream);
    pass_on(data, outgoing, data + incoming.begin, incoming, ring);
  }
  // END WRITE 00.H
}

// Records the chunks that the ring asks for.
void probe_chunks(const RingChunks& chunks, int world) {
  std::vector<int> parts, around;
  for (int i = 0; i < world; ++i) parts.insert(parts.end(), {chunks[i].begin, chunks[i].size});
  for (int i = -world; i <= world; ++i) around.push_back(chunks[i].begin);
  probe("00.E", "begin and size of each chunk", parts);
  probe("00.E", "begin of the chunks -P to P", around);
}

// Replaces data[count] on every rank with its sum over all ranks.
void ring_all_reduce(float* data, int count, const Ring& ring) {
  const RingChunks chunks(count, ring.world);
  probe_chunks(chunks, ring.world);
  DeviceBuffer<float> received(chunks[0].size, Memory::buckets);
  ring_reduce_scatter(data, received.data(), chunks, ring);
  probe("00.G", "vector after the reduce-scatter", data, {count}, ring.stream);
  ring_all_gather(data, chunks, ring);
  probe("00.H", "vector after the all-gather", data, {count}, ring.stream);
  CUDA_CHECK(cudaStreamSynchronize(ring.stream));  // `received` is freed here
}

}  // namespace

int main(int argc, char** argv) {
  int count = 1000;
  Options options("00_collectives/ring_allreduce", "Builds an all-reduce from sends and receives around a ring");
  options.without_training();
  options.add("--count", count, "elements of the vector that is reduced", 1, 1 << 24);
  options.parse(argc, argv);
  Job job(options);
  Stream stream;
  const Ring ring = {job.comm(), stream, job.rank(), job.world()};

  DeviceBuffer<float> by_ring(count, Memory::data), by_nccl(count, Memory::data);
  by_ring.upload(vector_of(job.rank(), count), stream);
  by_nccl.upload(vector_of(job.rank(), count), stream);
  const double seconds = seconds_of([&] { ring_all_reduce(by_ring.data(), count, ring); }, job, stream);
  NCCL_CHECK(ncclAllReduce(by_nccl.data(), by_nccl.data(), count, ncclFloat, ncclSum, job.comm(), stream));

  const double difference = difference_of(by_ring.download(stream), by_nccl.download(stream), "the ring", job);
  const int steps = 2 * (job.world() - 1);
  if (time_is_simulated() && steps > 0) {  // whole milliseconds: how long a kernel takes does not count
    probe("00.10", "time of a step of the ring, in ms",
          std::array{static_cast<int>(std::lround(seconds * 1e3 / steps))});
  }
  print0("%d ranks, %d elements: %d steps, each sending one chunk of at most %d elements\n", job.world(), count, steps,
         RingChunks(count, job.world())[0].size);
  print0("a rank sends about 2(P-1)/P x %d = %.1f elements: less than twice the vector, however many ranks\n", count,
         static_cast<double>(steps) / job.world() * count);
  if (difference < 0) return kFailed;
  print0("ring and ncclAllReduce agree: largest difference on rank 0 is %.3g, within (P-1) eps sum|x|\n", difference);
  print0("the ring took %.2f us; the first time, the ranks connect\n", seconds * 1e6);
  record_value("seconds of the ring", seconds);
  return 0;
}
