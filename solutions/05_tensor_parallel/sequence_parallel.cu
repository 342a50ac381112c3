// SPDX-License-Identifier: Apache-2.0
// Trains a network of layer norms and pairs of linear layers whose rows are cut over the ranks between the pairs:
// sequence_parallel.h has them.
#include <numeric>
#include <vector>

#include "01_single_gpu/optimizer.h"
#include "common/job.h"
#include "common/training.h"
#include "gradient_check.h"
#include "sequence_parallel.h"
#include "shards.h"

using namespace workshop;

namespace {

// Ends the job with status 2 unless every batch splits into equal shares of rows.
void require_equal_rows(const Options& options, int ranks) {
  if (options.batch_size % ranks != 0) {
    usage_error("--batch-size is '%d'; expected a multiple of the %d ranks", options.batch_size, ranks);
  }
  const int rest = options.samples % options.batch_size;
  if (rest % ranks != 0) {
    usage_error("--samples is '%d', which leaves %d for the last batch; expected a multiple of the %d ranks",
                options.samples, rest, ranks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/sequence_parallel", "Trains layer norms and pairs of layers, rows cut between.");
  bool gradient_check = false;
  options.add_flag("--gradient-check", gradient_check, "compare the gradients with central differences, then train");
  options.shuffle = false;
  options.with_precision();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  require_pairs(options.layers, process_ranks().world);
  require_equal_rows(options, process_ranks().world);
  Job job(options);

  const Stream stream;
  const Group& group = job.group();
  SequenceParallelMlp model(options, group, stream);
  model.initialize(options.model_seed);
  const ShardedParameters& parameters = model.parameters();
  Optimizer optimizer(options, parameters.count(), stream);

  Training training(options, job, {.reports = job.rank() == 0}, {options.layers.front(), options.layers.back()},
                    stream);
  add_all(training, parameters, optimizer);

  // This rank's rows of a batch.
  const auto own_rows = [&](const Batch& batch) {
    const int r = batch.samples / group.size();
    return batch.slice(group.rank() * r, r);
  };
  if (gradient_check) {
    require_floats();
    const Batch batch = own_rows(training.first_samples());
    DeviceBuffer<float> sum(1, Memory::data);
    const auto loss = [&]() -> double {
      CUDA_CHECK(cudaMemsetAsync(sum.data(), 0, sizeof(float), stream));
      model.forward(batch);
      model.loss(batch, sum.data());
      const std::vector<float> of_ranks = group.gather(sum.download(stream)[0]);
      return std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
    };
    loss();
    model.backward(batch);
    stream.synchronize();
    if (!check_gradients(parameters.all(), group, loss, stream)) fail(kFailed, "the gradients are wrong");
  }

  while (training.next_epoch()) {
    while (training.next_step()) {
      const Batch batch = own_rows(training.batch());
      model.forward(batch);
      model.loss(batch, training.loss());
      model.backward(batch);
      optimizer.step(parameters.values(), parameters.grads());
    }
    // Each rank knows the losses of its rows. Rank 0 prints and records their sums.
    const LossLog& losses = training.losses();
    NCCL_CHECK(
        ncclReduce(losses.losses(), losses.losses(), losses.count(), ncclFloat, ncclSum, 0, group.comm(), stream));
  }
  record_parameters(parameters.all(), job.rank(), group, stream);
}
