// SPDX-License-Identifier: Apache-2.0
#include <workshop_cpu.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>

#include "common/nccl/off_the_record.h"
#include "common/record/record.h"
#include "golf/judge/judge.h"

namespace golf {
namespace {

using namespace workshop;

// What the inputs wait for on their stream.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;
};

void wait_at(void* data) {
  constexpr std::chrono::seconds kPatience(10);
  auto& gate = *static_cast<Gate*>(data);
  std::unique_lock lock(gate.mutex);
  if (gate.opened.wait_for(lock, kPatience, [&] { return gate.open; })) return;
  fail(kFailed,
       "REFUSED, the function has not returned after 10 s. Its inputs come when it has returned, so it must not wait "
       "for any work, and it can enqueue at most %d operations on a stream",
       kOperations);
}

void open(Gate& gate) {
  const std::lock_guard lock(gate.mutex);
  gate.open = true;
  gate.opened.notify_all();
}

std::uint64_t random_seed() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

constexpr unsigned char kUntouched = 0xff;  // bytes of memory that the function has not written

}  // namespace

void simulate(const char* machine) {
  setenv("WORKSHOP_SIMULATE", machine, 1);
  setenv("WORKSHOP_ORDER", "1", 1);
  // With these, the host would wait for work that waits for the host.
  for (const char* name : {"CUDA_LAUNCH_BLOCKING", "WORKSHOP_BLOCKING", "WORKSHOP_SLOW"}) unsetenv(name);
}

Judge::Judge(const Job& job, int ranks, int floats, int scratch_floats)
    : job_(job),
      inputs_(floats, Memory::data),
      scratch_(scratch_floats, Memory::buckets),
      number_(1, Memory::data),
      staging_(floats) {
  if (job.world() != ranks) usage_error("the task is for %d ranks, and there are %d", ranks, job.world());
  static constexpr const char* kNames[] = {"stream 0", "stream 1", "stream 2", "stream 3"};
  for (int i = 0; i < kStreams; ++i) {
    handles_[i] = streams_.emplace_back(kNames[i]);
    blas_.emplace_back(handles_[i]);
  }
  node_ = job.group().split(job.rank() / kOnNode, job.rank(), "node");
  across_ = job.group().split(job.rank() % kOnNode, job.rank(), "across");
  world_[0] = job.group().split(0, job.rank(), "world 0");
  world_[1] = job.group().split(0, job.rank(), "world 1");
  number_.upload(std::vector<float>(1), stream_);
  speeds_ = speeds();
}

void Judge::refuse(const std::string& why) const { fail(kFailed, "REFUSED, " + why); }

