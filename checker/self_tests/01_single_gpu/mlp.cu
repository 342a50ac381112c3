// SPDX-License-Identifier: Apache-2.0
// Self-tests that the checker runs in `mlp` with --model alexnet: they call the code of some TODOs with maps that no
// image gives, higher than they are wide and with values below zero.
#include <vector>

#include "01_single_gpu/pooling.h"
#include "common/base/random.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

constexpr int kSamples = 2, kChannels = 3;
constexpr Map kIn = {kChannels, 9, 6};

// The maps that a layer with these windows makes of maps kIn.
constexpr Map out_of(const Windows& w) {
  return {kChannels, (kIn.height + 2 * w.padding - w.size) / w.stride + 1,
          (kIn.width + 2 * w.padding - w.size) / w.stride + 1};
}

// Normally distributed values on the device. Before and after them lie others, so that code with a wrong index reads
// the same in every run.
class RandomValues {
 public:
  RandomValues(int count, std::uint64_t seed, cudaStream_t stream) : values_(count + 2 * kAround, Memory::data) {
    std::vector<float> values(values_.size());
    Generator(seed).randn(values.data(), values.size());
    values_.upload({values.begin(), values.end()}, stream);
  }
  const Real* data() const { return values_.data() + kAround; }

 private:
  static constexpr int kAround = 4 * kIn.channels * kIn.height * kIn.width;
  DeviceBuffer<Real> values_;
};

const SelfTest windows_of_high_maps([](const Options& options, cudaStream_t stream) {
  if (options.model != ModelKind::alexnet) return;
  constexpr Windows kWindows = {3, 2, 1};
  constexpr Map kOut = out_of(kWindows);
  constexpr int kPixels = kOut.height * kOut.width;
  constexpr int kRow = kChannels * kWindows.size * kWindows.size;
  constexpr int kCount = kSamples * kPixels * kRow;
  const RandomValues maps(kSamples * kIn.size(), 1, stream);
  DeviceBuffer<Real> rows(kCount, Memory::data), gradient(kSamples * kIn.size(), Memory::data);
  launch(gather_windows, kCount, stream, rows.data(), maps.data(), kIn, kOut, kWindows, kSamples);
  probe("01.20", "windows of a map that is higher than it is wide", rows.data(), {kSamples * kPixels, kRow}, stream);
  const RandomValues of_rows(kCount, 2, stream);
  launch(add_windows, kCount, stream, gradient.data(), of_rows.data(), kIn, kOut, kWindows, kSamples);
  probe("01.21", "gradient of a map that is higher than it is wide", gradient.data(),
        {kSamples * kIn.pixels(), kChannels}, stream);
});

const SelfTest pools_of_high_maps([](const Options& options, cudaStream_t stream) {
  if (options.model != ModelKind::alexnet) return;
  constexpr Windows kWindows = {3, 2, 0};
  constexpr int kCells = 4;
  constexpr Map kOut = out_of(kWindows);
  const MaxPool largest = {"a map that is higher than it is wide", kIn, kOut, kWindows};
  const RandomValues x(kSamples * kIn.size(), 3, stream), dy(kSamples * kOut.size(), 4, stream);
  DeviceBuffer<Real> y(kSamples * kOut.size(), Memory::data), dx(kSamples * kIn.size(), Memory::data);
  DeviceBuffer<int> from(kSamples * kOut.size(), Memory::data);
  max_pool(largest, x.data(), y.data(), from.data(), kSamples, stream);
  max_pool_gradient(largest, dy.data(), from.data(), dx.data(), kSamples, stream);
  const AveragePool average = {"a map that is higher than it is wide", kIn, kCells};
  DeviceBuffer<Real> means(kSamples * average.size(), Memory::data);
  average_pool(average, x.data(), means.data(), kSamples, stream);
});

}  // namespace
}  // namespace workshop
