// SPDX-License-Identifier: Apache-2.0
// NCCL's collectives: every type, reduction, root and count, in place and out of place, single calls and groups.
#include <algorithm>
#include <cmath>

#include "tests/conformance/support.h"

namespace conformance {
namespace {

using workshop::Stream;

constexpr ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
constexpr std::size_t kCounts[] = {0, 1, 7, 1000};

// Returns element i of the input of `rank`. It is 1 to 3, so that a product of four fits into an int8.
double input(int rank, std::size_t i) { return static_cast<double>((rank * 5 + i * 3 + i / 7) % 3 + 1); }

std::vector<double> inputs(int rank, std::size_t count, std::size_t first = 0) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = input(rank, first + i);
  return values;
}

double combine(ncclRedOp_t op, double a, double b) {
  switch (op) {
    case ncclProd:
      return a * b;
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return a + b;
  }
}

// Returns elements [first, first + count) of the reduction over all ranks.
std::vector<double> reduced(ncclRedOp_t op, ncclDataType_t type, std::size_t count, std::size_t first = 0) {
  const int world = job().world();
  std::vector<double> result = inputs(0, count, first);
  for (int rank = 1; rank < world; ++rank) {
    for (std::size_t i = 0; i < count; ++i) result[i] = combine(op, result[i], input(rank, first + i));
  }
  if (op == ncclAvg) {
    for (double& value : result) value = is_whole(type) ? std::floor(value / world) : value / world;
  }
  return result;
}

// Calls `test` with every type and count, in place and out of place.
void for_each_case(const std::function<void(ncclDataType_t, std::size_t, bool)>& test) {
  for (ncclDataType_t type : kTypes) {
    for (std::size_t count : kCounts) {
      for (bool in_place : {false, true}) test(type, count, in_place);
    }
  }
}

std::string describe(const char* name, std::size_t count, bool in_place, int more = 0) {
  return std::string(name) + " of " + std::to_string(count) + (in_place ? ", in place, " : ", ") + std::to_string(more);
}

class Collectives : public testing::Test {
 protected:
  const int rank_ = job().rank();
  const int world_ = job().world();
  const ncclComm_t comm_ = job().comm();
  Stream stream_;
};

TEST_F(Collectives, AllReduce) {
  for_each_case([&](ncclDataType_t type, std::size_t count, bool in_place) {
    for (ncclRedOp_t op : kOps) {
      const Array from(type, inputs(rank_, count)), to(type, count, 9);
      void* target = in_place ? from.data() : to.data();
      NCCL_CHECK(ncclAllReduce(from.data(), target, count, type, op, comm_, stream_));
      finish(stream_);
      const std::string what = describe("all-reduce", count, in_place, op);
      expect_values((in_place ? from : to).values(), reduced(op, type, count), type, what);
      if (!in_place) expect_values(from.values(), inputs(rank_, count), type, what + ": input");
    }
  });
}

TEST_F(Collectives, Reduce) {
  for_each_case([&](ncclDataType_t type, std::size_t count, bool in_place) {
    const ncclRedOp_t op = kOps[count % 5];
    for (int root = 0; root < world_; ++root) {
      const Array from(type, inputs(rank_, count)), to(type, count, 9);
      void* target = in_place ? from.data() : (rank_ == root ? to.data() : nullptr);
      NCCL_CHECK(ncclReduce(from.data(), target, count, type, op, root, comm_, stream_));
      finish(stream_);
      const auto expected = rank_ == root ? reduced(op, type, count) : inputs(rank_, count);
      expect_values((in_place || rank_ != root ? from : to).values(), expected, type,
                    describe("reduce", count, in_place, root));
    }
  });
}

TEST_F(Collectives, Broadcast) {
  for_each_case([&](ncclDataType_t type, std::size_t count, bool in_place) {
    for (int root = 0; root < world_; ++root) {
      const Array from(type, inputs(rank_, count)), to(type, count, 9), buffer(type, inputs(rank_, count));
      void* target = in_place ? from.data() : to.data();
      NCCL_CHECK(ncclBroadcast(from.data(), target, count, type, root, comm_, stream_));
      NCCL_CHECK(ncclBcast(buffer.data(), count, type, root, comm_, stream_));
      finish(stream_);
      const std::string what = describe("broadcast", count, in_place, root);
      expect_values((in_place ? from : to).values(), inputs(root, count), type, what);
      expect_values(buffer.values(), inputs(root, count), type, what);
    }
  });
}

TEST_F(Collectives, ReduceScatter) {
  for_each_case([&](ncclDataType_t type, std::size_t count, bool in_place) {
    for (ncclRedOp_t op : kOps) {
      const Array from(type, inputs(rank_, count * world_)), to(type, count, 9);
      void* target = in_place ? from.at(count * rank_) : to.data();
      NCCL_CHECK(ncclReduceScatter(from.data(), target, count, type, op, comm_, stream_));
      finish(stream_);
      auto result = to.values();
      if (in_place) {
        const auto all = from.values();
        result.assign(all.begin() + count * rank_, all.begin() + count * (rank_ + 1));
      }
      expect_values(result, reduced(op, type, count, count * rank_), type,
                    describe("reduce-scatter", count, in_place, op));
    }
  });
}

TEST_F(Collectives, AllGather) {
  for_each_case([&](ncclDataType_t type, std::size_t count, bool in_place) {
    std::vector<double> expected;
    for (int rank = 0; rank < world_; ++rank) {
      for (double value : inputs(rank, count)) expected.push_back(value);
    }
    std::vector<double> before(count * world_, 9);
    const auto mine = inputs(rank_, count);
    if (in_place) std::copy(mine.begin(), mine.end(), before.begin() + count * rank_);
    const Array from(type, mine), to(type, before);
    NCCL_CHECK(ncclAllGather(in_place ? to.at(count * rank_) : from.data(), to.data(), count, type, comm_, stream_));
    finish(stream_);
    expect_values(to.values(), expected, type, describe("all-gather", count, in_place));
  });
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)  // older versions lack these three
TEST_F(Collectives, AllToAll) {
  for (ncclDataType_t type : kTypes) {
    for (std::size_t count : kCounts) {
      const Array from(type, inputs(rank_, count * world_)), to(type, count * world_, 9);
      NCCL_CHECK(ncclAlltoAll(from.data(), to.data(), count, type, comm_, stream_));
      finish(stream_);
      std::vector<double> expected;
      for (int rank = 0; rank < world_; ++rank) {
        for (double value : inputs(rank, count, count * rank_)) expected.push_back(value);
      }
      expect_values(to.values(), expected, type, describe("all-to-all", count, false));
    }
  }
}

TEST_F(Collectives, GatherAndScatter) {
  for_each_case([&](ncclDataType_t type, std::size_t count, bool in_place) {
    for (int root = 0; root < world_; ++root) {
      const bool is_root = rank_ == root;
      const auto mine = inputs(rank_, count);
      std::vector<double> all, before(count * world_, 9);
      for (int rank = 0; rank < world_; ++rank) {
        for (double value : inputs(rank, count)) all.push_back(value);
      }
      if (in_place) std::copy(mine.begin(), mine.end(), before.begin() + count * rank_);
      const Array part(type, mine), gathered(type, before), back(type, count, 9);
      const void* from = in_place && is_root ? gathered.at(count * root) : part.data();
      NCCL_CHECK(ncclGather(from, is_root ? gathered.data() : nullptr, count, type, root, comm_, stream_));
      void* to = in_place && is_root ? gathered.at(count * root) : back.data();
      NCCL_CHECK(ncclScatter(is_root ? gathered.data() : nullptr, to, count, type, root, comm_, stream_));
      finish(stream_);
      expect_values(gathered.values(), is_root ? all : before, type, describe("gather", count, in_place, root));
      if (!(in_place && is_root)) expect_values(back.values(), mine, type, describe("scatter", count, in_place, root));
    }
  });
}
#endif

TEST_F(Collectives, AllReduceKeepsNaNAndIsTheSameEverywhere) {
  const Array x(ncclFloat, {rank_ == 0 ? std::nan("") : 1.0, 0.1 * (rank_ + 1), 1e-3 * rank_});
  const Array all(ncclFloat, 3 * world_, 0);
  NCCL_CHECK(ncclAllReduce(x.data(), x.data(), 3, ncclFloat, ncclSum, comm_, stream_));
  NCCL_CHECK(ncclAllGather(x.data(), all.data(), 3, ncclFloat, comm_, stream_));
  finish(stream_);
  const auto values = all.values();
  EXPECT_TRUE(std::isnan(values[0]));
  for (int rank = 1; rank < world_; ++rank) {
    EXPECT_EQ(values[3 * rank + 1], values[1]);
    EXPECT_EQ(values[3 * rank + 2], values[2]);
  }
}

TEST_F(Collectives, OfOneCommunicatorRunInTheOrderOfTheCalls) {
  if (world_ == 1) GTEST_SKIP() << "with one rank, NCCL only copies, on the stream of the call";
  Stream other;
  const Array x(ncclFloat, 1, 1), y(ncclFloat, 1, 100), z(ncclFloat, 1, 100);
  Gate gate(stream_);
  NCCL_CHECK(ncclAllReduce(x.data(), y.data(), 1, ncclFloat, ncclSum, comm_, stream_));
  NCCL_CHECK(ncclAllReduce(y.data(), z.data(), 1, ncclFloat, ncclSum, comm_, other));
  EXPECT_FALSE(within(kNever, [&] { return finished(other); }));
  gate.open();
  finish(other);
  finish(stream_);
  EXPECT_EQ(z.values()[0], world_ * world_);
}

TEST_F(Collectives, InAGroupRunTogether) {
  Stream other;
  const std::size_t count = 1000;
  const Array a(ncclFloat, inputs(rank_, count)), b(ncclInt32, inputs(rank_, count)), c(ncclFloat, count * world_, 9);
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclAllReduce(a.data(), a.data(), count, ncclFloat, ncclSum, comm_, stream_));
  NCCL_CHECK(ncclGroupStart());
  NCCL_CHECK(ncclAllReduce(b.data(), b.data(), count, ncclInt32, ncclMax, comm_, other));
  NCCL_CHECK(ncclGroupEnd());
  EXPECT_EQ(a.values(), inputs(rank_, count)) << "nothing happens before the end of the outermost group";
  NCCL_CHECK(ncclAllGather(b.data(), c.data(), 0, ncclFloat, comm_, other));
  NCCL_CHECK(ncclGroupEnd());
  finish(stream_);
  finish(other);
  expect_values(a.values(), reduced(ncclSum, ncclFloat, count), ncclFloat, "sum in a group");
  expect_values(b.values(), reduced(ncclMax, ncclInt32, count), ncclInt32, "maximum in a group");
}

TEST_F(Collectives, ManyOnTwoStreamsAndTwoCommunicators) {
  ncclComm_t second = nullptr;
  NCCL_CHECK(ncclCommSplit(comm_, 0, rank_, &second, nullptr));
  Stream other;
  const Array a(ncclFloat64, 500, 1), b(ncclFloat64, 500, 1);
  for (int i = 0; i < 300; ++i) {
    NCCL_CHECK(ncclAllReduce(a.data(), a.data(), 500, ncclFloat64, ncclAvg, comm_, stream_));
    NCCL_CHECK(ncclAllReduce(b.data(), b.data(), 500, ncclFloat64, ncclMax, second, other));
  }
  finish(stream_);
  finish(other);
  expect_values(a.values(), std::vector<double>(500, 1), ncclFloat64, "averages");
  expect_values(b.values(), std::vector<double>(500, 1), ncclFloat64, "maxima");
  NCCL_CHECK(ncclCommDestroy(second));
}

}  // namespace
}  // namespace conformance
