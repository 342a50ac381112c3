// Tensor parallelism: every rank works on every batch, with its part of every layer. The layers come in pairs, and a
// pair costs one all-reduce forward and one backward: parallel_linear.h has them.
#include "checkpoint_shards.h"
#include "common/data.h"
#include "common/job.h"
#include "parallel_linear.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel", "Trains an MLP with pairs of layers cut over the ranks.");
  options.shuffle = false;
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  require_pairs(options.layers, process_ranks().world);
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  const TensorGroup group{job.comm(), job.rank(), job.world()};
  ParallelMlp model(options.layers, options.activation, options.batch_size, group, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  ParameterUpdate update(options, model.count(), stream);

  // All ranks see the same batches: a part of the model replaces a part of the data.
  const RandomTensorDataset dataset(options.samples, inputs, outputs, options.seed);
  RandomSampler sampler(options.samples, options.shuffle, dataset.generator);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank() == 0 ? 0 : -1, 1, stream);

  Checkpoints checkpoints(options, 1, job.comm(), stream);
  add_training(checkpoints, model.parameters(), group, update);
  checkpoints.add(sampler);
  const Progress start = checkpoints.resume(losses);
  update.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = start.first_batch(epoch); step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      const Batch batch = loader.batch(step);
      model.forward(batch.x, batch.rows, activations);
      model.loss(activations, batch.y, batch.rows * outputs, loss);
      model.backward(activations);
      update.step(model.values(), model.grads());
      checkpoints.step_done(epoch, step + 1, loader);
    }
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  model.parameters().record(job.rank());
}
