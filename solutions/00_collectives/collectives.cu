// SPDX-License-Identifier: Apache-2.0
// Runs the eight collective operations and prints every rank's buffers before and after; then builds an all-reduce from
// its two halves.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"
#include "common/nccl/off_the_record.h"
#include "common/record/record.h"

namespace {

using namespace workshop;

// The ranks that take part in a collective, and the stream on which this rank enqueues it.
struct Participants {
  ncclComm_t comm;
  cudaStream_t stream;
  int rank;   // of this process
  int world;  // number of ranks
  int root;   // the rank from which broadcast and scatter read and to which gather and reduce write
};

// Copies the root's `in` to all ranks. in: [count], read only on the root; out: [count].
void broadcast(const float* in, float* out, int count, const Participants& group) {
  // TODO 00.1: Copy the root's `count` values of `in` to `out` on every rank: one NCCL call.
  //   ncclBroadcast(send, receive, count, ncclFloat, root, comm, stream). All ranks make the same call with the same
  //   arguments. Which argument says who sends? Put NCCL_CHECK( ) around this and every other NCCL call: if the call
  //   fails, NCCL_CHECK reports it and ends the job. docs/calls.md has all calls on one page.
  NCCL_CHECK(ncclBroadcast(in, out, count, ncclFloat, group.root, group.comm, group.stream));
  // END TODO 00.1
  probe("00.1", "broadcast", out, {count}, group.stream);
}

// Gives row r of the root's `in` to rank r. in: [world, count], read only on the root; out: [count].
void scatter(const float* in, float* out, int count, const Participants& group) {
  // WRITE 00.A: Send row r of the root's `in` to rank r's `out`, for every r, with sends and receives.
  //   A row has `count` floats. group.root is the root, group.world the number of ranks. The root gets its own row,
  //   too. Only the root may read `in`. Everything is on group.stream; the calls are in docs/calls.md.
  // TODO 00.2: Send row r of the root's `in` to rank r's `out`, with one group of sends and receives.
  //   ncclSend(from, count, ncclFloat, peer, comm, stream) and ncclRecv(to, count, ncclFloat, peer, comm, stream). Put
  //   them between ncclGroupStart() and ncclGroupEnd(): within a group, a rank may send to itself. How many sends does
  //   each rank make, and how many receives?
  NCCL_CHECK(ncclGroupStart());
  if (group.rank == group.root) {
    for (int to = 0; to < group.world; ++to) {
      NCCL_CHECK(ncclSend(in + to * count, count, ncclFloat, to, group.comm, group.stream));
    }
  }
  NCCL_CHECK(ncclRecv(out, count, ncclFloat, group.root, group.comm, group.stream));
  NCCL_CHECK(ncclGroupEnd());
  // END TODO 00.2
  // END WRITE 00.A
  probe("00.2", "scatter", out, {count}, group.stream);
}

// Collects all ranks' `in` on the root: row r of its `out` is rank r's `in`. in: [count]; out: [world, count], written
// only on the root.
void gather(const float* in, float* out, int count, const Participants& group) {
  // WRITE 00.B: Send every rank's `in` to the root, where rank r's values become row r of `out`.
  //   Use sends and receives again. Only the root may write `out`, and it has a row of its own, too.
  // TODO 00.3: Send rank r's `in` to row r of the root's `out`, with one group of sends and receives.
  //   This is scatter in reverse. What does each send become, and what does each receive become?
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(in, count, ncclFloat, group.root, group.comm, group.stream));
  if (group.rank == group.root) {
    for (int from = 0; from < group.world; ++from) {
      NCCL_CHECK(ncclRecv(out + from * count, count, ncclFloat, from, group.comm, group.stream));
    }
  }
  NCCL_CHECK(ncclGroupEnd());
  // END TODO 00.3
  // END WRITE 00.B
  probe("00.3", "gather", out, {group.world, count}, group.stream);
}

// Sums `in` over the ranks, on the root. in: [count]; out: [count], written only on the root.
void reduce(const float* in, float* out, int count, const Participants& group) {
  // TODO 00.4: Sum `in` over all ranks, element by element, into the root's `out`: one NCCL call.
  //   ncclReduce(send, receive, count, ncclFloat, operation, root, comm, stream). Which operation is the sum, rather
  //   than the maximum or the average?
  NCCL_CHECK(ncclReduce(in, out, count, ncclFloat, ncclSum, group.root, group.comm, group.stream));
  // END TODO 00.4
  probe("00.4", "reduce", out, {count}, group.stream);
}

// Collects all ranks' `in` on every rank: row r of `out` is rank r's `in`. in: [count]; out: [world, count].
void all_gather(const float* in, float* out, int count, const Participants& group) {
  // TODO 00.5: Give every rank the `in` of all ranks, as the rows of `out`: one NCCL call.
  //   ncclAllGather(send, receive, count, ncclFloat, comm, stream) takes one count. Is it the number of elements that a
  //   rank sends, or the number that it receives?
  NCCL_CHECK(ncclAllGather(in, out, count, ncclFloat, group.comm, group.stream));
  // END TODO 00.5
  probe("00.5", "all-gather", out, {group.world, count}, group.stream);
}

