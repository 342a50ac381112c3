// SPDX-License-Identifier: Apache-2.0
// Fully sharded data parallelism: every rank trains on its own batches, as in chapter 02, but holds only a shard of the
// model and gathers a unit when it is needed. fsdp.h does this; the training loop is that of ddp.cu.
#include "01_single_gpu/models.h"
#include "02_ddp/ddp.h"
#include "06_fsdp/fsdp.h"
#include "06_fsdp/support/fsdp_options.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("06_fsdp/fsdp", "Trains a model with fully sharded data parallelism.", Sampling::distributed);
  FsdpOptions fsdp;
  fsdp.add_to(options);
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.with_async_checkpoints();
  options.with_global_batch();
  options.parse(argc, argv);
  fsdp.complete(process_ranks().world);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  const ShardGroups groups = make_shard_groups(job.group(), fsdp.shard_group);
  FullyShardedModel model(network, options, fsdp, groups, stream);
  model.initialize(options.model_seed, job.group());

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  model.add_to(training);

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
