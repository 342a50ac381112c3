// SPDX-License-Identifier: Apache-2.0
// The data set of the course, that of a text, and PyTorch's ways through them: RandomTensorDataset, TokenDataset,
// DataLoader, DistributedSampler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/random.h"
#include "common/data/batch.h"
#include "common/data/data_source.h"
#include "common/data/images.h"
#include "common/data/text.h"
#include "common/device/device.h"

namespace workshop {

// `samples` pairs of a standard normal input [in] and target [out], drawn sample by sample: input, then target.
struct RandomTensorDataset {
  RandomTensorDataset(int samples, int in, int out, std::uint64_t seed);

  int samples, in, out;
  std::vector<float> inputs;   // [samples, in]
  std::vector<float> targets;  // [samples, out]
  Generator generator;         // PyTorch's default generator as the data set leaves it; the DataLoader draws on
};

// The samples of a text: `context` tokens each, and as targets the tokens that follow them, which are the same ones but
// for the first and the last. So a sample is a place in the stream of tokens, and each token is there once. First come
// the samples of the training, then those of validation and test.
struct TokenDataset {
  TokenDataset(const Text& text, int context);

  int context, trained_on, held_out, tested;  // tokens a sample; samples
  std::vector<std::int32_t> tokens;           // sample i begins at place(i) * context; its targets one token later
  int samples() const { return trained_on + held_out + tested; }
  // The last targets of each part of the text are no inputs: behind them lies what fills a sample's place.
  int place(int sample) const { return sample + (sample >= trained_on) + (sample >= trained_on + held_out); }
};

// What a RandomSampler draws from. The programs of the course give their DataLoader no generator: it takes a seed from
// the default one for each iterator. And they draw one batch more in each epoch to print its size, next(iter(loader)),
// which is an iterator too. Others do DataLoader(…, generator=torch.Generator().manual_seed(seed)), and draw the order
// itself from it, for one iterator an epoch.
enum class Draws { two_seeds, order };

// The order of DataLoader(dataset, shuffle=…) without a sampler, epoch after epoch.
class RandomSampler {
 public:
  RandomSampler(int samples, bool shuffle, Generator generator, Draws draws = Draws::two_seeds)
      : samples_(samples), shuffle_(shuffle), draws_(draws), generator_(generator), before_(generator) {}
  std::vector<int> next_epoch();

  // For checkpoints: the generator as it is before the draws of this epoch, the coming or the last one.
  std::string state(int epoch) const { return (epoch == epoch_ ? generator_ : before_).state(); }
  // Makes this epoch the coming one, with the generator in this state; where there is none (""), by drawing the epochs
  // before it again.
  void go_to(int epoch, const std::string& state);

 private:
  std::vector<int> draw_order();  // of the coming epoch

  int samples_;
  bool shuffle_;
  Draws draws_;
  Generator generator_, before_;  // now, and before the last epoch's draws
  int epoch_ = 0;                 // the coming one
};

// DistributedSampler(dataset, num_replicas, rank, shuffle, seed): one permutation that all ranks draw alike, padded
// from its front until the ranks divide it, of which rank r takes every replicas-th index from r on.
class DistributedSampler {
 public:
  DistributedSampler(int samples, int replicas, int rank, bool shuffle, std::uint64_t seed = 0)
      : samples_(samples), replicas_(replicas), rank_(rank), shuffle_(shuffle), seed_(seed) {}
  void set_epoch(int epoch) { epoch_ = epoch; }
  std::vector<int> indices() const;

 private:
  int samples_, replicas_, rank_;
  bool shuffle_;
  std::uint64_t seed_;
  int epoch_ = 0;
};

// Makes batches of a data set, in the order of the epoch's indices. The last batch of an epoch may have fewer samples
// (DataLoader's drop_last=False).
class Loader {
 public:
  virtual ~Loader() = default;
  // Indices of the samples of the coming epoch, in order.
  virtual void start_epoch(const std::vector<int>& indices) = 0;
  // Valid until the next one is asked for.
  virtual Batch batch(int step) = 0;
  // For how long the device has waited for batches.
  virtual double seconds_waited() { return 0; }

  int steps() const { return (count_ + batch_size_ - 1) / batch_size_; }  // batches in this epoch
  // Samples in the batches [first, last) together.
  int samples(int first, int last) const { return std::min(count_, last * batch_size_) - first * batch_size_; }

 protected:
  explicit Loader(int batch_size) : batch_size_(batch_size) {}
  const int batch_size_;
  int count_ = 0;  // samples in this epoch
};

// Keeps the data set on the device and gathers batches of it there. Nothing in batch() waits or allocates.
class DataLoader : public Loader {
 public:
  DataLoader(const RandomTensorDataset& dataset, int batch_size, cudaStream_t stream);
  DataLoader(const TokenDataset& dataset, int batch_size, cudaStream_t stream);
  // At most dataset.samples indices. Waits for the stream.
  void start_epoch(const std::vector<int>& indices) override;
  Batch batch(int step) override;

 private:
  using Word = std::uint32_t;  // a float or a token, which is all the same here
  DataLoader(int samples, int in, int out, int batch_size, cudaStream_t stream);

  int in_, out_;
  cudaStream_t stream_;
  DeviceBuffer<Word> data_;
  const Word *inputs_ = nullptr, *targets_ = nullptr;  // in data_: sample i's from i * in and i * out on
  DeviceBuffer<Word> x_, y_;
  DeviceBuffer<int> indices_;
};

}  // namespace workshop
