// Distributed data parallelism: every rank holds the whole model and its share of each batch, and the ranks average
// their gradients before each update. Replicas that start alike and see the same gradients stay alike.
#include <limits>

#include "01_single_gpu/checkpoint_mlp.h"
#include "01_single_gpu/mlp.h"
#include "common/data.h"
#include "common/job.h"

using namespace workshop;

namespace {

// Gives every rank the parameters of rank 0.
void broadcast_parameters(const Mlp& model, ncclComm_t comm, cudaStream_t stream) {
  for (const Parameter& p : model.parameters()) {
    // TODO 02.1: Send this parameter's value from rank 0 to all ranks, in place.
    //   One NCCL call. Its count is in elements, not in bytes.
    NCCL_CHECK(ncclBroadcast(p.value, p.value, p.count, ncclFloat, 0, comm, stream));
    // END TODO 02.1
    probe("02.1", p.name, p.value, {p.count}, stream);
  }
}

void average_gradients(const Mlp& model, ncclComm_t comm, cudaStream_t stream) {
  const Range range("average gradients", stream);
  for (const Parameter& p : model.parameters()) {
    // TODO 02.2: Average this parameter's gradient over all ranks, in place.
    //   One NCCL call. Which reduction divides by the number of ranks for you?
    NCCL_CHECK(ncclAllReduce(p.grad, p.grad, p.count, ncclFloat, ncclAvg, comm, stream));
    // END TODO 02.2
    probe("02.2", p.name + ".grad, averaged", p.grad, {p.count}, stream);
  }
}

// Each rank knows the loss of its own batches; what describes the training is their mean. Once an epoch is enough.
void average_losses(const LossLog& losses, ncclComm_t comm, cudaStream_t stream) {
  // TODO 02.3: Average losses.losses() over all ranks into losses.global_losses(): losses.count() floats.
  //   All ranks may have the result: the call is the one of TODO 02.2, but not in place.
  NCCL_CHECK(ncclAllReduce(losses.losses(), losses.global_losses(), losses.count(), ncclFloat, ncclAvg, comm, stream));
  // END TODO 02.3
  probe("02.3", "losses of the epoch, averaged", losses.global_losses(), {losses.count()}, stream);
}

// The mean square error over the `held_out` samples after the first `trained_on`, each of them counted once, whatever
// the number of ranks. Ranks may have different numbers of batches here: nothing is sent until all are done.
double validate(Mlp& model, Activations& activations, DataLoader& loader, int trained_on, int held_out, int outputs,
                const Job& job, cudaStream_t stream) {
  const Range range("validate", stream);
  std::vector<int> mine;
  // TODO 02.8: Which of the samples trained_on … trained_on + held_out - 1 are this rank's?
  //   As DistributedSampler does: every world-th from the rank-th on. But without padding: a sample that two ranks see
  //   would count twice, and the result would depend on the number of ranks.
  for (int i = job.rank(); i < held_out; i += job.world()) mine.push_back(trained_on + i);
  // END TODO 02.8
  probe("02.8", "this rank's validation samples", mine);

  DeviceBuffer<float> loss(1, Memory::data);
  CUDA_CHECK(cudaMemsetAsync(loss.data(), 0, loss.bytes(), stream));
  loader.start_epoch(mine);
  for (int i = 0; i < loader.steps(); ++i) {
    const Batch batch = loader.batch(i);
    model.forward(batch.x, batch.rows, activations);
    model.loss(activations, batch.y, held_out * outputs, loss.data());  // this batch's share of the mean over all
  }
  // TODO 02.9: Put the ranks' shares of the mean together, in place, on every rank: one float.
  //   Each share is divided by the number of all samples already: is it the sum or the average of them?
  NCCL_CHECK(ncclAllReduce(loss.data(), loss.data(), 1, ncclFloat, ncclSum, job.comm(), stream));
  // END TODO 02.9
  probe("02.9", "validation loss", loss.data(), {1}, stream);
  return loss.download(stream)[0];
}

}  // namespace

int main(int argc, char** argv) {
  Options options("02_ddp/ddp", "Trains an MLP with distributed data parallelism.", Sampling::distributed);
  int accumulation_steps = 1;
  options.add("--accumulation-steps", accumulation_steps, "batches a rank works through before each update", 1);
  int held_out = 0;
  options.add("--validation-samples", held_out, "last samples of the data set, not trained on", 0);
  options.with_checkpoints("full");
  options.parse(argc, argv);
  if (held_out >= options.samples) {
    usage_error("--validation-samples is '" + std::to_string(held_out) + "'; expected fewer than the " +
                std::to_string(options.samples) + " of --samples");
  }
  Job job(options);

  const Stream stream;
  const int inputs = options.layers.front(), outputs = options.layers.back();
  Mlp model(options.layers, options.activation, options.batch_size, stream);
  Activations activations = model.make_activations();
  // Only rank 0 draws the initial parameters. The others wait for its broadcast.
  if (job.rank() == 0) model.initialize(options.model_seed);
  broadcast_parameters(model, job.comm(), stream);
  ParameterUpdate update(options, model.count(), stream);

  const RandomTensorDataset dataset(options.samples, inputs, outputs, options.seed);
  const int trained_on = options.samples - held_out;
  DistributedSampler sampler(trained_on, job.world(), job.rank(), options.shuffle);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank(), job.world(), stream);

  // All replicas are alike: rank 0 saves for all, and all load.
  Checkpoints checkpoints(options, job.world(), job.comm(), stream);
  add_training(checkpoints, model, update);
  double best = std::numeric_limits<double>::max();
  checkpoints.add("best validation loss", best);
  const Progress start = checkpoints.resume(losses);
  update.set_steps(start.step);

  for (int epoch = start.epoch; epoch < options.epochs && !losses.finished(); ++epoch) {
    sampler.set_epoch(epoch);  // else every epoch would have the same order
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
        model.backward(activations, /*accumulate=*/i > first);
      }
      // Once a step, however many batches it has: the sum of the averages is the average of the sums.
      average_gradients(model, job.comm(), stream);
      update.step(model.values(), model.grads());
      checkpoints.step_done(epoch, last, loader);
    }
    average_losses(losses, job.comm(), stream);
    losses.end_epoch(epoch, stream);
    if (held_out == 0) continue;
    const double loss = validate(model, activations, loader, trained_on, held_out, outputs, job, stream);
    const bool better = loss < best;
    if (better) best = loss;
    print0("epoch %3d  validation loss %.6f%s\n", epoch, loss, better ? ", the best so far" : "");
    if (job.rank() == 0) record_value("validation loss of epoch " + std::to_string(epoch), loss);
    if (better) checkpoints.save("best-");
  }
  checkpoints.finish();
  for (const Parameter& p : model.parameters()) record_parameter(job.rank(), p.name, p.value, p.shape, stream);
}
