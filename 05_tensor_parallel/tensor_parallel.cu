// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: every rank works on every batch, with its part of every layer, which parallel_linear.h has.
#include "01_single_gpu/optimizer.h"
#include "common/job.h"
#include "common/training.h"
#include "parallel_linear.h"
#include "shards.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel", "Trains an MLP with pairs of layers cut over the ranks.");
  bool overlap = false;
  options.add_flag("--overlap", overlap, "sum a layer's dx over the ranks while its dW is computed");
  options.shuffle = false;
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  SideStream side;
  const Network network = make_parallel_mlp(options.layers, options.activation, job.group(), overlap ? &side : nullptr);
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);

  Training training(options, job, {.reports = job.rank() == 0}, network.data(), stream);
  training.add_all(parts_of(model), model.values(), optimizer.state());

  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      optimizer.step(model.values(), model.grads());
    }
    training.evaluate(/*ranks=*/{}, [&](const Batch& batch, float* loss) {  // every rank has the whole loss
      model.forward(batch, activations);
      model.loss(activations, batch.y, training.evaluated(), loss);
    });
  }
  record_parameters(model.parameters(), job.rank(), job.group(), stream);
}
