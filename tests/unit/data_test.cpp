// SPDX-License-Identifier: Apache-2.0
// The data set and its samplers against PyTorch's, and the loader against gathering by hand.
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "common/data/dataset.h"

namespace workshop {
namespace {

using Floats = std::vector<float>;
using Indices = std::vector<int>;

Floats rows(const Floats& table, int width, const Indices& indices) {
  Floats out;
  for (int row : indices) out.insert(out.end(), table.begin() + row * width, table.begin() + (row + 1) * width);
  return out;
}

Indices range(int first, int last) {
  Indices indices(last - first);
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

TEST(RandomTensorDataset, IsThatOfTheCourse) {
  const RandomTensorDataset data(1024, 6, 2, 12345);
  EXPECT_EQ(rows(data.inputs, 6, {0}),
            (Floats{0x1.6d586cp0f, -0x1.debe2ap0f, -0x1.323ad8p0f, -0x1.05a032p1f, -0x1.d2ef32p-2f, -0x1.6df078p0f}));
  EXPECT_EQ(rows(data.targets, 2, {0}), (Floats{-0x1.6f60bcp-1f, 0x1.64672cp0f}));
  EXPECT_EQ(rows(data.inputs, 6, {1023}), (Floats{-0x1.674b4ep-5f, -0x1.57d792p-1f, 0x1.717606p-2f, -0x1.d06572p-1f,
                                                  -0x1.318052p-3f, 0x1.a523a4p-1f}));
  EXPECT_EQ(rows(data.targets, 2, {1023}), (Floats{-0x1.2781fep0f, -0x1.2e04aep-1f}));
}

TEST(RandomTensorDataset, CarriesHalfAPairOverWhereWidthsAreOdd) {
  const RandomTensorDataset data(4, 3, 2, 12345);
  EXPECT_EQ(rows(data.inputs, 3, {0, 1}),
            (Floats{0x1.6d586cp0f, -0x1.debe2ap0f, -0x1.323ad8p0f, -0x1.6df078p0f, -0x1.6f60bcp-1f, 0x1.64672cp0f}));
  EXPECT_EQ(rows(data.targets, 2, {0, 1, 3}), (Floats{-0x1.05a032p1f, -0x1.d2ef32p-2f, 0x1.4c07dcp-4f, -0x1.318eaap0f,
                                                      -0x1.8e5a82p-2f, -0x1.1ae6a8p-2f}));
}

TEST(RandomTensorDataset, DrawsWideSamplesInBlocks) {
  const RandomTensorDataset data(2, 17, 1, 12345);
  EXPECT_NEAR(data.inputs[0], -0x1.7ad4aep0f, 1e-6f);
  EXPECT_NEAR(data.inputs[16], 0x1.0b7a54p-1f, 1e-6f);
  EXPECT_EQ(data.targets, (Floats{-0x1.118af8p0f, 0x1.00a44p-1f}));
  EXPECT_NEAR(data.inputs[33], -0x1.028d0ep-2f, 1e-6f);
}

TEST(RandomSampler, ShufflesLikeADataLoaderWithTwoIteratorsAnEpoch) {
  RandomSampler sampler(10, true, RandomTensorDataset(10, 3, 2, 12345).generator);
  EXPECT_EQ(sampler.next_epoch(), (Indices{2, 3, 6, 8, 4, 0, 1, 5, 7, 9}));
  EXPECT_EQ(sampler.next_epoch(), (Indices{5, 7, 1, 6, 4, 3, 0, 2, 9, 8}));
  EXPECT_EQ(sampler.next_epoch(), (Indices{3, 5, 6, 7, 8, 2, 0, 4, 1, 9}));
}

TEST(RandomSampler, KeepsTheOrderWithoutShuffling) {
  RandomSampler sampler(5, false, Generator(1));
  EXPECT_EQ(sampler.next_epoch(), range(0, 5));
  EXPECT_EQ(sampler.next_epoch(), range(0, 5));
}

// Returns the indices of every replica.
std::vector<Indices> distribute(int samples, int replicas, std::uint64_t seed, int epoch, bool shuffle) {
  std::vector<Indices> all;
  for (int rank = 0; rank < replicas; ++rank) {
    DistributedSampler sampler(samples, replicas, rank, shuffle, seed);
    sampler.set_epoch(epoch);
    all.push_back(sampler.indices());
  }
  return all;
}

TEST(DistributedSampler, DealsOnePermutationOut) {
  EXPECT_EQ(distribute(12, 3, 0, 2, true), (std::vector<Indices>{{0, 2, 6, 1}, {9, 10, 7, 4}, {3, 5, 8, 11}}));
}

TEST(DistributedSampler, PadsFromTheFront) {
  EXPECT_EQ(distribute(10, 4, 0, 0, true), (std::vector<Indices>{{4, 3, 6}, {1, 9, 2}, {7, 0, 4}, {5, 8, 1}}));
  EXPECT_EQ(distribute(10, 4, 0, 3, false), (std::vector<Indices>{{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}}));
}

TEST(DistributedSampler, RepeatsSamplesWhereThereAreFewerThanReplicas) {
  EXPECT_EQ(distribute(3, 8, 0, 0, true), (std::vector<Indices>{{2}, {0}, {1}, {2}, {0}, {1}, {2}, {0}}));
}

TEST(DistributedSampler, DependsOnSeedAndEpoch) {
  EXPECT_EQ(distribute(10, 4, 0, 1, true), (std::vector<Indices>{{5, 0, 7}, {6, 8, 4}, {1, 9, 5}, {2, 3, 6}}));
  EXPECT_EQ(distribute(10, 4, 42, 0, true), (std::vector<Indices>{{2, 4, 3}, {6, 5, 7}, {1, 0, 2}, {8, 9, 6}}));
}

class DataLoaderTest : public testing::Test {
 protected:
  // Expects that the batch holds these samples.
  void expect_batch(const Batch& batch, const Indices& samples) {
    ASSERT_EQ(batch.samples, static_cast<int>(samples.size()));
    EXPECT_EQ(download(static_cast<const float*>(batch.x), batch.samples * data_.in),
              rows(data_.inputs, data_.in, samples));
    EXPECT_EQ(download(static_cast<const float*>(batch.y), batch.samples * data_.out),
              rows(data_.targets, data_.out, samples));
  }

  Floats download(const float* device, int count) {
    Floats host(count);
    CUDA_CHECK(cudaMemcpyAsync(host.data(), device, count * sizeof(float), cudaMemcpyDeviceToHost, stream_));
    stream_.synchronize();
    return host;
  }

  RandomTensorDataset data_{10, 3, 2, 1};
  Stream stream_;
};

TEST_F(DataLoaderTest, GathersBatchesInTheOrderOfTheEpoch) {
  DataLoader loader(data_, 4, stream_);
  loader.start_epoch({9, 0, 5, 5, 2, 1, 3, 8});
  EXPECT_EQ(loader.steps(), 2);
  expect_batch(loader.batch(0), {9, 0, 5, 5});
  expect_batch(loader.batch(1), {2, 1, 3, 8});
}

TEST_F(DataLoaderTest, EndsAnEpochWithAShorterBatch) {
  DataLoader loader(data_, 4, stream_);
  loader.start_epoch(range(0, 10));
  EXPECT_EQ(loader.steps(), 3);
  expect_batch(loader.batch(2), {8, 9});
  expect_batch(loader.batch(0), {0, 1, 2, 3});
}

TEST_F(DataLoaderTest, StartsEpochsOfOtherLengths) {
  DataLoader loader(data_, 4, stream_);
  loader.start_epoch({7});
  EXPECT_EQ(loader.steps(), 1);
  expect_batch(loader.batch(0), {7});
  loader.start_epoch(range(0, 5));
  EXPECT_EQ(loader.steps(), 2);
  expect_batch(loader.batch(1), {4});
}

TEST_F(DataLoaderTest, MakesOneBatchOfADataSetSmallerThanABatch) {
  DataLoader loader(data_, 32, stream_);
  loader.start_epoch(range(0, 10));
  EXPECT_EQ(loader.steps(), 1);
  expect_batch(loader.batch(0), range(0, 10));
}

TEST_F(DataLoaderTest, RefusesMoreIndicesThanSamples) {
  DataLoader loader(data_, 4, stream_);
  EXPECT_THROW(loader.start_epoch(Indices(11, 0)), std::invalid_argument);
}

TEST_F(DataLoaderTest, AccountsItsMemoryAsData) {
  const std::size_t before = memory_use(Memory::data).current;
  {
    const DataLoader loader(data_, 4, stream_);
    // The data set, one batch and the indices.
    EXPECT_EQ(memory_use(Memory::data).current - before, (10 * 5 + 4 * 5) * sizeof(float) + 10 * sizeof(int));
  }
  EXPECT_EQ(memory_use(Memory::data).current, before);
}

}  // namespace
}  // namespace workshop
