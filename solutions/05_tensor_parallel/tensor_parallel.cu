// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: every rank works on every batch, with its part of every layer, and gets the whole loss.
// tensor_parallel.h has f, g and the pairs of layers of the MLP; parallel_transformer.h and vocabulary_parallel.h have
// the language model.
#include "01_single_gpu/optimizer.h"
#include "05_tensor_parallel/shards.h"
#include "05_tensor_parallel/support/parallel_models.h"
#include "05_tensor_parallel/tensor_parallel.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("05_tensor_parallel/tensor_parallel", "Trains a model with its layers cut over the ranks.");
  TensorParallelOptions how;
  options.add_flag("--overlap", how.overlap, "sum a layer's dx over the ranks while its dW is computed");
  options.add_flag("--sequence-parallel", how.sequence_parallel, "gpt: norms, dropout and residuals on own rows only");
  options.shuffle = false;
  options.with_models();
  options.without_experts();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.with_async_checkpoints();
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_parallel_network(options, job.group(), how);
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  const GradientParts gradients = clipping.enabled() ? gradients_of(model, job.group()) : GradientParts{};

  Training training(options, job, {.reports = job.rank() == 0}, network.data(), stream);
  add_all(training, model, optimizer);

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      if (clipping.enabled()) clipping.clip(gradients, job.group(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    training.evaluate(add_loss);
  }
  training.evaluate(add_loss);
  record_parameters(model.parameters(), job.rank(), job.group(), stream);
}
