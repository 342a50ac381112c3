// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism with column-parallel layers alone: every rank computes its features of every layer, and an
// all-gather gives all ranks the whole output. Simpler than pairs, and about as many bytes for every layer as a pair of
// tensor_parallel.cu sends for two.
#include "01_single_gpu/optimizer.h"
#include "common/job.h"
#include "common/training.h"
#include "gathered_mlp.h"
#include "shards.h"

using namespace workshop;

namespace {

// Ends the job with status 2 unless the ranks divide every width but that of the input.
void require_divisible(const std::vector<int>& widths, int ranks) {
  for (std::size_t i = 1; i < widths.size(); ++i) {
    if (widths[i] % ranks == 0) continue;
    usage_error("--layers has a layer with %d outputs; expected a multiple of the %d ranks", widths[i], ranks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel_gather", "Trains an MLP with column-parallel layers alone.");
  options.shuffle = false;
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  require_divisible(options.layers, process_ranks().world);
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  GatheredMlp model(options, job.group(), stream);
  model.initialize(options.model_seed);
  const ShardedParameters& parameters = model.parameters();
  Optimizer optimizer(options, parameters.count(), stream);

  Training training(options, job, {.reports = job.rank() == 0}, {inputs, outputs}, stream);
  add_all(training, parameters, optimizer);

  while (training.next_epoch()) {
    while (training.next_step()) {
      const Batch batch = training.batch();
      model.forward(batch.x, batch.samples);
      model.loss(static_cast<const float*>(batch.y), batch.samples, batch.samples, training.loss());
      model.backward(batch.samples);
      optimizer.step(parameters.values(), parameters.grads());
    }
    training.evaluate([&](const Batch& batch, float* loss) {  // every rank has the whole loss
      model.forward(batch.x, batch.samples);
      model.loss(static_cast<const float*>(batch.y), batch.samples, training.evaluated(), loss);
    });
  }
  record_parameters(parameters.all(), job.rank(), job.group(), stream);
}
