// SPDX-License-Identifier: Apache-2.0
// The course's random data set, the data set of a text, and PyTorch's classes to iterate over them: RandomSampler,
// DistributedSampler, DataLoader.
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

// `samples` pairs of an input [in] and a target [out], standard normal. Drawn sample by sample, input before target.
struct RandomTensorDataset {
  RandomTensorDataset(int samples, int in, int out, std::uint64_t seed);

  int samples, in, out;
  std::vector<float> inputs;   // [samples, in]
  std::vector<float> targets;  // [samples, out]
  Generator generator;         // PyTorch's default generator after the data set; the DataLoader goes on drawing from it
};

// The samples of a text. A sample has `context` tokens; its targets are the same tokens shifted by one. A sample is
// therefore a place in the stream of tokens, and each token is stored once. The training samples come first, then those
// of validation and test.
struct TokenDataset {
  TokenDataset(const Text& text, int context);

  int context, trained_on, held_out, tested;  // context: tokens per sample; the others count samples
  std::vector<std::int32_t> tokens;           // sample i begins at place(i) * context, its targets one token later
  int samples() const { return trained_on + held_out + tested; }
  // The last target of each part of the text is a token that is no input. It is padded to the length of a sample, so
  // each part of the text takes one place more than it has samples.
  int place(int sample) const { return sample + (sample >= trained_on) + (sample >= trained_on + held_out); }
};

// What a RandomSampler draws from its generator in each epoch.
// - two_seeds: one seed per iterator. The course's programs pass no generator to their DataLoader, so each iterator
//   draws a seed from the default generator. An epoch has two iterators, because the programs also call
//   next(iter(loader)) to print the batch size.
// - order: the order itself, for one iterator per epoch, as with
//   DataLoader(…, generator=torch.Generator().manual_seed(seed)).
enum class Draws { two_seeds, order };

// The order of samples of DataLoader(dataset, shuffle=…) without a sampler, epoch after epoch.
class RandomSampler {
 public:
  RandomSampler(int samples, bool shuffle, Generator generator, Draws draws = Draws::two_seeds)
      : samples_(samples), shuffle_(shuffle), draws_(draws), generator_(generator), before_(generator) {}
  std::vector<int> next_epoch();

  // For checkpoints: returns the generator's state before the draws of this epoch, which must be the next or the last
  // one drawn.
  std::string state(int epoch) const { return (epoch == epoch_ ? generator_ : before_).state(); }
  // Makes `epoch` the next one, with the generator in this state. If the state is "", draws the epochs before it again
  // instead.
  void go_to(int epoch, const std::string& state);

 private:
  std::vector<int> draw_order();  // of the next epoch

  int samples_;
  bool shuffle_;
  Draws draws_;
  Generator generator_, before_;  // now, and before the last epoch's draws
  int epoch_ = 0;                 // the next one
};

// DistributedSampler(dataset, num_replicas, rank, shuffle, seed). All ranks draw the same permutation and pad it with
// its first entries to a multiple of num_replicas. Rank r takes every num_replicas-th index, starting at r.
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

// Makes batches of a data set, in the order of the epoch's indices. The last batch of an epoch may be smaller
// (DataLoader's drop_last=False).
class Loader {
 public:
  virtual ~Loader() = default;
  // Starts an epoch over the samples with these indices, in this order.
  virtual void start_epoch(const std::vector<int>& indices) = 0;
  // Returns a batch, which is valid until the next call.
  virtual Batch batch(int step) = 0;
  // Returns for how long the device has waited for batches.
  virtual double seconds_waited() { return 0; }

  int steps() const { return (count_ + batch_size_ - 1) / batch_size_; }  // batches in this epoch
  // Number of samples in the batches [first, last) together.
  int samples(int first, int last) const { return std::min(count_, last * batch_size_) - first * batch_size_; }

 protected:
  explicit Loader(int batch_size) : batch_size_(batch_size) {}
  const int batch_size_;
  int count_ = 0;  // samples in this epoch
};

// Keeps the data set on the device and gathers batches there. batch() neither waits nor allocates.
class DataLoader : public Loader {
 public:
  DataLoader(const RandomTensorDataset& dataset, int batch_size, cudaStream_t stream);
  DataLoader(const TokenDataset& dataset, int batch_size, cudaStream_t stream);
  // Takes at most dataset.samples indices. Waits for the stream.
  void start_epoch(const std::vector<int>& indices) override;
  Batch batch(int step) override;

 private:
  using Word = std::uint32_t;  // a float or a token: both are copied as 4 bytes
  DataLoader(int samples, int in, int out, int batch_size, cudaStream_t stream);

  int in_, out_;
  cudaStream_t stream_;
  DeviceBuffer<Word> data_;
  const Word *inputs_ = nullptr, *targets_ = nullptr;  // in data_; sample i begins at i * in and i * out
  DeviceBuffer<Word> x_, y_;
  DeviceBuffer<int> indices_;
};

}  // namespace workshop
