// Trains a network of layer norms and pairs of linear layers whose rows are cut over the ranks between the pairs:
// sequence_parallel.h has them.
#include "checkpoint_shards.h"
#include "common/data.h"
#include "common/job.h"
#include "gradient_check.h"
#include "sequence_parallel.h"

using namespace workshop;

namespace {

// Ends the job with status 2 unless every batch splits into equal shares of rows.
void require_equal_rows(const Options& options, int ranks) {
  const std::string multiple = "; expected a multiple of the " + std::to_string(ranks) + " ranks";
  if (options.batch_size % ranks != 0) {
    usage_error("--batch-size is '" + std::to_string(options.batch_size) + "'" + multiple);
  }
  const int rest = options.samples % options.batch_size;
  if (rest % ranks != 0) {
    usage_error("--samples is '" + std::to_string(options.samples) + "', which leaves " + std::to_string(rest) +
                " for the last batch" + multiple);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/sequence_parallel", "Trains layer norms and pairs of layers, rows cut between.");
  bool gradient_check = false;
  options.add_flag("--gradient-check", gradient_check, "compare the gradients with central differences, then train");
  options.shuffle = false;
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  require_pairs(options.layers, process_ranks().world);
  require_equal_rows(options, process_ranks().world);
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  const TensorGroup group{job.comm(), job.rank(), job.world()};
  SequenceParallelMlp model(options, group, stream);
  model.initialize(options.model_seed);
  const ShardedParameters& parameters = model.parameters();
  ParameterUpdate update(options, parameters.count(), stream);

  const RandomTensorDataset dataset(options.samples, inputs, outputs, options.seed);
  RandomSampler sampler(options.samples, options.shuffle, dataset.generator);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank() == 0 ? 0 : -1, 1, stream);

  // Enqueues the forward pass and the loss of one batch.
  const auto forward = [&](const Batch& batch, float* loss) {
    const int r = batch.rows / group.size;
    model.forward(batch.x + group.rank * r * inputs, r);
    model.loss(batch.y + group.rank * r * outputs, r, loss);
  };
  const auto backward = [&](const Batch& batch) {
    const int r = batch.rows / group.size;
    model.backward(batch.x + group.rank * r * inputs, r);
  };

  if (gradient_check) {
    RandomSampler in_order(options.samples, false, dataset.generator);
    loader.start_epoch(in_order.next_epoch());
    const Batch batch = loader.batch(0);
    DeviceBuffer<float> sum(1, Memory::data);
    const auto loss = [&]() -> double {
      CUDA_CHECK(cudaMemsetAsync(sum.data(), 0, sizeof(float), stream));
      forward(batch, sum.data());
      NCCL_CHECK(pncclAllReduce(sum.data(), sum.data(), 1, ncclFloat, ncclSum, group.comm, stream));
      return sum.download(stream)[0];
    };
    loss();
    backward(batch);
    stream.synchronize();
    if (!check_gradients(parameters.all(), group, loss, stream)) fail(kFailed, "the gradients are wrong");
  }

  Checkpoints checkpoints(options, 1, job.comm(), stream);
  add_training(checkpoints, parameters, group, update);
  checkpoints.add(sampler);
  const Progress start = checkpoints.resume(losses);
  update.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      const Batch batch = loader.batch(step);
      forward(batch, loss);
      backward(batch);
      update.step(parameters.values(), parameters.grads());
      checkpoints.step_done(epoch, step + 1, loader);
    }
    // Each rank knows the losses of its rows. Rank 0 prints and records their sums.
    NCCL_CHECK(ncclReduce(losses.losses(), losses.losses(), losses.count(), ncclFloat, ncclSum, 0, group.comm, stream));
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  parameters.record(job.rank());
}
