// SPDX-License-Identifier: Apache-2.0
// WORKSHOP_BLOCKING=1: calls in which the host then waits, as it may with CUDA and NCCL (backend_cpu/blocking.h).
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/support.h"

namespace conformance {
namespace {

using workshop::DeviceBuffer;
using workshop::HostBuffer;
using workshop::launch;
using workshop::Memory;
using workshop::Stream;
using namespace std::chrono_literals;

__global__ void launched_here_alone(float* x, int n) {
  for (int i : workshop::grid_stride(n)) x[i] = 1;
}

class Blocking : public testing::Test {
 protected:
  void SetUp() override {
    if (!kCpu || std::getenv("WORKSHOP_BLOCKING") == nullptr) GTEST_SKIP() << "needs WORKSHOP_BLOCKING=1";
  }
  // Enqueues work that takes a while.
  void keep_busy() const { keep_busy(stream_); }
  static void keep_busy(const Stream& stream) {
    CUDA_CHECK(cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(50ms); }, nullptr));
  }
  const Stream stream_;
};

TEST_F(Blocking, CopiesOfPageableMemoryWait) {
  const DeviceBuffer<float> x(1, Memory::data);
  float pageable = 3;
  keep_busy();
  CUDA_CHECK(cudaMemcpyAsync(x.data(), &pageable, sizeof(float), cudaMemcpyHostToDevice, stream_));
  EXPECT_TRUE(finished(stream_));
  keep_busy();
  CUDA_CHECK(cudaMemcpyAsync(&pageable, x.data(), sizeof(float), cudaMemcpyDeviceToHost, stream_));
  EXPECT_TRUE(finished(stream_));
  const HostBuffer<float> pinned(1);
  Gate gate(stream_);
  CUDA_CHECK(cudaMemcpyAsync(pinned.data(), x.data(), sizeof(float), cudaMemcpyDeviceToHost, stream_));
  EXPECT_FALSE(finished(stream_));
  gate.open();
  finish(stream_);
}

TEST_F(Blocking, AllocationsWait) {
  keep_busy();
  const DeviceBuffer<float> x(1, Memory::data);
  EXPECT_TRUE(finished(stream_));
  keep_busy();
  const HostBuffer<float> y(1);
  EXPECT_TRUE(finished(stream_));
}

TEST_F(Blocking, TheFirstLaunchOfAKernelWaits) {
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  if (loading != nullptr && std::string(loading) == "EAGER") GTEST_SKIP() << "kernels are loaded at the start";
  const Stream other;
  const DeviceBuffer<float> x(1, Memory::data);
  keep_busy();
  launch(launched_here_alone, 1, other, x.data(), 1);
  EXPECT_TRUE(finished(stream_));
  Gate gate(stream_);
  launch(launched_here_alone, 1, other, x.data(), 1);
  EXPECT_FALSE(finished(stream_));
  gate.open();
  finish(other);
  finish(stream_);
}

// A file that one rank creates and the others look for.
struct Note {
  explicit Note(std::string name) : path(std::move(name)) {
    if (job().rank() == 0) std::filesystem::remove(path);
    barrier();
  }
  void write() const { std::ofstream(path) << ""; }
  bool is_there() const { return std::filesystem::exists(path); }
  std::string path;
};

TEST_F(Blocking, CollectivesWaitUntilAllRanksHaveCalledThem) {
  const Note called("called");
  const Array x(ncclFloat, 1, 1);
  if (job().rank() == job().world() - 1) {
    std::this_thread::sleep_for(50ms);
    called.write();
  }
  NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1, ncclFloat, ncclSum, job().comm(), stream_));
  EXPECT_TRUE(called.is_there());
  finish(stream_);
  EXPECT_EQ(x.values()[0], job().world());
}

TEST_F(Blocking, TheFirstCollectiveOfEachKindWaitsForTheDevice) {
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommSplit(job().comm(), 0, job().rank(), &comm, nullptr));
  const Stream busy;
  const Array x(ncclFloat, 1, 1);
  const auto all_reduce = [&] { NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1, ncclFloat, ncclSum, comm, stream_)); };
  const auto broadcast = [&] { NCCL_CHECK(ncclBroadcast(x.data(), x.data(), 1, ncclFloat, 0, comm, stream_)); };
  keep_busy(busy);
  all_reduce();
  EXPECT_TRUE(finished(busy));
  keep_busy(busy);
  broadcast();
  EXPECT_TRUE(finished(busy)) << "it may take other connections than an all-reduce";
  Gate gate(busy);
  all_reduce();
  broadcast();
  EXPECT_FALSE(finished(busy)) << "the second ones return at once";
  gate.open();
  finish(busy);
  finish(stream_);
  NCCL_CHECK(ncclCommDestroy(comm));
}

TEST_F(Blocking, TheFirstMessageToAPeerWaitsForTheDevice) {
  if (job().world() < 2) GTEST_SKIP() << "needs two ranks";
  const int rank = job().rank();
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommSplit(job().comm(), 0, rank, &comm, nullptr));
  const Stream busy;
  const Array x(ncclFloat, 1, rank);
  const auto message = [&] {
    if (rank == 0) NCCL_CHECK(ncclSend(x.data(), 1, ncclFloat, 1, comm, stream_));
    if (rank == 1) NCCL_CHECK(ncclRecv(x.data(), 1, ncclFloat, 0, comm, stream_));
  };
  keep_busy(busy);
  message();
  if (rank < 2) {
    EXPECT_TRUE(finished(busy));
  }
  finish(busy);
  Gate gate(busy);
  message();
  EXPECT_FALSE(finished(busy)) << "the second one returns at once";
  gate.open();
  finish(busy);
  finish(stream_);
  NCCL_CHECK(ncclCommDestroy(comm));
}

TEST_F(Blocking, TheFirstMessageFromAPeerWaitsForIt) {
  if (job().world() < 2) GTEST_SKIP() << "needs two ranks";
  const int rank = job().rank();
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommSplit(job().comm(), 0, rank, &comm, nullptr));
  const Note sent("sent"), received("received");
  const Array x(ncclFloat, 1, rank);
  for (int message = 0; message < 2; ++message) {
    if (rank == 0) {
      if (message == 0) {
        std::this_thread::sleep_for(50ms);
        sent.write();
      } else {
        EXPECT_TRUE(within(20, [&] { return received.is_there(); })) << "the second receive returns at once";
      }
      NCCL_CHECK(ncclSend(x.data(), 1, ncclFloat, 1, comm, stream_));
    } else if (rank == 1) {
      NCCL_CHECK(ncclRecv(x.data(), 1, ncclFloat, 0, comm, stream_));
      EXPECT_TRUE(sent.is_there());
      if (message == 1) received.write();
    }
  }
  finish(stream_);
  NCCL_CHECK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace conformance
