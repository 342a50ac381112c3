// SPDX-License-Identifier: Apache-2.0
#include "common/data/training_data.h"

#include <algorithm>

#include "common/data/host_loader.h"

namespace workshop {

TrainingData load_training_data(const Options& options, const DataSource& source, cudaStream_t stream) {
  const int trained_on = training_samples(options, source);
  if (source.text != nullptr) {
    TokenDataset& text = *source.text;
    TrainingData data{std::make_unique<DataLoader>(text, options.batch_size, stream),
                      Generator(options.seed),
                      Draws::order,
                      trained_on,
                      trained_on,
                      text.held_out,
                      text.tested};
    std::vector<std::int32_t>().swap(text.tokens);
    return data;
  }
  if (source.images != nullptr) {
    const ImageDataset& images = *source.images;
    return {
        std::make_unique<HostLoader>(source.images, options.batch_size, options.images.workers, stream, source.needs_x),
        Generator(options.seed),
        Draws::order,
        trained_on + images.held_out,
        trained_on,
        images.held_out,
        images.tested};
  }
  const RandomTensorDataset dataset(options.samples, source.in, source.out, options.seed);
  return {std::make_unique<DataLoader>(dataset, options.batch_size, stream),
          dataset.generator,
          Draws::two_seeds,
          options.samples,
          trained_on,
          options.validation_samples,
          0};
}

DistributedSampler distributed_sampler(const Options& options, const TrainingData& data, int replicas, int replica) {
  const std::uint64_t seed = data.draws == Draws::order ? options.seed : 0;
  return {data.trained_on, replicas, replica, options.shuffle, seed};
}

int training_samples(const Options& options, const DataSource& source) {
  if (source.text != nullptr) return source.text->trained_on;
  if (source.images != nullptr) return source.images->trained_on;
  return options.samples - options.validation_samples;
}

std::int64_t count_steps(const Options& options, int trained_on, int replicas) {
  const int samples = (trained_on + replicas - 1) / replicas;
  const int batches = (samples + options.batch_size - 1) / options.batch_size;
  const int an_epoch = (batches + options.accumulation_steps - 1) / options.accumulation_steps;
  const std::int64_t all = std::int64_t{options.epochs} * an_epoch;
  return options.max_steps > 0 ? std::min<std::int64_t>(options.max_steps, all) : all;
}

}  // namespace workshop
