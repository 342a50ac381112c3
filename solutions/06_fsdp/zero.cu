// SPDX-License-Identifier: Apache-2.0
// Data parallelism with sharded state (ZeRO: Rajbhandari et al., SC 2020). zero.h does the sharding; the training loop
// is that of ddp.cu.
#include "01_single_gpu/models.h"
#include "02_ddp/ddp.h"
#include "06_fsdp/zero.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("06_fsdp/zero", "Trains a model with data parallelism and sharded state.", Sampling::distributed);
  int stage = 1;
  options.add("--stage", stage, "sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too", 0, 3);
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.with_async_checkpoints();
  options.with_global_batch();
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  ZeroModel model(network, options, stage, job.group(), stream);
  model.initialize(options.model_seed);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  model.resume(training);

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch);
    model.loss(batch.y, training.evaluated(), loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch);
        model.loss(batch.y, training.samples(), training.loss());
        model.backward(batch.first, batch.last);
      }
      model.update(training);
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  evaluate(training, job.group(), stream, add_loss);
  model.record(job.rank());
}
