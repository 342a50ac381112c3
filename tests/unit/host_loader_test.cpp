// SPDX-License-Identifier: Apache-2.0
// The host loader: the same batches for any number of workers, prepared ahead of the device, neither too early nor too
// late.
#include "common/data/host_loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {
namespace {

using namespace std::chrono_literals;
using Indices = std::vector<int>;

std::shared_ptr<const ImageDataset> images(int count) {
  return std::make_shared<ImageDataset>(
      ImageDataset{.trained_on = count, .size = 32, .records = draw_images(1, count, 10)});
}

Indices indices(int first, int last) {
  Indices indices(last - first);
  std::iota(indices.begin(), indices.end(), first);
  return indices;
}

class HostLoaderTest : public testing::TestWithParam<int> {
 protected:
  template <typename T>
  std::vector<T> download(const void* device, int count) {
    std::vector<T> host(count);
    CUDA_CHECK(cudaMemcpyAsync(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost, stream_));
    stream_.synchronize();
    return host;
  }
  void expect_batch(const Batch& batch, const Indices& samples) {
    const ImageTransform transform(images_->size);
    std::vector<float> x(samples.size() * 3 * 32 * 32);
    std::vector<std::int32_t> y;
    for (int sample : samples) {
      transform(images_->pixels(sample), x.data() + y.size() * 3 * 32 * 32);
      y.push_back(images_->label(sample));
    }
    ASSERT_EQ(batch.samples, static_cast<int>(samples.size()));
    EXPECT_EQ(batch.x_bytes, 3 * 32 * 32 * sizeof(float));
    EXPECT_EQ(batch.y_bytes, sizeof(std::int32_t));
    EXPECT_EQ(download<float>(batch.x, static_cast<int>(x.size())), x);
    EXPECT_EQ(download<std::int32_t>(batch.y, batch.samples), y);
  }

  std::shared_ptr<const ImageDataset> images_ = images(50);
  Stream stream_;
  HostLoader loader_{images_, 4, GetParam(), stream_};
};

TEST_P(HostLoaderTest, MakesTheBatchesOfAnEpoch) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    loader_.start_epoch(indices(0, 50));
    ASSERT_EQ(loader_.steps(), 13);
    for (int step = 0; step < 12; ++step) expect_batch(loader_.batch(step), indices(4 * step, 4 * step + 4));
    expect_batch(loader_.batch(12), {48, 49});
  }
}

TEST_P(HostLoaderTest, PreparesTargetsAlone) {
  HostLoader loader(images_, 4, GetParam(), stream_, /*needs_x=*/false);
  loader.start_epoch(indices(0, 10));
  for (int step = 0; step < loader.steps(); ++step) {
    const Batch batch = loader.batch(step);
    EXPECT_EQ(batch.x, nullptr);
    EXPECT_EQ(batch.x_bytes, 0U);
    ASSERT_EQ(batch.samples, step < 2 ? 4 : 2);
    const std::vector<std::int32_t> y = download<std::int32_t>(batch.y, batch.samples);
    for (int i = 0; i < batch.samples; ++i) EXPECT_EQ(y[i], images_->label(4 * step + i));
  }
}

TEST_P(HostLoaderTest, GivesTheSameBatchAgain) {
  loader_.start_epoch({9, 0, 5, 5, 2, 1});
  expect_batch(loader_.batch(0), {9, 0, 5, 5});
  expect_batch(loader_.batch(0), {9, 0, 5, 5});
  expect_batch(loader_.batch(1), {2, 1});
}

TEST_P(HostLoaderTest, GoesOnFromAnyStep) {
  loader_.start_epoch(indices(0, 50));
  expect_batch(loader_.batch(7), indices(28, 32));
  expect_batch(loader_.batch(8), indices(32, 36));
  expect_batch(loader_.batch(2), indices(8, 12));
  expect_batch(loader_.batch(3), indices(12, 16));
}

TEST_P(HostLoaderTest, LeavesAnEpochAtAnyStep) {
  for (int steps = 0; steps < 9; ++steps) {
    loader_.start_epoch(indices(10 - steps, 50));
    for (int step = 0; step < steps; ++step) {
      expect_batch(loader_.batch(step), indices(10 - steps + 4 * step, 14 - steps + 4 * step));
    }
  }
}

