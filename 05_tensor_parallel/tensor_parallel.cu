// Tensor parallelism: every rank works on every batch, with its part of every layer. The layers come in pairs, and a
// pair costs one all-reduce forward and one backward: parallel_linear.h has them.
#include "common/data.h"
#include "common/job.h"
#include "parallel_linear.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel", "Trains an MLP with pairs of layers cut over the ranks.");
  options.shuffle = false;
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

  for (int epoch = 0; epoch < options.epochs && !losses.finished(); ++epoch) {
    loader.start_epoch(sampler.next_epoch());
    for (int step = 0; step < loader.steps() && !losses.finished(); ++step) {
      float* loss = losses.next(stream);
      const Batch batch = loader.batch(step);
      model.forward(batch.x, batch.rows, activations);
      model.loss(activations, batch.y, batch.rows * outputs, loss);
      model.backward(activations);
      update.step(model.values(), model.grads());
    }
    losses.end_epoch(epoch, stream);
  }
  model.parameters().record(job.rank());
}
