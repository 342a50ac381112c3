// SPDX-License-Identifier: Apache-2.0
// Trains a model on one GPU: the program that every later chapter distributes.
#include "clip.h"
#include "common/job.h"
#include "common/training.h"
#include "gradient_check.h"
#include "linear.h"
#include "models.h"
#include "optimizer.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("01_single_gpu/mlp", "Trains a model on one GPU.");
  bool gradient_check = false;
  options.add_flag("--gradient-check", gradient_check, "compare the gradients with central differences, then train");
  options.with_models();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("full");
  options.parse(argc, argv);
  if (gradient_check && options.model != ModelKind::mlp) usage_error("--gradient-check is for --model mlp alone");
  Job job(options);
  if (job.world() != 1)
    usage_error("mlp trains on one GPU; it was started on " + std::to_string(job.world()) + " ranks");

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);

  Training training(options, job, {}, network.data(), stream);
  training.add_all(parts_of(model), model.values(), optimizer.state());
  if (gradient_check) require_gradients(model, activations, training.first_samples(), stream);

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
      clipping.clip_whole(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    training.evaluate(job.group(), add_loss);
  }
  training.evaluate(job.group(), add_loss);
  record_parameters(model, 0, stream);
}
