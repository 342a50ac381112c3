// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "common/data/dataset.h"

namespace workshop {
namespace {

// out[i, :] = table[rows[i], :] for `count` rows of `width` values.
__global__ void gather_rows(float* out, const float* table, const int* rows, int count, int width) {
  for (int i : grid_stride(count * width)) {
    const int row = i / width;
    out[i] = table[static_cast<std::size_t>(rows[row]) * width + (i - row * width)];
  }
}

std::vector<int> in_order(int count) {
  std::vector<int> indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

std::size_t elements(int rows, int width) { return static_cast<std::size_t>(rows) * width; }

// A DataLoader keeps the data set on the device. What does not fit there is not drawn first: it might fill the memory
// of the host, and then the system ends the process without a word.
void require_room(std::size_t bytes) {
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (bytes <= free) return;
  fail(kFailed, "the data set takes %zu bytes of device memory, and %zu are free: --samples or --layers is too large",
       bytes, free);
}

}  // namespace

RandomTensorDataset::RandomTensorDataset(int samples, int in, int out, std::uint64_t seed)
    : samples(samples), in(in), out(out), generator(seed) {
  require_room((elements(samples, in) + elements(samples, out)) * sizeof(float));
  inputs.resize(elements(samples, in));
  targets.resize(elements(samples, out));
  for (int i = 0; i < samples; ++i) {
    generator.randn(inputs.data() + elements(i, in), in);
    generator.randn(targets.data() + elements(i, out), out);
  }
}

std::vector<int> RandomSampler::next_epoch() {
  ++epoch_;
  const std::uint64_t seed = draw_seed();
  return shuffle_ ? Generator(seed).randperm(samples_) : in_order(samples_);
}

std::uint64_t RandomSampler::draw_seed() {
  before_ = generator_;
  std::uint64_t seed = 0;
  for (int iterator = 0; shuffle_ && iterator < 2; ++iterator) {
    generator_.random64();  // the base seed of the iterator's workers, drawn even where it has none
    seed = generator_.random64();
  }
  return seed;
}

void RandomSampler::go_to(int epoch, const std::string& state) {
  if (state.empty()) {
    for (; epoch_ < epoch; ++epoch_) draw_seed();
    return;
  }
  generator_.set_state(state);
  epoch_ = epoch;
}

std::vector<int> DistributedSampler::indices() const {
  const std::vector<int> order = shuffle_ ? Generator(seed_ + epoch_).randperm(samples_) : in_order(samples_);
  std::vector<int> mine;
  const int per_replica = (samples_ + replicas_ - 1) / replicas_;
  for (int i = 0; i < per_replica; ++i) mine.push_back(order[(rank_ + i * replicas_) % samples_]);
  return mine;
}

DataLoader::DataLoader(const RandomTensorDataset& dataset, int batch_size, cudaStream_t stream)
    : in_(dataset.in),
      out_(dataset.out),
      batch_size_(std::min(batch_size, dataset.samples)),
      stream_(stream),
      inputs_(dataset.inputs.size(), Memory::data),
      targets_(dataset.targets.size(), Memory::data),
      x_(elements(batch_size_, in_), Memory::data),
      y_(elements(batch_size_, out_), Memory::data),
      indices_(dataset.samples, Memory::data) {
  inputs_.upload(dataset.inputs, stream);
  targets_.upload(dataset.targets, stream);
}

void DataLoader::start_epoch(const std::vector<int>& indices) {
  if (indices.size() > indices_.size()) {
    throw std::invalid_argument("an epoch of " + std::to_string(indices.size()) + " samples of a data set of " +
                                std::to_string(indices_.size()));
  }
  count_ = static_cast<int>(indices.size());
  CUDA_CHECK(
      cudaMemcpyAsync(indices_.data(), indices.data(), indices.size() * sizeof(int), cudaMemcpyHostToDevice, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

int DataLoader::steps() const { return (count_ + batch_size_ - 1) / batch_size_; }

Batch DataLoader::batch(int step) {
  const int first = step * batch_size_;
  const int rows = std::min(batch_size_, count_ - first);
  launch(gather_rows, rows * in_, stream_, x_.data(), inputs_.data(), indices_.data() + first, rows, in_);
  launch(gather_rows, rows * out_, stream_, y_.data(), targets_.data(), indices_.data() + first, rows, out_);
  return {x_.data(), y_.data(), rows, in_ * sizeof(float), out_ * sizeof(float)};
}

}  // namespace workshop
