// SPDX-License-Identifier: Apache-2.0
// Fully sharded data parallelism: every rank trains on its own batches, as in chapter 02, but holds just a shard of the
// model, and gathers a unit of it when it is needed. fully_sharded.h has all of that; the loop is ddp.cu's.
#include "01_single_gpu/models.h"
#include "02_ddp/replicas.h"
#include "common/job.h"
#include "common/training.h"
#include "fully_sharded.h"
#include "shard_groups.h"
#include "units.h"

using namespace workshop;

namespace {

// The ranks of a shard group: `hybrid`, or all if that is 0.
int shard_group_size(int hybrid, int world) {
  if (hybrid > 0 && world % hybrid != 0) {
    usage_error("--hybrid is '" + std::to_string(hybrid) + "'; expected a number that divides the " +
                std::to_string(world) + (world == 1 ? " rank" : " ranks"));
  }
  return hybrid > 0 ? hybrid : world;
}

// What --backward-prefetch says, where "" is the default.
Prefetch backward_prefetch(const std::string& text, bool prefetch) {
  if (text.empty()) return prefetch ? Prefetch::pre : Prefetch::none;
  return text == "pre" ? Prefetch::pre : text == "post" ? Prefetch::post : Prefetch::none;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("06_fsdp/fsdp", "Trains a model with fully sharded data parallelism.", Sampling::distributed);
  FsdpOptions fsdp;
  int unit_layers = 1, unit_parameters = 0, hybrid = 0;
  bool synchronize = false;
  std::string backward;
  options.with_models();
  options.with_accumulation();
  options.with_validation();
  options.add("--unit-layers", unit_layers, "layers that are gathered together", 1);
  options.add("--min-unit-parameters", unit_parameters, "parameters that a unit has at least, but the last", 0);
  options.add("--hybrid", hybrid, "ranks that share one model; default: all", 1);
  options.add_flag("--reshard-after-forward,!--no-reshard-after-forward", fsdp.reshard_after_forward,
                   "free a unit after its forward pass, not after its backward pass (default: on)");
  options.add_flag("--prefetch,!--no-prefetch", fsdp.prefetch, "gather the next unit behind the work (default: on)");
  options.add("--backward-prefetch", backward,
              "gather the next unit of the backward pass before this one's work or after it; default: pre, with "
              "--no-prefetch none",
              {"pre", "post", "none"});
  options.add_flag("--sync-module-states", synchronize, "start from rank 0's parameters, which it broadcasts");
  options.add_flag("--cpu-offload", fsdp.cpu_offload, "keep the shards and the optimizer on the host");
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  fsdp.backward = backward_prefetch(backward, fsdp.prefetch);
  const int shards = shard_group_size(hybrid, process_ranks().world);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  const ShardGroups groups = make_shard_groups(job.group(), shards);
  FullyShardedModel model(
      make_units(network, unit_layers, options.batch_size, groups.shard.size(), stream, unit_parameters), options, fsdp,
      groups, stream);
  if (synchronize) {
    model.initialize_from_rank_0(options.model_seed, job.group());
  } else {
    model.initialize(options.model_seed);
  }

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
      model.update(training.losses().gradient_norm(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  evaluate(training, job.group(), stream, add_loss);
  model.record(job.rank());
}