TEST_P(HostLoaderTest, RefusesMoreIndicesThanSamples) {
  EXPECT_THROW(loader_.start_epoch(Indices(51, 0)), std::invalid_argument);
}

#ifdef WORKSHOP_BACKEND_CPU
TEST_P(HostLoaderTest, NeitherAllocatesNorWaitsForTheDeviceInAStep) {
  loader_.start_epoch(indices(0, 50));
  const auto before = cpu::counters();
  for (int step = 0; step < loader_.steps(); ++step) loader_.batch(step);
  EXPECT_EQ(cpu::counters().allocations, before.allocations);
  EXPECT_EQ(cpu::counters().synchronizations, before.synchronizations);
}

// How many batches it copies ahead depends on the time, so its events say nothing about the program.
TEST_P(HostLoaderTest, ItsEventsAreNotThoseOfTheProgram) {
  loader_.start_epoch(indices(0, 50));
  const auto before = cpu::counters();
  for (int step = 0; step < loader_.steps(); ++step) loader_.batch(step);
  EXPECT_EQ(cpu::counters().events, before.events);
}
#endif

INSTANTIATE_TEST_SUITE_P(Workers, HostLoaderTest, testing::Values(0, 1, 2, 5));

// Keeps the stream busy until the flag is set.
void occupy(cudaStream_t stream, std::atomic<bool>& done) {
  CUDA_CHECK(cudaLaunchHostFunc(
      stream,
      [](void* flag) {
        for (auto* set = static_cast<std::atomic<bool>*>(flag); !*set;) std::this_thread::sleep_for(1ms);
      },
      &done));
}

// Keeps the stream busy for this time.
template <int milliseconds>
void occupy(cudaStream_t stream) {
  CUDA_CHECK(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }, nullptr));
}

TEST(HostLoader, PreparesAndCopiesAheadOfADeviceThatIsBusy) {
  const Stream stream;
  HostLoader loader(images(40), 4, 2, stream);
  std::atomic<bool> done = false, in_time = false;
  std::thread rescue([&] {
    for (int i = 0; i < 2000 && !in_time; ++i) std::this_thread::sleep_for(10ms);
    done = true;
  });
  loader.start_epoch(indices(0, 40));
  loader.batch(0);
  occupy(stream, done);  // step 0
  // Three batches are on the device or may be copied there. Two more are in pinned memory once those are copied.
  for (int step = 1; step <= 5; ++step) loader.batch(step);
  EXPECT_FALSE(done);
  in_time = true;
  rescue.join();
  for (int step = 6; step < 10; ++step) loader.batch(step);
}

// A busy machine may leave a worker without a core, or stop the program, for longer than a step takes. So the
// measurement must be as expected only in one of several attempts.
template <typename Attempt>
void expect_in_some(Attempt attempt) {
  for (int i = 0; i < 20; ++i) {
    if (attempt()) return;
  }
  ADD_FAILURE() << "in none of 20 attempts";
}

TEST(HostLoader, KeepsADeviceBusyThatTakesLonger) {
  const Stream stream;
  const auto eighty = images(80);
  expect_in_some([&] {
    HostLoader loader(eighty, 8, 2, stream);
    loader.start_epoch(indices(0, 80));
    for (int step = 0; step < 10; ++step) {
      loader.batch(step);
      occupy<20>(stream);
    }
    return loader.seconds_waited() <= 0.01 * 10 * 0.02;
  });
}

TEST(HostLoader, SaysHowLongTheDeviceHasWaited) {
  const Stream stream;
  const auto large =
      std::make_shared<ImageDataset>(ImageDataset{.trained_on = 64, .size = 224, .records = draw_images(1, 64, 10)});
  expect_in_some([&] {
    HostLoader loader(large, 16, 0, stream);  // prepares batches while nothing else happens
    loader.start_epoch(indices(0, 64));
    loader.batch(0);
    const auto first = std::chrono::steady_clock::now();
    for (int step = 1; step < 4; ++step) loader.batch(step);
    stream.synchronize();
    const std::chrono::duration<double> others = std::chrono::steady_clock::now() - first;
    const double waited = loader.seconds_waited();
    return waited >= 0.8 * others.count() && waited <= others.count();
  });
}

}  // namespace
}  // namespace workshop
