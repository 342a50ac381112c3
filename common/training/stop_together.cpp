// SPDX-License-Identifier: Apache-2.0
#include "common/training/stop_together.h"

#include "common/base/stop_signal.h"
#include "common/nccl/nccl_calls.h"
#include "common/nccl/off_the_record.h"

namespace workshop {

StopTogether::StopTogether(const Group& world) : flag_(1, Memory::data), mine_(kLag), any_(kLag) {
  catch_stop_signals();
  if (world.size() > 1) world_ = world.split(0, world.rank(), "stop");
}

int StopTogether::next_step() {
  if (world_.size() == 1) return stop_signal();
  const OffTheRecord off_the_record;
  const int slot = step_ % kLag;
  if (step_ >= kLag) {
    // Waits only if this rank's host is more than kLag steps ahead of a device.
    CUDA_CHECK(cudaEventSynchronize(known_[slot]));
    if (any_.data()[slot] != 0) return any_.data()[slot];
  }
  ++step_;
  mine_.data()[slot] = stop_signal();
  CUDA_CHECK(cudaMemcpyAsync(flag_.data(), mine_.data() + slot, sizeof(int), cudaMemcpyHostToDevice, stream_));
  // The call is in a group, because the cpu backend then sleeps while it waits for the other ranks. Outside a group, it
  // takes half the time, but busy-waits in MPI on a core that the passes on other streams need.
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclAllReduce(flag_.data(), flag_.data(), 1, ncclInt, ncclMax, world_.comm(), stream_));
  NCCL_CHECK(ncclGroupEnd());
  CUDA_CHECK(cudaMemcpyAsync(any_.data() + slot, flag_.data(), sizeof(int), cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaEventRecord(known_[slot], stream_));
  return 0;
}

}  // namespace workshop
