// SPDX-License-Identifier: Apache-2.0
// NCCL's point-to-point messages, groups, communicators and errors.
#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/conformance/support.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace conformance {
namespace {

using workshop::Stream;

class Nccl : public testing::Test {
 protected:
  const int rank_ = job().rank();
  const int world_ = job().world();
  const int next_ = (rank_ + 1) % world_;
  const int previous_ = (rank_ + world_ - 1) % world_;
  const ncclComm_t comm_ = job().comm();
  Stream stream_;

  ncclComm_t split(int color, int key) {
    ncclComm_t comm = nullptr;
    NCCL_CHECK(ncclCommSplit(comm_, color, key, &comm, nullptr));
    return comm;
  }
};

int rank_in(ncclComm_t comm) {
  int rank = -1;
  NCCL_CHECK(ncclCommUserRank(comm, &rank));
  return rank;
}

int size_of(ncclComm_t comm) {
  int size = -1;
  NCCL_CHECK(ncclCommCount(comm, &size));
  return size;
}

using Messages = Nccl;

TEST_F(Messages, TravelAroundARing) {
  for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
    const Array from(ncclFloat, count, rank_ + 1), to(ncclFloat, count, 9);
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(from.data(), count, ncclFloat, next_, comm_, stream_));
    NCCL_CHECK(ncclRecv(to.data(), count, ncclFloat, previous_, comm_, stream_));
    NCCL_CHECK(ncclGroupEnd());
    finish(stream_);
    expect_values(to.values(), std::vector<double>(count, previous_ + 1), ncclFloat, "ring");
  }
}

TEST_F(Messages, MakeAnAllToAllInAGroup) {
  const std::size_t count = 1000;
  const Array from(ncclInt32, count * world_, rank_), to(ncclInt32, count * world_, -1);
  NCCL_CHECK(ncclGroupStart());
  for (int peer = 0; peer < world_; ++peer) {
    NCCL_CHECK(ncclSend(from.at(count * peer), count, ncclInt32, peer, comm_, stream_));
    NCCL_CHECK(ncclRecv(to.at(count * peer), count, ncclInt32, peer, comm_, stream_));
  }
  NCCL_CHECK(ncclGroupEnd());
  finish(stream_);
  std::vector<double> expected(count * world_);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<double>(i / count);
  expect_values(to.values(), expected, ncclInt32, "all-to-all of messages");
}

TEST_F(Messages, KeepTheirOrder) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  const int count = 20;
  std::vector<double> numbers(count);
  for (int i = 0; i < count; ++i) numbers[i] = i;
  const Array messages(ncclFloat, rank_ == 0 ? numbers : std::vector<double>(count, -1));
  for (int i = 0; i < count; ++i) {
    if (rank_ == 0) NCCL_CHECK(ncclSend(messages.at(i), 1, ncclFloat, 1, comm_, stream_));
    if (rank_ == 1) NCCL_CHECK(ncclRecv(messages.at(i), 1, ncclFloat, 0, comm_, stream_));
  }
  finish(stream_);
  if (rank_ <= 1) expect_values(messages.values(), numbers, ncclFloat, "messages");
}

TEST_F(Messages, OnSeveralStreamsOfAGroupAreOrderedWithThose) {
  Stream other;
  const Array from(ncclFloat, 1, 0), to(ncclFloat, 1, -1), copy(ncclFloat, 1, -2);
  const auto exchange = [&] {
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclSend(from.data(), 1, ncclFloat, next_, comm_, stream_));
    NCCL_CHECK(ncclRecv(to.data(), 1, ncclFloat, previous_, comm_, other));
    NCCL_CHECK(ncclGroupEnd());
  };
  exchange();  // NCCL connects the ranks at the first call
  finish(stream_);
  finish(other);
  const workshop::HostBuffer<float> value(1);
  *value.data() = static_cast<float>(rank_ + 1);
  Gate gate(stream_);
  CUDA_CHECK(cudaMemcpyAsync(from.data(), value.data(), value.bytes(), cudaMemcpyHostToDevice, stream_));
  exchange();
  CUDA_CHECK(cudaMemcpyAsync(copy.data(), to.data(), value.bytes(), cudaMemcpyDeviceToDevice, other));
  EXPECT_FALSE(within(kNever, [&] { return finished(other); }));
  gate.open();
  finish(other);
  finish(stream_);
  EXPECT_EQ(copy.values()[0], previous_ + 1);
}