// Sums `in` over the ranks and leaves row r of the sum on rank r. in: [world, count]; out: [count].
void reduce_scatter(const float* in, float* out, int count, const Participants& group) {
  // TODO 00.6: Sum `in` over all ranks and leave row r of the sum in rank r's `out`: one NCCL call.
  //   ncclReduceScatter(send, receive, count, ncclFloat, operation, comm, stream) takes one count. Is it the number
  //   of elements that a rank sends, or the number that it receives?
  NCCL_CHECK(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, group.comm, group.stream));
  // END TODO 00.6
  probe("00.6", "reduce-scatter", out, {count}, group.stream);
}

// Transposes blocks: on rank r, row i of `out` is row r of rank i's `in`. in: [world, count]; out: [world, count].
void all_to_all(const float* in, float* out, int count, const Participants& group) {
  // WRITE 00.C: Send row r of rank q's `in` to rank r, where it becomes row q of `out`, for all ranks q and r.
  //   Use sends and receives. All ranks send at the same time, and none may wait for another forever. If q is r, the
  //   row stays on its rank, but it must get from `in` to `out`.
  // TODO 00.7: Send row r of `in` to rank r, and receive row r of `out` from rank r, for every r.
  //   What would happen without a group around these sends and receives?
  NCCL_CHECK(ncclGroupStart());
  for (int peer = 0; peer < group.world; ++peer) {
    NCCL_CHECK(ncclSend(in + peer * count, count, ncclFloat, peer, group.comm, group.stream));
    NCCL_CHECK(ncclRecv(out + peer * count, count, ncclFloat, peer, group.comm, group.stream));
  }
  NCCL_CHECK(ncclGroupEnd());
  // END TODO 00.7
  // END WRITE 00.C
  probe("00.7", "all-to-all", out, {group.world, count}, group.stream);
}

// Sums `in` over the ranks, on every rank. in: [world, count]; out: [world, count].
void all_reduce(const float* in, float* out, int count, const Participants& group) {
  // TODO 00.8: Sum `in` over all ranks into every rank's `out`: one NCCL call.
  //   ncclAllReduce(send, receive, count, ncclFloat, operation, comm, stream). Here `in` has world x count elements,
  //   and every rank gets the sums of all of them. What is the count of this call?
  NCCL_CHECK(ncclAllReduce(in, out, group.world * count, ncclFloat, ncclSum, group.comm, group.stream));
  // END TODO 00.8
  probe("00.8", "all-reduce", out, {group.world, count}, group.stream);
}

// Does the same as all_reduce, in two halves. FSDP (chapter 06) does other work between them.
void all_reduce_in_halves(const float* in, float* out, int count, const Participants& group) {
  // WRITE 00.D: Sum `in` over all ranks into every rank's `out`, with two NCCL calls, neither of them an all-reduce.
  //   After the first call, each rank has the sum of one row only; after the second, of all rows. There is no other
  //   buffer than `out`, so the second call must be in place (docs/calls.md says when it is).
  float* my_row = out + group.rank * count;
  // TODO 00.9: Reduce-scatter `in` into `my_row`, then all-gather the rows into `out`: two NCCL calls.
  //   `my_row` is a row of `out`. Which send buffer makes the second call an in-place one, which need not copy this
  //   rank's own row?
  NCCL_CHECK(ncclReduceScatter(in, my_row, count, ncclFloat, ncclSum, group.comm, group.stream));
  NCCL_CHECK(ncclAllGather(my_row, out, count, ncclFloat, group.comm, group.stream));
  // END TODO 00.9
  // END WRITE 00.D
  probe("00.9", "reduce-scatter + all-gather", out, {group.world, count}, group.stream);
}

// The initial values: 100, 101, … on rank 0, 200, 201, … on rank 1. They are integers, so sums are exact in any order.
float initial(int rank, int i) { return static_cast<float>(100 * (rank + 1) + i); }

float sum_of_initial(int i, int world) {
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += initial(rank, i);
  return sum;
}

// A collective, the sizes of its buffers, and the value that it must leave in each element of `out`.
struct Example {
  const char* title;
  int in, out;  // elements of a rank's input and output
  void (*run)(const float* in, float* out, int count, const Participants& group);
  float (*expected)(int rank, int i, int count, const Participants& group);  // 0 where nothing is written
};