// All hosts and streams have the same clock afterwards.
void Judge::meet() {
  const OffTheRecord off_the_record;
  CUDA_CHECK(cudaDeviceSynchronize());
  NCCL_CHECK(ncclAllReduce(number_.data(), number_.data(), 1, ncclFloat, ncclSum, job_.comm(), stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

double Judge::seconds_of(const std::function<void()>& enqueue) {
  const Event begin(cudaEventDefault), end(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(begin, stream_));
  enqueue();
  CUDA_CHECK(cudaEventRecord(end, stream_));
  CUDA_CHECK(cudaEventSynchronize(end));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  return std::round(milliseconds * 1e6) / 1e9;  // clocks count nanoseconds
}

std::vector<double> Judge::speeds() {
  constexpr int kFloats = 1 << 10, kSide = 1 << 5;
  const OffTheRecord off_the_record;
  DeviceBuffer<float> sum(kFloats, Memory::data), product(kFloats, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(sum.data(), 0, sum.bytes(), stream_));
  std::vector<double> seconds;
  for (const ncclComm_t comm : {world(0), world(1), node_.comm(), across_.comm()}) {
    meet();
    seconds.push_back(seconds_of(
        [&] { NCCL_CHECK(ncclAllReduce(sum.data(), sum.data(), kFloats, ncclFloat, ncclSum, comm, stream_)); }));
  }
  seconds.push_back(
      seconds_of([&] { multiply(sum.data(), sum.data(), product.data(), kSide, kSide, kSide, stream_); }));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  return seconds;
}

void Judge::check_communicators() const {
  for (const Group* group : {&world_[0], &world_[1], &node_, &across_}) {
    int size = 0, rank = 0;
    NCCL_CHECK(ncclCommCount(group->comm(), &size));
    NCCL_CHECK(ncclCommUserRank(group->comm(), &rank));
    if (size != group->size() || rank != group->rank()) refuse("the function has changed a communicator");
  }
}

void Judge::check_scratch() {
  const std::vector<float> memory = scratch_.download(stream_);
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
  std::size_t used = scratch_.bytes();
  while (used > 0 && bytes[used - 1] == kUntouched) --used;
  scratch_used_ = std::max(scratch_used_, used);
}

Call Judge::run(const std::function<void()>& play, const std::function<void(std::uint64_t, float*)>& fill, int shared) {
  for (auto* buffer : {&inputs_, &scratch_}) {
    CUDA_CHECK(cudaMemsetAsync(buffer->data(), kUntouched, buffer->bytes(), stream_));
  }
  meet();
  cpu::watch_overlaps();
  Gate gate;
  const Event begin(cudaEventDefault), end(cudaEventDefault);
  CUDA_CHECK(cudaLaunchHostFunc(stream_, wait_at, &gate));
  CUDA_CHECK(cudaMemcpyAsync(inputs_.data(), staging_.data(), inputs_.bytes(), cudaMemcpyHostToDevice, stream_));
  if (shared > 0) {
    const OffTheRecord off_the_record;
    NCCL_CHECK(ncclBroadcast(inputs_.data(), inputs_.data(), shared, ncclFloat, 0, job_.comm(), stream_));
  }
  CUDA_CHECK(cudaEventRecord(begin, stream_));
  for (const cudaStream_t stream : handles_) CUDA_CHECK(cudaStreamWaitEvent(stream, begin));

  const std::uint64_t allocations = cpu::counters().allocations;
  play();
  if (pncclGroupEnd() == ncclSuccess) refuse("the function has left a group open: ncclGroupEnd() is missing");
  if (cpu::counters().allocations != allocations) refuse("the function allocates memory; use the scratch memory");
  check_communicators();
  Call call = {random_seed(), 0};
  fill(call.seed, staging_.data());
  open(gate);

  // Twice: work may have enqueued more work. The host's clock has then passed the end of all streams.
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaEventRecord(end, stream_));
  CUDA_CHECK(cudaEventSynchronize(end));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  const auto overlaps = cpu::overlaps();
  if (!overlaps.empty()) {
    refuse(std::string("operations of several streams use ") + overlaps[0].resource +
           " at the same time. Put them into one stream or one group, or order them with an event");
  }
  if (speeds() != speeds_) refuse("the function has changed the machine");
  const OffTheRecord off_the_record;
  call.seconds = std::round(std::ranges::max(job_.group().gather(milliseconds)) * 1e6) / 1e9;
  slowest_ = std::max(slowest_, call.seconds);
  check_scratch();
  return call;
}

std::vector<float> Judge::sum_over_ranks(const std::vector<float>& values) {
  const OffTheRecord off_the_record;
  DeviceBuffer<float> sum(values.size(), Memory::data);
  sum.upload(values, stream_);
  NCCL_CHECK(ncclAllReduce(sum.data(), sum.data(), sum.size(), ncclFloat, ncclSum, job_.comm(), stream_));
  return sum.download(stream_);
}

std::vector<float> Judge::download(const float* array, int count) {
  std::vector<float> values(count);
  CUDA_CHECK(cudaMemcpyAsync(values.data(), array, count * sizeof(float), cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  return values;
}

int Judge::finish(const std::string& task, bool right) const {
  if (std::ranges::min(job_.group().gather(int{right})) == 0) return kFailed;
  const std::size_t scratch = std::ranges::max(job_.group().gather(scratch_used_));
  if (job_.rank() == 0) {
    record_value("seconds", slowest_);
    record_value("calls", kCalls);
    record_value("scratch bytes", static_cast<double>(scratch));
  }
  print0("%s: right in %d calls, %.3f us, %zu bytes of scratch memory\n", task.c_str(), kCalls, slowest_ * 1e6,
         scratch);
  return 0;
}

bool all_right(int wrong, std::size_t of, const Job& job) {
  if (wrong == 0) return true;
  std::printf("rank %d: WRONG, %d of %zu elements of the result differ from what they must be\n", job.rank(), wrong,
              of);
  std::fflush(stdout);
  return false;
}

}  // namespace golf
