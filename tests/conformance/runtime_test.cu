// SPDX-License-Identifier: Apache-2.0
// CUDA runtime: streams, events, memory, errors.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/support.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace conformance {
namespace {

using workshop::DeviceBuffer;
using workshop::Event;
using workshop::grid_stride;
using workshop::HostBuffer;
using workshop::launch;
using workshop::Memory;
using workshop::Stream;

__global__ void fill(float* x, float value, int n) {
  for (int i : grid_stride(n)) x[i] = value;
}

__global__ void add(float* x, float value, int n) {
  for (int i : grid_stride(n)) x[i] += value;
}

// A failed launch must be reported at the line of the launch, not at the definition of launch().
constexpr int line_of(const workshop::LaunchStream& on) { return on.line; }
static_assert(line_of(nullptr) == __LINE__);

// A stream that synchronizes with the legacy default stream.
class BlockingStream {
 public:
  BlockingStream() { CUDA_CHECK(cudaStreamCreate(&stream_)); }
  ~BlockingStream() { cudaStreamDestroy(stream_); }
  BlockingStream(const BlockingStream&) = delete;
  BlockingStream& operator=(const BlockingStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

DeviceBuffer<float> floats(int n, float value = 0) {
  DeviceBuffer<float> buffer(n, Memory::data);
  launch(fill, n, nullptr, buffer.data(), value, n);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return buffer;
}

float first(const DeviceBuffer<float>& buffer) {
  float value = 0;
  CUDA_CHECK(cudaMemcpy(&value, buffer.data(), sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

TEST(Streams, RunTheirOperationsInOrder) {
  const Stream stream;
  const int n = 1000;
  auto x = floats(n);
  for (int i = 1; i <= 5000; ++i) launch(add, n, stream, x.data(), 1.0f, n);
  launch(fill, 1, stream, x.data() + 1, 7.0f, 1);
  finish(stream);
  const auto host = x.download(stream);
  EXPECT_EQ(host[0], 5000);
  EXPECT_EQ(host[1], 7);
  EXPECT_EQ(host[n - 1], 5000);
}

TEST(Streams, DoNotMakeTheHostWait) {
  const Stream stream;
  auto x = floats(1);
  const HostBuffer<float> host(1);  // with pageable memory CUDA would wait for the copy
  Gate gate(stream);
  launch(add, 1, stream, x.data(), 1.0f, 1);
  CUDA_CHECK(cudaMemcpyAsync(host.data(), x.data(), host.bytes(), cudaMemcpyDeviceToHost, stream));
  EXPECT_FALSE(within(kNever, [&] { return finished(stream); }));
  gate.open();
  finish(stream);
  EXPECT_EQ(host.data()[0], 1);
}

TEST(Streams, OverlapWithEachOther) {
  const Stream held, free;
  auto x = floats(1);
  Gate gate(held);
  launch(add, 1, free, x.data(), 1.0f, 1);
  finish(free);
  EXPECT_FALSE(finished(held));
  gate.open();
  finish(held);
}

TEST(Streams, QueueMoreThanTheRingHolds) {
  const Stream stream;
  auto x = floats(1);
  Gate gate(stream);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  for (int i = 0; i < 3000; ++i) launch(add, 1, stream, x.data(), 1.0f, 1);
  finish(stream);
  opener.join();
  EXPECT_EQ(first(x), 3000);
}

// A device without priorities has a range of one.
TEST(Streams, HaveAPriority) {
  int least = 1, greatest = 1;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_LE(greatest, 0);
  const Stream computing, communicating("communication", workshop::Priority::high);
  auto x = floats(1);
  launch(add, 1, communicating, x.data(), 1.0f, 1);
  finish(communicating);
  launch(add, 1, computing, x.data(), 1.0f, 1);
  finish(computing);
  EXPECT_EQ(first(x), 2);
}

TEST(Streams, FinishTheirWorkAfterDestruction) {
  auto x = floats(1);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    Gate gate(stream);
    launch(add, 1, stream, x.data(), 1.0f, 1);
    CUDA_CHECK(cudaStreamDestroy(stream));
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_EQ(first(x), 1);
}

TEST(Streams, TakeOperationsFromSeveralThreads) {
  const Stream stream;
  auto x = floats(1);
  int device = -1;
  CUDA_CHECK(cudaGetDevice(&device));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      CUDA_CHECK(cudaSetDevice(device));  // a new thread starts on device 0
      for (int i = 0; i < 500; ++i) launch(add, 1, stream, x.data(), 1.0f, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  finish(stream);
  EXPECT_EQ(first(x), 2000);
}

TEST(DefaultStream, WaitsForBlockingStreams) {
  const BlockingStream blocking;
  auto x = floats(1);
  Gate gate(blocking);
  CUDA_CHECK(cudaMemsetAsync(x.data(), 0, sizeof(float), nullptr));
  EXPECT_FALSE(within(kNever, [] { return finished(nullptr); }));
  gate.open();
  finish(nullptr);
  EXPECT_TRUE(finished(blocking));
}

TEST(DefaultStream, HoldsBlockingStreamsBack) {
  const BlockingStream one, two;
  auto x = floats(2);
  Gate gate(nullptr);
  launch(add, 1, one, x.data(), 1.0f, 1);
  launch(add, 1, two, x.data() + 1, 1.0f, 1);
  EXPECT_FALSE(within(kNever, [&] { return finished(one) || finished(two); }));
  gate.open();
  finish(one);
  finish(two);
}

TEST(DefaultStream, LeavesNonBlockingStreamsAlone) {
  const Stream stream;
  auto x = floats(1);
  {
    Gate gate(nullptr);
    launch(add, 1, stream, x.data(), 1.0f, 1);
    finish(stream);
    EXPECT_FALSE(finished(nullptr));
  }
  finish(nullptr);
  Gate gate(stream);
  CUDA_CHECK(cudaMemsetAsync(x.data(), 0, sizeof(float), nullptr));
  finish(nullptr);
  EXPECT_FALSE(finished(stream));
}

TEST(DefaultStream, CopiesWithTheHostWaiting) {
  auto x = floats(1);
  launch(fill, 1, nullptr, x.data(), 3.0f, 1);
  EXPECT_EQ(first(x), 3);
}

TEST(Events, OrderTwoStreams) {
  const Stream producer, consumer;
  auto x = floats(1), y = floats(1);
  const Event ready;
  Gate gate(producer);
  launch(fill, 1, producer, x.data(), 5.0f, 1);
  CUDA_CHECK(cudaEventRecord(ready, producer));
  CUDA_CHECK(cudaStreamWaitEvent(consumer, ready));
  CUDA_CHECK(cudaMemcpyAsync(y.data(), x.data(), sizeof(float), cudaMemcpyDeviceToDevice, consumer));
  EXPECT_FALSE(within(kNever, [&] { return finished(consumer); }));
  gate.open();
  finish(consumer);
  EXPECT_EQ(first(y), 5);
}

TEST(Events, NeverRecordedHoldNothingBack) {
  const Stream stream;
  const Event event;
  CUDA_CHECK(cudaStreamWaitEvent(stream, event));
  finish(stream);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

TEST(Events, AreWaitedForAsLastRecordedAtTheCall) {
  const Stream held, free, waiting, late;
  const Event event;
  Gate gate(held);
  CUDA_CHECK(cudaEventRecord(event, held));
  CUDA_CHECK(cudaStreamWaitEvent(waiting, event));
  CUDA_CHECK(cudaEventRecord(event, free));  // must not release a stream that already waits
  CUDA_CHECK(cudaStreamWaitEvent(late, event));
  finish(late);
  EXPECT_FALSE(within(kNever, [&] { return finished(waiting); }));
  gate.open();
  finish(waiting);
}

TEST(Events, MayBeDestroyedBeforeTheyAreReached) {
  const Stream held, waiting;
  Gate gate(held);
  {
    const Event event(cudaEventDefault);
    CUDA_CHECK(cudaEventRecord(event, held));
    CUDA_CHECK(cudaStreamWaitEvent(waiting, event));
  }
  EXPECT_FALSE(within(kNever, [&] { return finished(waiting); }));
  gate.open();
  finish(waiting);
}

TEST(Events, TellWhetherTheyWereReached) {
  const Stream stream;
  const Event event;
  Gate gate(stream);
  CUDA_CHECK(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  cudaGetLastError();
  gate.open();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST(Events, MeasureTime) {
  const Stream stream;
  const Event start(cudaEventDefault), end(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(start, stream));
  CUDA_CHECK(cudaEventSynchronize(start));  // on a busy machine the stream may be late
  Gate gate(stream);
  CUDA_CHECK(cudaEventRecord(end, stream));
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  gate.open();
  finish(stream);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 29);
  EXPECT_LT(milliseconds, 60'000);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, end, start), cudaSuccess);
  EXPECT_LE(milliseconds, -29);
  cudaGetLastError();  // clears the expected error
}

TEST(Events, WithoutTimingOrRecordHaveNoTime) {
  const Stream stream;
  const Event untimed, timed(cudaEventDefault), never(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(untimed, stream));
  CUDA_CHECK(cudaEventRecord(timed, stream));
  finish(stream);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, untimed, timed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, timed, never), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

__global__ void extremes(float* x) {
  for (int i : grid_stride(1)) {
    x[i] = static_cast<float>(min(3, -2));
    x[1] = static_cast<float>(max(3, 4u));
    x[2] = min(NAN, 2.5f);
    x[3] = max(1.5f, NAN);
    x[4] = rsqrtf(4.0f);
  }
}

TEST(Kernels, HaveMinimaMaximaAndRoots) {
  DeviceBuffer<float> buffer(5, Memory::data);
  launch(extremes, 1, nullptr, buffer.data());
  EXPECT_EQ(buffer.download(nullptr), (std::vector<float>{-2, 4, 2.5, 1.5, 0.5}));
}

TEST(Memory, IsAlignedAndCopied) {
  void* p = nullptr;
  CUDA_CHECK(cudaMalloc(&p, 100));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
  std::vector<unsigned char> host(100, 0), back(100);
  for (int i = 0; i < 100; ++i) host[i] = static_cast<unsigned char>(i);
  CUDA_CHECK(cudaMemcpy(p, host.data(), 100, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(back.data(), p, 100, cudaMemcpyDefault));
  EXPECT_EQ(host, back);
  CUDA_CHECK(cudaMemset(p, 0x5A, 50));
  CUDA_CHECK(cudaMemcpy(back.data(), p, 100, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back[49], 0x5A);
  EXPECT_EQ(back[50], 50);
  CUDA_CHECK(cudaFree(p));
}

TEST(Memory, StartsAsNaN) {
  if (!kCpu) GTEST_SKIP() << "a GPU leaves in new memory what was there before";
  const DeviceBuffer<float> x(1000, Memory::data);
  const Stream stream;
  for (float value : x.download(stream)) ASSERT_TRUE(std::isnan(value));
}

// The cpu backend's memory always starts as NaN, so here it is also filled a second time.
TEST(Memory, IsFilledWithNaNDuringChecks) {
  if (std::getenv("WORKSHOP_JOURNAL") == nullptr) GTEST_SKIP() << "needs WORKSHOP_JOURNAL=1";
  const Stream stream;
  DeviceBuffer<float> x(3, Memory::data);
  HostBuffer<float> y(3);
  for (float value : x.download(stream)) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(std::isnan(y.data()[0]));
  x.upload({1, 2, 3}, stream);
  std::fill_n(y.data(), 3, 1.0f);
  workshop::fill_in_checks(x.data(), 2 * sizeof(float), Memory::data);
  workshop::fill_in_checks(y.data(), 2 * sizeof(float), Memory::host);
  const std::vector<float> values = x.download(stream);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(std::isnan(values[i]) && std::isnan(y.data()[i])) << i;
  EXPECT_EQ(values[2], 3);
  EXPECT_EQ(y.data()[2], 1);
}

TEST(Memory, OfTheHostIsSharedWithKernels) {
  const HostBuffer<float> pinned(3);
  const Stream stream;
  auto x = floats(3);
  std::fill_n(pinned.data(), 3, 1.0f);
  launch(add, 3, stream, pinned.data(), 1.0f, 3);
  CUDA_CHECK(cudaMemcpyAsync(x.data(), pinned.data(), x.bytes(), cudaMemcpyDefault, stream));
  launch(add, 3, stream, x.data(), 1.0f, 3);
  CUDA_CHECK(cudaMemcpyAsync(pinned.data(), x.data(), x.bytes(), cudaMemcpyDefault, stream));
  const auto halve = [](void* values) { static_cast<float*>(values)[2] /= 2; };
  CUDA_CHECK(cudaLaunchHostFunc(stream, halve, pinned.data()));
  finish(stream);
  EXPECT_EQ(pinned.data()[0], 3);
  EXPECT_EQ(pinned.data()[2], 1.5f);
}

TEST(Memory, IsCountedAndLimited) {
  std::size_t free = 0, total = 0, now = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  EXPECT_LE(free, total);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  CUDA_CHECK(cudaMalloc(&p, 64 << 10));
  CUDA_CHECK(cudaMemGetInfo(&now, &total));
  CUDA_CHECK(cudaFree(p));
  if (!kCpu) return;  // other processes use the same GPU
  EXPECT_EQ(now, free - (64 << 10));
  CUDA_CHECK(cudaMemGetInfo(&now, &total));
  EXPECT_EQ(now, free);
}

// Of 16 GB and of the machine's free memory, each of a node's 100,000 ranks gets a small share.
TEST(Memory, IsSharedByTheRanksOfANode) {
  const char* ranks = std::getenv("LOCAL_WORLD_SIZE");
  if (!kCpu || ranks == nullptr || std::string(ranks) != "100000") GTEST_SKIP() << "needs LOCAL_WORLD_SIZE=100000";
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  EXPECT_GT(total, 0u);
  EXPECT_LT(total, std::size_t{1} << 30);
}

TEST(Memory, HasTheSizeThatWasAskedFor) {
  const char* asked = std::getenv("WORKSHOP_DEVICE_MEMORY");
  if (!kCpu || asked == nullptr || std::string(asked) != "1M") GTEST_SKIP() << "needs WORKSHOP_DEVICE_MEMORY=1M";
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, 1u << 20);
  void *half = nullptr, *other = nullptr;
  CUDA_CHECK(cudaMalloc(&half, 600'000));
  EXPECT_EQ(cudaMalloc(&other, 600'000), cudaErrorMemoryAllocation);
  CUDA_CHECK(cudaFree(half));
  EXPECT_EQ(cudaMalloc(&other, 600'000), cudaSuccess);
  CUDA_CHECK(cudaFree(other));
  cudaGetLastError();
}

TEST(Memory, RefusesWrongPointers) {
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  int local = 0;
  EXPECT_EQ(cudaFree(&local), cudaErrorInvalidValue);
  void* p = nullptr;
  CUDA_CHECK(cudaMalloc(&p, 16));
  CUDA_CHECK(cudaFree(p));
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(static_cast<void**>(nullptr), 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(&local, &local, 4, static_cast<cudaMemcpyKind>(7)), cudaErrorInvalidMemcpyDirection);
  void* pinned = nullptr;
  CUDA_CHECK(cudaMallocHost(&pinned, 64));
  CUDA_CHECK(cudaFreeHost(pinned));
  cudaGetLastError();
}

TEST(Memory, IsFreedAfterTheWorkThatUsesIt) {
  const Stream stream;
  auto x = floats(1);
  float host = 0;
  {
    Gate gate;
    auto y = floats(1, 4.0f);
    gate.hold(stream);
    CUDA_CHECK(cudaMemcpyAsync(x.data(), y.data(), sizeof(float), cudaMemcpyDeviceToDevice, stream));
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.open();
    });
    y = {};  // cudaFree waits
    EXPECT_TRUE(finished(stream));
    opener.join();
  }
  CUDA_CHECK(cudaMemcpy(&host, x.data(), sizeof host, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host, 4);
}

TEST(LastError, IsKeptUntilAskedFor) {
  cudaGetLastError();
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST(Devices, AreChosenByEachThread) {
  int device = -1;
  std::thread([&] { CUDA_CHECK(cudaGetDevice(&device)); }).join();
  EXPECT_EQ(device, 0);  // on every rank
}

TEST(Devices, CanBeCountedAndDescribed) {
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_GE(count, 1);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_GT(properties.totalGlobalMem, 0u);
  EXPECT_NE(std::string(properties.name), "");
  cudaGetLastError();
}

int device_count() {
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  return count;
}

TEST(Devices, AreToldApart) {
  const int count = device_count();
  std::set<std::string> uuids, buses;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    uuids.emplace(properties.uuid.bytes, sizeof properties.uuid.bytes);
    char bus[32];
    CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
    EXPECT_TRUE(std::regex_match(bus, std::regex("[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\\.[0-7]"))) << bus;
    buses.insert(bus);
  }
  EXPECT_EQ(uuids.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(buses.size(), static_cast<std::size_t>(count));
  char bus[32];
  EXPECT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceGetPCIBusId(nullptr, sizeof bus, 0), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Devices, KnowTheirPeers) {
  const int count = device_count();
  int value = -1;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&value, 0, count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 0), cudaErrorInvalidDevice);
  cudaGetLastError();
  if (count < 2) GTEST_SKIP() << "needs two devices";
  int can = -1, access = -1, atomics = -1;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, 0, 1), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, 0, 1), cudaSuccess);
  EXPECT_TRUE(can == 0 || can == 1) << can;
  EXPECT_EQ(access, can);
  EXPECT_TRUE(atomics == 0 || atomics == can) << atomics;
  EXPECT_EQ(atomics, kCpu ? 1 : atomics);
  if (can == 1) {
    const workshop::OnDevice on_device(0);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 7), cudaErrorInvalidValue);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    cudaGetLastError();
  }
  EXPECT_EQ(cudaDeviceGetP2PAttribute(nullptr, cudaDevP2PAttrAccessSupported, 0, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceGetP2PAttribute(&value, static_cast<cudaDeviceP2PAttr>(99), 0, 1), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Devices, HaveADriver) {
  int version = -1;
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  if (kCpu) {
    EXPECT_EQ(version, 0);
  } else {
    EXPECT_GE(version, 12000);
  }
  EXPECT_EQ(cudaDriverGetVersion(nullptr), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(Devices, OwnTheirEvents) {
  int count = 0, mine = -1;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  CUDA_CHECK(cudaGetDevice(&mine));
  if (count < 2) GTEST_SKIP() << "needs two devices";
  CUDA_CHECK(cudaSetDevice((mine + 1) % count));
  const Event foreign;
  CUDA_CHECK(cudaSetDevice(mine));
  const Stream stream;
  EXPECT_EQ(cudaEventRecord(foreign, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(foreign, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(stream, foreign), cudaSuccess);
  cudaGetLastError();
}

TEST(Peers, OfOneDeviceAreCopiedBetween) {
  int mine = -1;
  CUDA_CHECK(cudaGetDevice(&mine));
  const Stream stream;
  auto x = floats(4, 3.0f), y = floats(4);
  EXPECT_EQ(cudaMemcpyPeerAsync(y.data(), mine, x.data(), mine, y.bytes(), stream), cudaSuccess);
  finish(stream);
  EXPECT_EQ(first(y), 3);
  EXPECT_EQ(cudaMemcpyPeerAsync(y.data(), mine, x.data(), mine, 0, stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyPeerAsync(y.data(), mine, x.data(), device_count(), y.bytes(), stream), cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST(Pointers, TellTheirDevice) {
  int mine = -1, local = 0;
  CUDA_CHECK(cudaGetDevice(&mine));
  const DeviceBuffer<float> x(8, Memory::data);
  const HostBuffer<float> pinned(8);
  cudaPointerAttributes attributes{};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, x.data() + 3), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, mine);
  EXPECT_EQ(attributes.devicePointer, x.data() + 3);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, pinned.data()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(attributes.hostPointer, pinned.data());
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, &local), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaPointerGetAttributes(nullptr, x.data()), cudaErrorInvalidValue);
  cudaGetLastError();
}

// This rank's device and another device. The other one is current at first.
class TwoDevices : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() < 2) GTEST_SKIP() << "needs two devices";
    CUDA_CHECK(cudaGetDevice(&mine_));
    other_ = (mine_ + 1) % device_count();
    CUDA_CHECK(cudaSetDevice(other_));
  }
  void TearDown() override {
    if (mine_ >= 0) CUDA_CHECK(cudaSetDevice(mine_));
  }
  int mine_ = -1, other_ = -1;
};

TEST_F(TwoDevices, AreOrderedByEvents) {
  const Stream there;
  auto x = floats(1);
  const Event ready;
  const workshop::OnDevice on_mine(mine_);
  const Stream here;
  auto y = floats(1);
  Gate gate(there);
  {
    const workshop::OnDevice on_other(other_);
    launch(fill, 1, there, x.data(), 5.0f, 1);
  }
  CUDA_CHECK(cudaEventRecord(ready, there));  // with either device current
  CUDA_CHECK(cudaStreamWaitEvent(here, ready));
  CUDA_CHECK(cudaMemcpyPeerAsync(y.data(), mine_, x.data(), other_, sizeof(float), here));
  EXPECT_FALSE(within(kNever, [&] { return finished(here); }));
  gate.open();
  finish(here);
  EXPECT_EQ(first(y), 5);
}

TEST_F(TwoDevices, CopyOnStreamsOfEither) {
  const Stream there;
  auto x = floats(1, 2.0f);
  const workshop::OnDevice on_mine(mine_);
  auto y = floats(1);
  EXPECT_EQ(cudaMemcpyPeerAsync(y.data(), mine_, x.data(), other_, sizeof(float), there), cudaSuccess);
  finish(there);
  EXPECT_EQ(first(y), 2);
  EXPECT_EQ(cudaMemcpyAsync(x.data(), y.data(), 0, cudaMemcpyDefault, there), cudaSuccess);
}

TEST_F(TwoDevices, AreSynchronizedOneAtATime) {
  const Stream there;
  const workshop::OnDevice on_mine(mine_);
  Gate gate(there);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_FALSE(finished(there));
  gate.open();
  finish(there);
}

TEST_F(TwoDevices, HaveDefaultStreamsOfTheirOwn) {
  const BlockingStream there;
  auto x = floats(1);
  Gate gate(nullptr);
  launch(add, 1, there, x.data(), 1.0f, 1);  // behind the gate
  {
    const workshop::OnDevice on_mine(mine_);
    const BlockingStream here;
    auto y = floats(1);
    CUDA_CHECK(cudaMemsetAsync(y.data(), 0, sizeof(float), nullptr));
    launch(add, 1, here, y.data(), 1.0f, 1);
    finish(nullptr);
    finish(here);
    EXPECT_FALSE(finished(there));
    gate.open();  // before `y` is freed, because that may wait for all devices
  }
  finish(there);
}

TEST_F(TwoDevices, TellNoTimeBetweenThem) {
  const Stream there;
  const Event one(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(one, there));
  finish(there);
  const workshop::OnDevice on_mine(mine_);
  const Stream here;
  const Event two(cudaEventDefault);
  CUDA_CHECK(cudaEventRecord(two, here));
  finish(here);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, one, two), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

#ifdef WORKSHOP_BACKEND_CPU
TEST_F(TwoDevices, HaveMemoryOfTheirOwn) {
  std::size_t total = 0, before = 0, after = 0, mine_before = 0, mine_after = 0;
  CUDA_CHECK(cudaMemGetInfo(&before, &total));
  {
    const workshop::OnDevice on_mine(mine_);
    CUDA_CHECK(cudaMemGetInfo(&mine_before, &total));
  }
  const auto used = workshop::memory_use(Memory::buckets).current;
  const DeviceBuffer<unsigned char> x(4096, Memory::buckets);
  CUDA_CHECK(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(after, before - 4096);
  EXPECT_EQ(workshop::memory_use(Memory::buckets).current, used + 4096);
  const workshop::OnDevice on_mine(mine_);
  CUDA_CHECK(cudaMemGetInfo(&mine_after, &total));
  EXPECT_EQ(mine_after, mine_before);
  EXPECT_EQ(workshop::memory_use(Memory::buckets).current, 0u);
}

// With cuBLAS, the launch of its kernel fails.
TEST_F(TwoDevices, DoNotShareACublasHandle) {
  const Stream there;
  cublasHandle_t handle = nullptr;
  CUBLAS_CHECK(cublasCreate(&handle));
  CUBLAS_CHECK(cublasSetStream(handle, there));
  auto x = floats(4);
  const float two = 2;
  EXPECT_EQ(cublasSscal(handle, 4, &two, x.data(), 1), CUBLAS_STATUS_SUCCESS);
  {
    const workshop::OnDevice on_mine(mine_);
    EXPECT_EQ(cublasSscal(handle, 4, &two, x.data(), 1), CUBLAS_STATUS_EXECUTION_FAILED);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  finish(there);
  cublasDestroy(handle);
}

TEST(Devices, AreGivenAllHardwareQueuesBeforeTheFirstCall) { EXPECT_EQ(workshop::cpu::hardware_queues(), 32); }

TEST(Devices, HaveTheSameNamesInAllProcesses) {
  // With CUDA, ranks may see different devices.
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  const Stream stream;
  DeviceBuffer<cudaUUID_t> mine(1, Memory::data), all(job().world(), Memory::data);
  mine.upload(&properties.uuid, stream);
  NCCL_CHECK(ncclAllGather(mine.data(), all.data(), mine.bytes(), ncclChar, job().comm(), stream));
  for (const cudaUUID_t& theirs : all.download(stream)) {
    EXPECT_EQ(std::memcmp(theirs.bytes, properties.uuid.bytes, sizeof theirs.bytes), 0);
  }
}

TEST(Devices, OwnTheirStreams) {
  int mine = -1;
  CUDA_CHECK(cudaGetDevice(&mine));
  CUDA_CHECK(cudaSetDevice(mine + 1));
  const Stream foreign;
  EXPECT_TRUE(workshop::cpu::may_launch(foreign));
  CUDA_CHECK(cudaSetDevice(mine));
  EXPECT_FALSE(workshop::cpu::may_launch(foreign));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

TEST(HostFunctions, MustNotCallCuda) {
  const Stream stream;
  const Event event;
  struct Call {
    cudaEvent_t event;
    cudaError_t status;
  } call{event, cudaSuccess};
  const auto ask = [](void* data) {
    Call& call = *static_cast<Call*>(data);
    call.status = cudaEventQuery(call.event);
  };
  CUDA_CHECK(cudaLaunchHostFunc(stream, ask, &call));
  finish(stream);
  EXPECT_EQ(call.status, cudaErrorNotPermitted);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

// Small kernels (which run on the stream's thread) and large ones (which run on all cores) treat denormal numbers as
// zero.
TEST(Denormals, AreZero) {
  for (const int count : {64, 1 << 18}) {
    const Stream stream;
    DeviceBuffer<float> x(count, Memory::data);
    x.upload(std::vector<float>(count, 2e-38f), stream);
    launch(add, count, stream, x.data(), -1.5e-38f, count);
    EXPECT_EQ(x.download(stream), std::vector<float>(count, 0.0f));
  }
}

TEST(Counters, CountAllocationsAndWaits) {
  const Stream stream;
  auto x = floats(1);
  const auto before = workshop::cpu::counters();
  launch(add, 1, stream, x.data(), 1.0f, 1);
  CUDA_CHECK(cudaMemsetAsync(x.data(), 0, 4, stream));
  const auto enqueued = workshop::cpu::counters();
  EXPECT_EQ(enqueued.allocations, before.allocations);
  EXPECT_EQ(enqueued.synchronizations, before.synchronizations);
  stream.synchronize();
  first(x);
  { const DeviceBuffer<float> y(1, Memory::data); }
  const auto after = workshop::cpu::counters();
  EXPECT_EQ(after.allocations, before.allocations + 2);
  EXPECT_EQ(after.synchronizations, before.synchronizations + 2);
}

TEST(Counters, CountEventsOfTheMainThread) {
  const Stream stream;
  const Event event;
  const auto before = workshop::cpu::counters();
  for (int i = 0; i < 2; ++i) CUDA_CHECK(cudaEventRecord(event, stream));
  std::thread([&] { CUDA_CHECK(cudaEventRecord(event, stream)); }).join();
  EXPECT_EQ(workshop::cpu::counters().events, before.events + 2);
}

TEST(Counters, CountTheCublasHandlesOfAStream) {
  const Stream one, other;
  const auto make = [](cudaStream_t stream) {
    cublasHandle_t handle = nullptr;
    CUBLAS_CHECK(cublasCreate(&handle));
    CUBLAS_CHECK(cublasSetStream(handle, stream));
    return handle;
  };
  const int before = workshop::cpu::counters().handles;
  std::vector<cublasHandle_t> handles;
  for (int i = 0; i <= before; ++i) {
    handles.push_back(make(one));
    handles.push_back(make(other));
    cublasDestroy(make(other));  // frees its slot
  }
  EXPECT_EQ(workshop::cpu::counters().handles, before + 2);
  for (cublasHandle_t handle : handles) cublasDestroy(handle);
  EXPECT_EQ(workshop::cpu::counters().handles, before + 2);
}

TEST(Slow, KernelsShowAMissingEvent) {
  const char* slow = std::getenv("WORKSHOP_SLOW");
  if (slow == nullptr || std::string(slow) == "collectives") GTEST_SKIP() << "needs WORKSHOP_SLOW=kernels";
  const Stream producer, consumer;
  int shown = 0;  // on a busy machine the consumer may be later than the slow kernel
  for (int i = 0; i < 1000 && shown == 0; ++i) {
    auto x = floats(1);
    float seen = -1;
    launch(fill, 1, producer, x.data(), 1.0f, 1);
    CUDA_CHECK(cudaMemcpyAsync(&seen, x.data(), sizeof seen, cudaMemcpyDeviceToHost, consumer));
    finish(consumer);
    finish(producer);
    shown += seen == 0;
  }
  EXPECT_GT(shown, 0);
}

TEST(Slow, KernelsShowACopyThatIsStillOnItsWay) {
  const char* slow = std::getenv("WORKSHOP_SLOW");
  if (slow == nullptr || std::string(slow) == "collectives") GTEST_SKIP() << "needs WORKSHOP_SLOW=kernels";
  const Stream stream;
  const float one = 1;
  int shown = 0;
  for (int i = 0; i < 1000 && shown == 0; ++i) {
    auto x = floats(1);
    float seen = -1;
    CUDA_CHECK(cudaMemcpy(x.data(), &one, sizeof one, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpyAsync(&seen, x.data(), sizeof seen, cudaMemcpyDeviceToHost, stream));
    finish(stream);
    shown += seen == 0;
    EXPECT_EQ(first(x), 1);
  }
  EXPECT_GT(shown, 0);
}
#endif

}  // namespace
}  // namespace conformance
