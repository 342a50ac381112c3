// SPDX-License-Identifier: Apache-2.0
// Ranks that fail to make the calls that others wait for, in one way per run:
//
//   misbehave --fault skip|flood|count|operation|send-first|leave|exit|kill|stop|compute|nap|files|todo|launch|group
//             |open-group|none
//
// The last rank is at fault; with "send-first", all are. With "nap" and "files" it is only slow. With "flood" the
// others enqueue work until the queue is full. With "todo" rank 0 reaches a TODO while its stream is stuck. With
// "launch" a kernel launch fails. With "group" nothing is wrong, but there is a probe in an open group; "open-group"
// never closes this group.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/job/job.h"
#include "common/record/record.h"
#include "common/watchdog/watchdog.h"

namespace {

using namespace workshop;

__global__ void clear(float* x, int n) {
  for (int i : grid_stride(n)) x[i] = 0;
}

struct Group {
  ncclComm_t comm;
  cudaStream_t stream;
  int rank, world;
  std::size_t count;
};

void all_reduce(const DeviceBuffer<float>& data, std::size_t count, const Group& group) {
  NCCL_CHECK(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, group.comm, group.stream));
}

void reduce(const DeviceBuffer<float>& data, const Group& group) {
  NCCL_CHECK(ncclReduce(data.data(), data.data(), group.count, ncclFloat, ncclSum, 0, group.comm, group.stream));
}

void broadcast(const DeviceBuffer<float>& data, const Group& group) {
  NCCL_CHECK(ncclBroadcast(data.data(), data.data(), group.count, ncclFloat, 0, group.comm, group.stream));
}

// Each rank sends to the next one in the ring before it receives, without a group.
void send_first(const DeviceBuffer<float>& data, const Group& group) {
  const int next = (group.rank + 1) % group.world, previous = (group.rank + group.world - 1) % group.world;
  NCCL_CHECK(ncclSend(data.data(), group.count, ncclFloat, next, group.comm, group.stream));
  NCCL_CHECK(ncclRecv(data.data(), group.count, ncclFloat, previous, group.comm, group.stream));
}

// Enqueues more than any queue holds.
void flood(const DeviceBuffer<float>& data, const Group& group) {
  for (int i = 0; i < 100'000; ++i) launch(clear, 1, group.stream, data.data(), 1);
}

void launch_on_no_stream(const DeviceBuffer<float>& data) {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreate(&stream));
  CUDA_CHECK(cudaStreamDestroy(stream));
  launch(clear, 1, stream, data.data(), 1);
}

// Records something and then waits for something that never ends.
void run_into_todo(const DeviceBuffer<float>& data, const Group& group) {
  if (group.rank > 0) sleep(60);
  probe("00.0", "sum", data.data(), {4}, group.stream);
  all_reduce(data, group.count, group);
  todo("00.0");
}

// The probe's values exist only after the end of the group: each is the number of ranks.
void probe_in_group(const DeviceBuffer<float>& data, const Group& group, bool close) {
  const std::vector<float> ones(group.count, 1);
  CUDA_CHECK(cudaMemcpyAsync(data.data(), ones.data(), data.bytes(), cudaMemcpyHostToDevice, group.stream));
  CUDA_CHECK(cudaStreamSynchronize(group.stream));
  NCCL_CHECK(ncclGroupStart());
  all_reduce(data, group.count, group);
  probe("00.0", "sum", data.data(), {1}, group.stream);
  if (close) NCCL_CHECK(ncclGroupEnd());
}

// Does what the rank at fault does instead of the second all-reduce. Returns false if it leaves the job.
bool misbehave(const std::string& fault, const DeviceBuffer<float>& data, const Group& group) {
  if (fault == "count") all_reduce(data, group.count / 2, group);
  if (fault == "operation") reduce(data, group);
  if (fault == "exit") std::exit(0);
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "compute") sleep(60);
  if (fault == "nap") {
    std::printf("napping\n");
    std::fflush(stdout);
    sleep(1);
    all_reduce(data, group.count, group);
  }
  return fault != "leave";
}

void run(const std::string& fault, const Group& group) {
  const DeviceBuffer<float> data(group.count, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(data.data(), 0, data.bytes(), group.stream));
  // NCCL connects the ranks at the first call of each kind, in which the host would wait for the rank at fault.
  broadcast(data, group);
  reduce(data, group);
  all_reduce(data, group.count, group);
  if (fault == "flood") {
    CUDA_CHECK(cudaStreamSynchronize(group.stream));
    sleep(1);  // so that the watchdog sees these completed; during the flood it cannot ask
  }
  if (fault == "launch") launch_on_no_stream(data);
  if (fault == "todo") run_into_todo(data, group);
  if (fault == "group" || fault == "open-group") return probe_in_group(data, group, fault == "group");
  if (fault == "send-first") {
    send_first(data, group);
  } else if (fault == "files") {
    const SlowFiles slow_files;
    if (group.rank == group.world - 1) sleep(4);
    all_reduce(data, group.count, group);
    CUDA_CHECK(cudaStreamSynchronize(group.stream));
  } else if (fault != "none" && group.rank == group.world - 1) {
    CUDA_CHECK(cudaStreamSynchronize(group.stream));
    if (!misbehave(fault, data, group)) return;
  } else {
    all_reduce(data, group.count, group);
    if (fault == "flood") flood(data, group);
  }
  broadcast(data, group);
  CUDA_CHECK(cudaStreamSynchronize(group.stream));
}

}  // namespace

int main(int argc, char** argv) {
  std::string fault = "none";
  int count = 1 << 16;
  Options options("misbehave", "ranks that do not do what others wait for");
  options.without_training();
  options.add("--fault", fault, "what goes wrong",
              {"none", "skip", "flood", "count", "operation", "send-first", "leave", "exit", "kill", "stop", "compute",
               "nap", "files", "todo", "launch", "group", "open-group"});
  options.add("--count", count, "elements", /*at_least=*/2);
  options.parse(argc, argv);
  const Job job(options);
  const Stream stream;
  run(fault, {job.comm(), stream, job.rank(), job.world(), static_cast<std::size_t>(count)});
  print0("done\n");
}
