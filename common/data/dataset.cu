// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "common/data/dataset.h"

namespace workshop {
namespace {

// out[i, :] = table[rows[i], :] for `count` rows of `width` words each.
__global__ void gather_rows(std::uint32_t* out, const std::uint32_t* table, const int* rows, int count, int width) {
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

// A DataLoader keeps the data set on the device. Check that it fits before generating it: it might fill the host
// memory, and then the system kills the process without a message.
void require_room(std::size_t bytes) {
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  if (bytes <= free) return;
  fail(kFailed, "the data set needs %zu bytes of device memory, but %zu are free: --samples or --layers is too large",
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

TokenDataset::TokenDataset(const Text& text, int context) : context(context) {
  for (const std::vector<std::int32_t>* stream : {&text.train, &text.valid, &text.test}) {
    const std::size_t samples = stream->empty() ? 0 : (stream->size() - 1) / context;
    (stream == &text.train ? trained_on : stream == &text.valid ? held_out : tested) = static_cast<int>(samples);
    const std::size_t place = tokens.size();
    tokens.resize(place + (samples + 1) * context);
    std::copy_n(stream->begin(), std::min(stream->size(), samples * context + 1), tokens.begin() + place);
  }
}

std::vector<int> RandomSampler::next_epoch() {
  ++epoch_;
  return draw_order();
}

std::vector<int> RandomSampler::draw_order() {
  before_ = generator_;
  if (!shuffle_) return in_order(samples_);
  if (draws_ == Draws::order) {
    generator_.random64();  // the base seed of the iterator's workers, drawn even without workers
    std::vector<int> order = generator_.randperm(samples_);
    generator_.randperm(samples_);  // PyTorch draws again for the remaining samples, even for 0
    return order;
  }
  std::uint64_t seed = 0;
  for (int iterator = 0; iterator < 2; ++iterator) {
    generator_.random64();  // the base seed
    seed = generator_.random64();
  }
  return Generator(seed).randperm(samples_);
}

void RandomSampler::go_to(int epoch, const std::string& state) {
  if (state.empty()) {
    for (; epoch_ < epoch; ++epoch_) draw_order();
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

DataLoader::DataLoader(int samples, int in, int out, int batch_size, cudaStream_t stream)
    : Loader(std::min(batch_size, samples)),
      in_(in),
      out_(out),
      stream_(stream),
      x_(elements(batch_size_, in), Memory::data),
      y_(elements(batch_size_, out), Memory::data),
      indices_(samples, Memory::data) {}

DataLoader::DataLoader(const RandomTensorDataset& dataset, int batch_size, cudaStream_t stream)
    : DataLoader(dataset.samples, dataset.in, dataset.out, batch_size, stream) {
  const std::size_t inputs = dataset.inputs.size(), targets = dataset.targets.size();
  data_ = DeviceBuffer<Word>(inputs + targets, Memory::data);
  inputs_ = data_.data();
  targets_ = inputs_ + inputs;
  const auto upload = [&](Word* to, const std::vector<float>& from) {
    CUDA_CHECK(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  };
  upload(data_.data(), dataset.inputs);
  upload(data_.data() + inputs, dataset.targets);
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

DataLoader::DataLoader(const TokenDataset& dataset, int batch_size, cudaStream_t stream)
    : DataLoader(dataset.place(dataset.samples()), dataset.context, dataset.context, batch_size, stream) {
  data_ = DeviceBuffer<Word>(dataset.tokens.size(), Memory::data);
  inputs_ = data_.data();
  targets_ = inputs_ + 1;
  const std::size_t bytes = data_.bytes();
  CUDA_CHECK(cudaMemcpyAsync(data_.data(), dataset.tokens.data(), bytes, cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

void DataLoader::start_epoch(const std::vector<int>& indices) {
  if (indices.size() > indices_.size()) {
    throw std::invalid_argument("an epoch of " + std::to_string(indices.size()) + " samples from a data set of only " +
                                std::to_string(indices_.size()));
  }
  count_ = static_cast<int>(indices.size());
  CUDA_CHECK(
      cudaMemcpyAsync(indices_.data(), indices.data(), indices.size() * sizeof(int), cudaMemcpyHostToDevice, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

Batch DataLoader::batch(int step) {
  const int first = step * batch_size_;
  const int rows = std::min(batch_size_, count_ - first);
  launch(gather_rows, rows * in_, stream_, x_.data(), inputs_, indices_.data() + first, rows, in_);
  launch(gather_rows, rows * out_, stream_, y_.data(), targets_, indices_.data() + first, rows, out_);
  return {x_.data(), y_.data(), rows, in_ * sizeof(Word), out_ * sizeof(Word)};
}

}  // namespace workshop
