// Data parallelism that shards what every rank of ddp.cu holds for itself (ZeRO: Rajbhandari et al., SC 2020): the
// optimizer's state, then the gradients, then the parameters. Read it beside ddp.cu: the loop is the same, the model,
// in zero_model.h, keeps less.
#include "common/data.h"
#include "common/job.h"
#include "units.h"
#include "zero_model.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("06_fsdp/zero", "Trains an MLP with data parallelism and sharded state.", Sampling::distributed);
  int stage = 1, accumulation_steps = 1;
  options.add("--stage", stage, "what is sharded: nothing, 1 optimizer state, 2 gradients too, 3 parameters too", 0, 3);
  options.add("--accumulation-steps", accumulation_steps, "batches a rank works through before each update", 1);
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  ZeroModel model(options, stage, job.rank(), job.world(), job.comm(), stream);
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