std::vector<Example> examples(int count, int world) {
  const int all = world * count;
  return {
      {"broadcast", count, count, broadcast,
       [](int, int i, int, const Participants& group) { return initial(group.root, i); }},
      {"scatter", all, count, scatter,
       [](int rank, int i, int count, const Participants& group) { return initial(group.root, rank * count + i); }},
      {"gather", count, all, gather,
       [](int rank, int i, int count, const Participants& group) {
         return rank == group.root ? initial(i / count, i % count) : 0;
       }},
      {"reduce", count, count, reduce,
       [](int rank, int i, int, const Participants& group) {
         return rank == group.root ? sum_of_initial(i, group.world) : 0;
       }},
      {"all-gather", count, all, all_gather,
       [](int, int i, int count, const Participants&) { return initial(i / count, i % count); }},
      {"reduce-scatter", all, count, reduce_scatter,
       [](int rank, int i, int count, const Participants& group) {
         return sum_of_initial(rank * count + i, group.world);
       }},
      {"all-to-all", all, all, all_to_all,
       [](int rank, int i, int count, const Participants&) { return initial(i / count, rank * count + i % count); }},
      {"all-reduce", all, all, all_reduce,
       [](int, int i, int, const Participants& group) { return sum_of_initial(i, group.world); }},
      {"reduce-scatter, then all-gather", all, all, all_reduce_in_halves,
       [](int, int i, int, const Participants& group) { return sum_of_initial(i, group.world); }},
  };
}

// Returns the buffers of all ranks, [world, mine.size()], on every host. Off the record, because the ledger lists only
// the calls that you write.
std::vector<float> from_all_ranks(const DeviceBuffer<float>& mine, const Participants& group) {
  const OffTheRecord off_the_record;
  DeviceBuffer<float> all(group.world * mine.size(), Memory::data);
  NCCL_CHECK(ncclAllGather(mine.data(), all.data(), mine.size(), ncclFloat, group.comm, group.stream));
  return all.download(group.stream);
}

// Formats like " 100 101 | 102 103": a bar between rows of `count` elements, a dot for an element that was not written.
std::string to_string(const float* values, int size, int count) {
  std::string text;
  for (int i = 0; i < size; ++i) {
    char cell[16];
    std::snprintf(cell, sizeof cell, values[i] == 0 ? "    ." : "%5g", values[i]);
    text += i > 0 && i % count == 0 ? " |" : "";
    text += cell;
  }
  return text;
}

// Runs one collective and prints every rank's buffers before and after. Returns all outputs, [world, out], and clears
// `right` if an output is not what the collective promises.
std::vector<float> demonstrate(const Example& example, int count, const Participants& group, bool& right) {
  std::vector<float> host(example.in);
  for (int i = 0; i < example.in; ++i) host[i] = initial(group.rank, i);
  DeviceBuffer<float> in(example.in, Memory::data), out(example.out, Memory::data);
  in.upload(host, group.stream);
  CUDA_CHECK(cudaMemsetAsync(out.data(), 0, out.bytes(), group.stream));
  const std::vector<float> before = from_all_ranks(in, group);
  example.run(in.data(), out.data(), count, group);
  const std::vector<float> after = from_all_ranks(out, group);

  print0("\n%s\n", example.title);
  for (int rank = 0; rank < group.world; ++rank) {
    const float* row = &after[rank * example.out];
    std::vector<float> expected(example.out);
    for (int i = 0; i < example.out; ++i) expected[i] = example.expected(rank, i, count, group);
    const bool row_right = std::equal(expected.begin(), expected.end(), row);
    print0("  rank %d %s  -> %s\n", rank, to_string(&before[rank * example.in], example.in, count).c_str(),
           to_string(row, example.out, count).c_str());
    if (!row_right) print0("  WRONG: expected %s\n", to_string(expected.data(), example.out, count).c_str());
    right = right && row_right;
  }
  return after;
}

}  // namespace

int main(int argc, char** argv) {
  int count = 2;
  int root = 0;
  Options options("00_collectives/collectives",
                  "Runs every collective operation and shows its buffers before and after");
  options.without_training();
  options.add("--count", count, "elements that each rank contributes", 1, 64);
  options.add("--root", root, "root of broadcast, scatter, gather and reduce", 0);
  options.parse(argc, argv);
  Job job(options);
  if (root >= job.world()) {
    usage_error("--root is '%d'; expected a rank of this run, 0 to %d", root, job.world() - 1);
  }
  Stream stream;
  const Participants group = {job.comm(), stream, job.rank(), job.world(), root};

  print0("%d ranks, %d elements per rank, root %d; a dot is an element that was not written\n", job.world(), count,
         root);
  bool right = true;
  std::vector<std::vector<float>> outputs;
  for (const Example& example : examples(count, job.world())) {
    outputs.push_back(demonstrate(example, count, group, right));
  }
  const bool same = outputs[outputs.size() - 1] == outputs[outputs.size() - 2];
  print0("\nall-reduce and its two halves give %s values on all ranks\n", same ? "the same" : "DIFFERENT");
  return right && same ? 0 : kFailed;
}
