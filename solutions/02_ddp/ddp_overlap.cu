// SPDX-License-Identifier: Apache-2.0
// Data parallelism that hides its communication: gradients are averaged in buckets, on a second stream, while the
// backward pass runs. Compare it with ddp.cu: a GradientReducer replaces average_gradients(). It is in ddp_overlap.h,
// with the TODOs.
#include <string>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "02_ddp/ddp_overlap.h"
#include "02_ddp/support/bucket_layers.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("02_ddp/ddp_overlap",
                  "Trains a model with data parallelism that hides communication behind the backward pass.",
                  Sampling::distributed);
  double bucket_mb = 25;
  std::string bucket_layers;
  options.add("--bucket-mb", bucket_mb, "size at which a bucket of gradients is full (MiB)", 0.0);
  options.add("--bucket-layers", bucket_layers,
              "instead: the number of layers of each bucket, from the last layer to the first, as in 1,2,4", {});
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
  // All parameters lie in one array, so one call sends them.
  NCCL_CHECK(ncclBroadcast(model.values(), model.values(), model.count(), kReal, 0, job.comm(), stream));
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  GradientReducer reducer(
      model, bucket_layers.empty() ? make_buckets(model, bucket_mb * (1 << 20)) : buckets_of(model, bucket_layers),
      job.group(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  add_all(training, model, optimizer);  // what a checkpoint holds; all ranks have the same, so rank 0 saves it

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  // WRITE 02.H: Train as WRITE 02.D does, but average the gradients with `reducer`, during the backward pass.
  //   The text of 02.D, in ddp.cu, says what belongs to the loop. model.backward(activations, accumulate, ready) calls
  //   ready(layer) for each layer, from the last to the first, as soon as the work for its gradients is enqueued. Tell
  //   reducer.on_layer_done() of the layers whose gradients are final, and call reducer.finish() before they are used.
  //   batch.last says whether a micro-batch is the last of its step.
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first, [&](int layer) {
          if (batch.last) reducer.on_layer_done(layer);  // in earlier batches, the sums are incomplete
        });
      }
      reducer.finish();
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  // END WRITE 02.H
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, job.rank(), stream);
}
