// SPDX-License-Identifier: Apache-2.0
// What is known of a training run before it begins: its data set, and how many steps it has.
#pragma once

#include <cstdint>
#include <memory>

#include "common/data/dataset.h"
#include "common/options/options.h"

namespace workshop {

// The data set behind its loader. First come the samples to train on, then those of the validation, then of the test.
struct TrainingData {
  std::unique_ptr<Loader> loader;
  Generator generator;  // for the order of the samples
  Draws draws;
  int samples;  // of an epoch at most: what the run's logs and checkpoints go by
  int trained_on, held_out, tested;
};

TrainingData load_training_data(const Options& options, const DataSource& source, cudaStream_t stream);

// Deals out the samples to train on among the replicas.
DistributedSampler distributed_sampler(const Options& options, const TrainingData& data, int replicas, int replica);

int training_samples(const Options& options, const DataSource& source);

// Optimizer steps of a whole run: those of all epochs, or --max-steps if that is less.
std::int64_t count_steps(const Options& options, int trained_on, int replicas);

}  // namespace workshop
