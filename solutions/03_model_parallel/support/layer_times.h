// SPDX-License-Identifier: Apache-2.0
// Measures how long each layer of a network takes, for --partition time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/device/device.h"
#include "common/nccl/group.h"
#include "model/model.h"

namespace workshop {

// The time that one layer takes for one batch.
struct LayerTime {
  double forward, backward;  // milliseconds
  double both() const { return forward + backward; }
};

// Runs only layer `i`, on `samples` samples of zeros, and returns the median time of some runs.
inline LayerTime time_of_layer(const Network& network, int i, int samples, cudaStream_t stream) {
  constexpr int kRuns = 5;
  Model model(network, samples, stream, {i, i + 1});
  Activations activations = model.make_activations();
  const auto zeros = [&](int count) {
    DeviceBuffer<Real> buffer(count, Memory::activations);
    CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, buffer.bytes(), stream));
    return buffer;
  };
  const DeviceBuffer<Real> x = zeros(samples * model.input_size());  // token number 0, if the layer reads tokens
  const DeviceBuffer<Real> dx = zeros(i > 0 ? samples * model.input_size() : 0);
  if (model.count() > 0) CUDA_CHECK(cudaMemsetAsync(model.values(), 0, model.count() * sizeof(Real), stream));

  Event begin(cudaEventDefault), middle(cudaEventDefault), end(cudaEventDefault);
  const auto elapsed = [](const Event& from, const Event& to) {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from, to));
    return static_cast<double>(milliseconds);
  };
  std::vector<double> forward, backward;
  for (int run = 0; run <= kRuns; ++run) {
    const std::size_t bytes = static_cast<std::size_t>(samples) * model.output_size() * sizeof(Real);
    CUDA_CHECK(cudaMemsetAsync(model.output_gradient(), 0, bytes, stream));
    CUDA_CHECK(cudaEventRecord(begin, stream));
    model.forward({.x = x.data(), .samples = samples, .step = 0}, activations);
    CUDA_CHECK(cudaEventRecord(middle, stream));
    model.backward(activations, /*accumulate=*/true, {}, dx.data());
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (run == 0) continue;  // warm-up: libraries set themselves up
    forward.push_back(elapsed(begin, middle));
    backward.push_back(elapsed(middle, end));
  }
  const auto median = [](std::vector<double>& times) {
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return times[kRuns / 2];
  };
  return {median(forward), median(backward)};
}

// Returns the times of all layers, as means over the ranks, so that all ranks cut at the same places. Collective. No
// model may use this network, because the measurement gives its layers different memory.
inline std::vector<LayerTime> layer_times(const Network& network, int samples, const Group& ranks,
                                          cudaStream_t stream) {
  std::vector<LayerTime> times;
  for (int i = 0; i < network.depth(); ++i) {
    const LayerTime mine = time_of_layer(network, i, samples, stream);
    LayerTime& mean = times.emplace_back(LayerTime{0, 0});
    for (const LayerTime& of_rank : ranks.gather(mine)) {
      mean.forward += of_rank.forward / ranks.size();
      mean.backward += of_rank.backward / ranks.size();
    }
  }
  return times;
}

// Converts the times to whole nanoseconds, which partition_layers() balances.
inline std::vector<std::int64_t> nanoseconds(const std::vector<LayerTime>& times) {
  std::vector<std::int64_t> counts;
  for (const LayerTime& time : times) counts.push_back(static_cast<std::int64_t>(1e6 * time.both()));
  return counts;
}

}  // namespace workshop
