// SPDX-License-Identifier: Apache-2.0
// What is known about a training run before it begins: its data set and its number of steps.
#pragma once

#include <cstdint>
#include <memory>

#include "common/data/dataset.h"
#include "common/options/options.h"

namespace workshop {

// The data set, behind its loader. The samples to train on come first, then those for validation, then those for the
// test.
struct TrainingData {
  std::unique_ptr<Loader> loader;
  Generator generator;  // for the order of the samples
  Draws draws;
  int samples;  // upper bound on the samples of an epoch; logs and checkpoints use this number
  int trained_on, held_out, tested;
};

TrainingData load_training_data(const Options& options, const DataSource& source, cudaStream_t stream);

// Distributes the samples to train on among the replicas.
DistributedSampler distributed_sampler(const Options& options, const TrainingData& data, int replicas, int replica);

int training_samples(const Options& options, const DataSource& source);

// Returns the optimizer steps of the whole run: those of all epochs, or --max-steps if that is less.
std::int64_t count_steps(const Options& options, int trained_on, int replicas);

}  // namespace workshop
