// Data parallelism that hides its communication: ddp.cu with the gradients averaged in buckets on a second stream while
// the backward pass goes on. Read it beside ddp.cu: what differs is OverlappedAverage, in buckets.h.
#include "01_single_gpu/checkpoint_mlp.h"
#include "01_single_gpu/mlp.h"
#include "buckets.h"
#include "common/data.h"
#include "common/job.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("02_ddp/ddp_overlap", "Trains an MLP with data parallelism, communication behind the backward pass.",
                  Sampling::distributed);
  int accumulation_steps = 1;
  double bucket_mb = 25;
  options.add("--accumulation-steps", accumulation_steps, "batches a rank works through before each update", 1);
  options.add("--bucket-mb", bucket_mb, "size from which on a bucket of gradients is full (MiB)", 0.0);
  options.with_checkpoints("full");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  Mlp model(options.layers, options.activation, options.batch_size, stream);
  Activations activations = model.make_activations();
  // One call for all parameters: they lie one after the other.
  if (job.rank() == 0) model.initialize(options.model_seed);
  NCCL_CHECK(ncclBroadcast(model.values(), model.values(), model.count(), ncclFloat, 0, job.comm(), stream));
  ParameterUpdate update(options, model.count(), stream);
  OverlappedAverage average(model, bucket_mb * (1 << 20), job.comm(), stream);

  const RandomTensorDataset dataset(options.samples, inputs, outputs, options.seed);
  DistributedSampler sampler(options.samples, job.world(), job.rank(), options.shuffle);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank(), job.world(), stream);

  Checkpoints checkpoints(options, job.world(), job.comm(), stream);
  add_training(checkpoints, model, update);
  const Progress start = checkpoints.resume(losses);
  update.set_steps(start.step);

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
        model.forward(batch.x, batch.rows, activations);
        model.loss(activations, batch.y, elements, loss);
        // Only the last backward pass of a step has the sums that the ranks are to average.
        const auto ready = [&](int layer) {
          if (i + 1 == last) average.layer_ready(layer);
        };
        model.backward(activations, /*accumulate=*/i > first, ready);
      }
      average.finish();
      update.step(model.values(), model.grads());
      checkpoints.step_done(epoch, last, loader);
    }
    NCCL_CHECK(
        ncclAllReduce(losses.losses(), losses.global_losses(), losses.count(), ncclFloat, ncclAvg, job.comm(), stream));
    losses.end_epoch(epoch, stream);
  }
  checkpoints.finish();
  for (const Parameter& p : model.parameters()) record_parameter(job.rank(), p.name, p.value, p.shape, stream);
}