TEST_F(Messages, ThatAreTooShortAreAnError) {
  if (!kCpu) GTEST_SKIP() << "NCCL leaves this undefined";
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  const ncclComm_t comm = split(0, rank_);
  const Array buffer(ncclFloat, 8, 0);
  if (rank_ == 0) NCCL_CHECK(ncclSend(buffer.data(), 4, ncclFloat, 1, comm, stream_));
  if (rank_ == 1) NCCL_CHECK(ncclRecv(buffer.data(), 8, ncclFloat, 0, comm, stream_));
  finish(stream_);
  ncclResult_t error = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
  EXPECT_EQ(error, rank_ == 1 ? ncclInvalidUsage : ncclSuccess);
  if (rank_ == 1) {
    EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat, 0, comm, stream_), ncclInvalidUsage) << "and stays one";
  }
  NCCL_CHECK(ncclCommDestroy(comm));
}

using Communicators = Nccl;

TEST_F(Communicators, KnowTheirRanks) {
  EXPECT_EQ(size_of(comm_), world_);
  EXPECT_EQ(rank_in(comm_), rank_);
  int device = -1, current = -2;
  NCCL_CHECK(ncclCommCuDevice(comm_, &device));
  CUDA_CHECK(cudaGetDevice(&current));
  EXPECT_EQ(device, current);
  ncclResult_t error = ncclInternalError;
  EXPECT_EQ(ncclCommGetAsyncError(comm_, &error), ncclSuccess);
  EXPECT_EQ(error, ncclSuccess);
  int version = 0;
  NCCL_CHECK(ncclGetVersion(&version));
  EXPECT_GE(version, NCCL_VERSION(2, 18, 0));
}

// common/'s ledger intercepts NCCL calls: its functions take precedence over the library's weak symbols at link time.
TEST_F(Communicators, LetTheLedgerStandInFrontOfACall) {
  EXPECT_NE(reinterpret_cast<void*>(ncclAllReduce), reinterpret_cast<void*>(pncclAllReduce));
  EXPECT_NE(reinterpret_cast<void*>(ncclSend), reinterpret_cast<void*>(pncclSend));
}

TEST_F(Communicators, SplitByColorInTheOrderOfTheKeys) {
  const ncclComm_t comm = split(rank_ % 2, -rank_);
  const int size = rank_ % 2 == 0 ? (world_ + 1) / 2 : world_ / 2;
  EXPECT_EQ(size_of(comm), size);
  EXPECT_EQ(rank_in(comm), size - 1 - rank_ / 2);
  const Array x(ncclInt32, 1, rank_);
  NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1, ncclInt32, ncclSum, comm, stream_));
  finish(stream_);
  int expected = 0;
  for (int rank = rank_ % 2; rank < world_; rank += 2) expected += rank;
  EXPECT_EQ(x.values()[0], expected);
  NCCL_CHECK(ncclCommDestroy(comm));
}

TEST_F(Communicators, SplitKeepsTheOrderOfEqualKeys) {
  const ncclComm_t comm = split(7, 3);
  EXPECT_EQ(rank_in(comm), rank_);
  NCCL_CHECK(ncclCommDestroy(comm));
}

TEST_F(Communicators, SplitLeavesOutThoseWithoutColor) {
  const ncclComm_t comm = split(rank_ == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0);
  EXPECT_EQ(comm != nullptr, rank_ == 0);
  if (comm == nullptr) return;
  EXPECT_EQ(size_of(comm), 1);
  NCCL_CHECK(ncclCommDestroy(comm));
}

