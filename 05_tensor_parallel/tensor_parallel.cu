// Tensor parallelism: every rank works on every batch, with its part of every layer. The layers come in pairs, and a
// pair costs one all-reduce forward and one backward: parallel_linear.h has them.
#include "01_single_gpu/optimizer.h"
#include "common/job.h"
#include "common/training.h"
#include "parallel_linear.h"
#include "shards.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel", "Trains an MLP with pairs of layers cut over the ranks.");
  options.shuffle = false;
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  require_pairs(options.layers, process_ranks().world);
  Job job(options);

  const Stream stream;
  const Network network = make_parallel_mlp(options.layers, options.activation, job.group());
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);

  // All ranks see the same batches: a part of the model replaces a part of the data.
  Training training(options, job, {.reports = job.rank() == 0}, network.input_size(), network.output_size(), stream);
  training.add_all(parts_of(model), model.values(), optimizer.state());

  while (training.next_epoch()) {
    while (training.next_step()) {
      for (const MicroBatch& batch : training.batches()) {
        model.forward(batch.x, batch.samples, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      optimizer.step(model.values(), model.grads());
    }
    training.validate(/*ranks=*/{}, [&](const Batch& batch, float* loss) {  // every rank has the whole loss
      model.forward(batch.x, batch.samples, activations);
      model.loss(activations, batch.y, training.held_out(), loss);
    });
  }
  record_parameters(model.parameters(), job.rank(), job.group(), stream);
}
