// SPDX-License-Identifier: Apache-2.0
// Trains a model on one GPU: the one that --model names, by default a multilayer perceptron. Every later chapter
// distributes this program.
#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "01_single_gpu/support/gradient_check.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("01_single_gpu/mlp", "Trains a model on one GPU.");
  const GradientCheck gradient_check(options);
  options.for_one_rank();
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("full");
  options.with_async_checkpoints();
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);

  Training training(options, job, {}, network.data(), stream);
  add_all(training, model, optimizer);
  gradient_check.require(model, activations, training, stream);

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  // WRITE 01.G: Train: for each epoch, its steps, then an evaluation.
  //   training.next_epoch() begins an epoch, training.next_step() a step, training.next_batch(batch) a MicroBatch of
  //   the step; each returns false if there is none left. For each micro-batch, call model.forward(batch, activations),
  //   model.loss(activations, batch.y, training.samples(), training.loss()) and model.backward(activations,
  //   accumulate). loss() adds the micro-batch's share of the step's mean loss to a float on the device, and prepares
  //   the backward pass. backward() adds to the gradients or overwrites them; batch.first says whether this is the
  //   first micro-batch of its step. Once per step, if clipping.enabled(), call clipping.clip(gradients, count,
  //   training.losses().gradient_norm()); then optimizer.step(parameters, gradients, training.lr_factor()). The model's
  //   gradients are at model.grads(), its parameters at model.values(): model.count() of each.
  //   training.evaluate(add_loss) ends an epoch.
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    training.evaluate(add_loss);
  }
  // END WRITE 01.G
  training.evaluate(add_loss);
  record_parameters(model, 0, stream);
}