TEST_F(Communicators, OfOneRankWork) {
  const ncclComm_t comm = split(rank_, 0);
  const Array x(ncclFloat, {1, 2, 3}), y(ncclFloat, 3, 0), z(ncclFloat, 3, 0);
  NCCL_CHECK(ncclAllReduce(x.data(), y.data(), 3, ncclFloat, ncclAvg, comm, stream_));
  NCCL_CHECK(ncclReduceScatter(y.data(), y.data(), 3, ncclFloat, ncclSum, comm, stream_));
  NCCL_CHECK(ncclAllGather(y.data(), y.data(), 3, ncclFloat, comm, stream_));
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclSend(y.data(), 3, ncclFloat, 0, comm, stream_));
  NCCL_CHECK(ncclRecv(z.data(), 3, ncclFloat, 0, comm, stream_));
  NCCL_CHECK(ncclGroupEnd());
  finish(stream_);
  EXPECT_EQ(z.values(), (std::vector<double>{1, 2, 3}));
  NCCL_CHECK(ncclCommDestroy(comm));
}

// Sends an id from rank 0 to all ranks over the world communicator.
ncclUniqueId shared_id(cudaStream_t stream) {
  ncclUniqueId id;
  if (job().rank() == 0) NCCL_CHECK(ncclGetUniqueId(&id));
  workshop::DeviceBuffer<char> buffer(sizeof id, workshop::Memory::data);
  buffer.upload(id.internal, stream);
  NCCL_CHECK(ncclBcast(buffer.data(), sizeof id, ncclInt8, 0, job().comm(), stream));
  const std::vector<char> received = buffer.download(stream);
  std::copy(received.begin(), received.end(), id.internal);
  return id;
}

TEST_F(Communicators, CanBeMadeOfSomeRanksInAnyOrder) {
  const int size = std::max(1, world_ - 1);
  for (int members : {world_, size}) {
    const ncclUniqueId id = shared_id(stream_);
    if (rank_ >= members) continue;
    ncclComm_t comm = nullptr;
    NCCL_CHECK(ncclCommInitRank(&comm, members, id, members - 1 - rank_));
    EXPECT_EQ(size_of(comm), members);
    EXPECT_EQ(rank_in(comm), members - 1 - rank_);
    const Array x(ncclInt32, 1, rank_);
    NCCL_CHECK(ncclBroadcast(x.data(), x.data(), 1, ncclInt32, 0, comm, stream_));
    finish(stream_);
    EXPECT_EQ(x.values()[0], members - 1);
    NCCL_CHECK(ncclCommFinalize(comm));
    NCCL_CHECK(ncclCommDestroy(comm));
  }
}

TEST_F(Communicators, TakeAConfiguration) {
  const ncclUniqueId id = shared_id(stream_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommInitRankConfig(&comm, world_, id, rank_, &config));
  EXPECT_EQ(size_of(comm), world_);
  NCCL_CHECK(ncclCommDestroy(comm));
}

using Errors = Nccl;

TEST_F(Errors, WrongArguments) {
  const Array x(ncclFloat, 4, 1);
  void* p = x.data();
  EXPECT_EQ(ncclBroadcast(p, p, 1, ncclFloat, world_, comm_, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclReduce(p, p, 1, ncclFloat, ncclSum, -1, comm_, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclSend(p, 1, ncclFloat, world_, comm_, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, nullptr, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(p, p, 1, static_cast<ncclDataType_t>(15), ncclSum, comm_, stream_), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(comm_)), "");
  EXPECT_STREQ(ncclGetErrorString(ncclInvalidUsage), "invalid usage (run with NCCL_DEBUG=WARN for details)");
  int count = 0;
  EXPECT_EQ(ncclCommCount(nullptr, &count), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCount(comm_, nullptr), ncclInvalidArgument);
}

TEST_F(Errors, RanksThatDoNotExist) {
  ncclUniqueId id;
  NCCL_CHECK(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
}

TEST_F(Errors, BuffersThatAreNull) {
  if (!kCpu) GTEST_SKIP() << "NCCL crashes";
  const Array x(ncclFloat, 4, 1);
  EXPECT_EQ(ncclAllReduce(nullptr, x.data(), 1, ncclFloat, ncclSum, comm_, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclRecv(nullptr, 1, ncclFloat, next_, comm_, stream_), ncclInvalidArgument);
  NCCL_CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, comm_, stream_));
  finish(stream_);
}

TEST_F(Errors, DestroyedCommunicators) {
  if (!kCpu) GTEST_SKIP() << "NCCL frees the communicator, and a later call may crash";
  const ncclComm_t comm = split(0, rank_);
  NCCL_CHECK(ncclCommDestroy(comm));
  const Array x(ncclFloat, 4, 1);
  EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 1, ncclFloat, ncclSum, comm, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument);
}

TEST_F(Errors, GroupsThatDoNotMatch) {
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  const Array x(ncclFloat, {1, 2});
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 2, ncclFloat, ncclSum, comm_, stream_));
  EXPECT_EQ(ncclSend(x.data(), 1, ncclFloat, -1, comm_, stream_), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  finish(stream_);
  EXPECT_EQ(x.values()[1], 2) << "a group with an error does nothing";
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclGroupEnd());
}

