// Distributed data parallelism: every rank holds the whole model and its share of each batch, and the ranks average
// their gradients before each update. Replicas that start alike and see the same gradients stay alike.
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

}  // namespace

int main(int argc, char** argv) {
  Options options("02_ddp/ddp", "Trains an MLP with distributed data parallelism.", Sampling::distributed);
  int accumulation_steps = 1;
  options.add("--accumulation-steps", accumulation_steps, "batches a rank works through before each update", 1);
  options.parse(argc, argv);
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
  DistributedSampler sampler(options.samples, job.world(), job.rank(), options.shuffle);
  DataLoader loader(dataset, options.batch_size, stream);
  LossLog losses(options, job.rank(), job.world(), stream);

  for (int epoch = 0; epoch < options.epochs && !losses.finished(); ++epoch) {
    sampler.set_epoch(epoch);  // else every epoch would have the same order
    loader.start_epoch(sampler.indices());
    for (int first = 0; first < loader.steps() && !losses.finished(); first += accumulation_steps) {
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
    }
    average_losses(losses, job.comm(), stream);
    losses.end_epoch(epoch, stream);
  }
  for (const Parameter& p : model.parameters()) record_parameter(job.rank(), p.name, p.value, p.shape, stream);
}
