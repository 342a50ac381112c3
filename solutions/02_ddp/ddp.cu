// SPDX-License-Identifier: Apache-2.0
// Distributed data parallelism: every rank holds the whole model, a replica, and computes on its part of each batch.
//
// This is the training loop of 01_single_gpu/mlp.cu with three more calls, broadcast_parameters(), average_gradients()
// and average_losses(), and an evaluate() over all ranks. They are in ddp.h, with the TODOs, because later chapters
// call them too.
#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("02_ddp/ddp", "Trains a model with distributed data parallelism.", Sampling::distributed);
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("full");
  options.with_async_checkpoints();
  options.with_global_batch();
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  if (job.rank() == 0) model.initialize(options.model_seed);
  broadcast_parameters(model, job.group(), stream);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  add_all(training, model, optimizer);  // what a checkpoint holds; all ranks have the same, so rank 0 saves it

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  // WRITE 02.D: Train: for each epoch, its steps, the average of its losses, and an evaluation.
  //   training.next_epoch() begins an epoch, training.next_step() a step, training.next_batch(batch) a MicroBatch of
  //   the step; each returns false if there is none left. For a micro-batch, call model.forward(batch, activations),
  //   then model.loss(activations, batch.y, training.samples(), training.loss()), then model.backward(activations,
  //   accumulate). model.loss() adds the micro-batch's share of the step's mean loss to a float on the device.
  //   model.backward() adds to the gradients if `accumulate` is true, and overwrites them if it is false; batch.first
  //   says whether the micro-batch is the first of its step. Once per step, average the gradients over job.group(); if
  //   clipping.enabled(), call clipping.clip(gradients, count, training.losses().gradient_norm()); then
  //   optimizer.step(parameters, gradients, training.lr_factor()). The model's gradients are at model.grads(), its
  //   parameters at model.values(): model.count() of each. The functions for several ranks are in 02_ddp/ddp.h.
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      average_gradients(model, job.group(), stream);
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  // END WRITE 02.D
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, job.rank(), stream);
}
