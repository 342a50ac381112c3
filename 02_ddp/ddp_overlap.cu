// SPDX-License-Identifier: Apache-2.0
// Data parallelism that hides its communication: ddp.cu with the gradients averaged in buckets on a second stream while
// the backward pass goes on. Read it beside ddp.cu: what differs is OverlappedAverage, in buckets.h.
#include "01_single_gpu/clip.h"
#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "buckets.h"
#include "common/job.h"
#include "common/training.h"
#include "replicas.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("02_ddp/ddp_overlap", "Trains a model with data parallelism, communication behind the backward pass.",
                  Sampling::distributed);
  double bucket_mb = 25;
  options.add("--bucket-mb", bucket_mb, "size at which a bucket of gradients is full (MiB)", 0.0);
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("full");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  if (job.rank() == 0) model.initialize(options.model_seed);
  // One call for all parameters: they lie one after the other.
  NCCL_CHECK(ncclBroadcast(model.values(), model.values(), model.count(), kReal, 0, job.comm(), stream));
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  OverlappedAverage average(model, bucket_mb * (1 << 20), job.group(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  add_all(training, model, optimizer);  // alike on all ranks: rank 0 saves

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        // Only the last backward pass of a step has the sums that the ranks are to average.
        model.backward(activations, /*accumulate=*/!batch.first, batch.last ? average.ready() : nullptr);
      }
      average.finish();
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, job.rank(), stream);
}
