// Fully sharded data parallelism: every rank trains on its own batches, as in chapter 02, but holds just a shard of the
// model, and gathers a unit of it when it is needed. fully_sharded.h has all of that; the loop is ddp.cu's.
#include "common/data.h"
#include "common/job.h"
#include "fully_sharded.h"
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

}  // namespace

int main(int argc, char** argv) {
  Options options("06_fsdp/fsdp", "Trains an MLP with fully sharded data parallelism.", Sampling::distributed);
  FsdpOptions fsdp;
  int accumulation_steps = 1, unit_layers = 1, hybrid = 0;
  options.add("--accumulation-steps", accumulation_steps, "batches a rank works through before each update", 1);
  options.add("--unit-layers", unit_layers, "layers that are gathered together", 1);
  options.add("--hybrid", hybrid, "ranks that share one model; default: all", 1);
  options.add_flag("--reshard-after-forward,!--no-reshard-after-forward", fsdp.reshard_after_forward,
                   "free a unit after its forward pass, not after its backward pass (default: on)");
  options.add_flag("--prefetch,!--no-prefetch", fsdp.prefetch, "gather the next unit behind the work (default: on)");
  options.add_flag("--cpu-offload", fsdp.cpu_offload, "keep the shards and the optimizer on the host");
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  const int shards = shard_group_size(hybrid, process_ranks().world);
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  const ShardGroups groups(job.comm(), job.rank(), shards);
  FullyShardedMlp model(make_units(options, unit_layers, groups.shards(), stream), options, fsdp, groups, stream);
  model.initialize(options.model_seed);

  const RandomTensorDataset dataset(options.samples, inputs, outputs, options.seed);
  DistributedSampler sampler(options.samples, job.world(), job.rank(), options.shuffle);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank(), job.world(), stream);

  Checkpoints checkpoints(options, job.world(), job.comm(), stream);
  const Progress start = model.resume(checkpoints, losses);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    sampler.set_epoch(epoch);
    loader.start_epoch(sampler.indices());
    for (int first = start.first_batch(epoch); first < loader.steps() && !losses.finished();
         first += accumulation_steps) {
      float* loss = losses.next(stream);
      const int last = std::min(first + accumulation_steps, loader.steps());
      const int elements = loader.rows(first, last) * outputs;
      for (int i = first; i < last; ++i) {
        const Batch batch = loader.batch(i);
        model.forward(batch.x, batch.rows);
        model.loss(batch.y, elements, loss);
        model.backward(/*first=*/i == first, /*last=*/i + 1 == last);
      }
      model.update();
      checkpoints.step_done(epoch, last, loader);
    }
    NCCL_CHECK(
        ncclAllReduce(losses.losses(), losses.global_losses(), losses.count(), ncclFloat, ncclAvg, job.comm(), stream));
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  model.record(job.rank());
}