TEST_F(Errors, MessagesToOneself) {
  const Array x(ncclFloat, 1, 1);
  EXPECT_EQ(ncclSend(x.data(), 1, ncclFloat, rank_, comm_, stream_), ncclInvalidUsage);
}

// These tests run in a process of their own, because an aborted communicator may leave MPI unusable.
using Abort = Nccl;

TEST_F(Abort, TwoSendsThatWaitForEachOther) {
  if (!kCpu) GTEST_SKIP() << "NCCL has room for a small message, and the send ends";
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  const ncclComm_t comm = split(0, rank_);
  const Array from(ncclFloat, 1, 1), to(ncclFloat, 1, 5);
  NCCL_CHECK(ncclSend(from.data(), 1, ncclFloat, next_, comm, stream_));
  NCCL_CHECK(ncclRecv(to.data(), 1, ncclFloat, previous_, comm, stream_));
  EXPECT_FALSE(within(0.3, [&] { return finished(stream_); }));
  barrier();
  NCCL_CHECK(ncclCommAbort(comm));
  finish(stream_);
  EXPECT_EQ(to.values()[0], 5);
  ncclResult_t error = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclInvalidArgument);
  barrier();
}

TEST_F(Abort, ACollectiveThatOneRankNeverJoins) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  const ncclComm_t comm = split(0, rank_);
  Array x(ncclFloat, 1000, 1), y(ncclFloat, 1, 1);
  // NCCL connects the ranks at the first call, during which the host waits for all of them.
  NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1000, ncclFloat, ncclSum, comm, stream_));
  finish(stream_);
  if (rank_ != 0) {
    NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1000, ncclFloat, ncclSum, comm, stream_));
    NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1000, ncclFloat, ncclSum, comm, stream_));
    EXPECT_FALSE(within(0.3, [&] { return finished(stream_); }));
  }
  barrier();
  NCCL_CHECK(ncclCommAbort(comm));
  finish(stream_);
  // The stream and the other communicators still work.
  NCCL_CHECK(ncclAllReduce(y.data(), y.data(), 1, ncclFloat, ncclSum, comm_, stream_));
  finish(stream_);
  EXPECT_EQ(y.values()[0], world_);
#ifdef WORKSHOP_BACKEND_CPU
  if (rank_ != 0) {
    EXPECT_FALSE(workshop::cpu::mpi_usable());
  }
#endif
}

TEST_F(Abort, AGroupThatOneRankNeverJoins) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  const ncclComm_t comm = split(0, rank_);
  Array x(ncclFloat, 1000, 1), y(ncclFloat, 1000, 1);
  const auto join = [&] {
    NCCL_CHECK(ncclGroupStart());
    NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 1000, ncclFloat, ncclSum, comm, stream_));
    if (rank_ != 0) NCCL_CHECK(ncclRecv(y.data(), 1000, ncclFloat, 0, comm, stream_));
    for (int peer = 1; rank_ == 0 && peer < world_; ++peer) {
      NCCL_CHECK(ncclSend(y.data(), 1000, ncclFloat, peer, comm, stream_));
    }
    NCCL_CHECK(ncclGroupEnd());
  };
  join();  // NCCL connects the ranks at the first call, during which the host waits for all
  finish(stream_);
  if (rank_ != 0) {
    join();
    EXPECT_FALSE(within(0.3, [&] { return finished(stream_); }));
  }
  barrier();
  NCCL_CHECK(ncclCommAbort(comm));
  finish(stream_);
  barrier();
}

}  // namespace
}  // namespace conformance
