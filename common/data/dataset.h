// SPDX-License-Identifier: Apache-2.0
// The data set of the course and PyTorch's ways through it: RandomTensorDataset, DataLoader, DistributedSampler.
#pragma once

#include <algorithm>
#include <vector>

#include "common/data.h"
#include "common/device.h"
#include "common/random.h"

namespace workshop {

// `samples` pairs of a standard normal input [in] and target [out], drawn sample by sample: input, then target.
struct RandomTensorDataset {
  RandomTensorDataset(int samples, int in, int out, std::uint64_t seed);

  int samples, in, out;
  std::vector<float> inputs;   // [samples, in]
  std::vector<float> targets;  // [samples, out]
  Generator generator;         // PyTorch's default generator as the data set leaves it; the DataLoader draws on
};

// The order of DataLoader(dataset, shuffle=…) without a sampler, epoch after epoch. Each epoch stands for two PyTorch
// iterators, because the programs of the course draw one batch more to print its size: `next(iter(loader))`.
class RandomSampler {
 public:
  RandomSampler(int samples, bool shuffle, Generator generator)
      : samples_(samples), shuffle_(shuffle), generator_(generator), before_(generator) {}
  std::vector<int> next_epoch();

  // For checkpoints: the generator as it is before the draws of this epoch, the coming or the last one.
  std::string state(int epoch) const { return (epoch == epoch_ ? generator_ : before_).state(); }
  // Makes this epoch the coming one, with the generator in this state; where there is none (""), by drawing the epochs
  // before it again.
  void go_to(int epoch, const std::string& state);

 private:
  std::uint64_t draw_seed();  // of the coming epoch's order

  int samples_;
  bool shuffle_;
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

// Keeps the data set on the device and gathers batches of it there, in the order of the epoch's indices: a batch is
// valid until the next one is enqueued. Nothing in batch() waits or allocates. The last batch of an epoch may have
// fewer rows (DataLoader's drop_last=False).
class DataLoader {
 public:
  DataLoader(const RandomTensorDataset& dataset, int batch_size, cudaStream_t stream);
  // Indices of the samples of the coming epoch, in order: at most dataset.samples. Waits for the stream.
  void start_epoch(const std::vector<int>& indices);
  int steps() const;  // batches in this epoch
  // Samples in the batches [first, last) together.
  int samples(int first, int last) const { return std::min(count_, last * batch_size_) - first * batch_size_; }
  Batch batch(int step);

 private:
  int in_, out_, batch_size_;
  cudaStream_t stream_;
  DeviceBuffer<float> inputs_, targets_, x_, y_;
  DeviceBuffer<int> indices_;
  int count_ = 0;
};

}  // namespace workshop
