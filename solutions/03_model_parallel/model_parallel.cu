// SPDX-License-Identifier: Apache-2.0
// Model parallelism: every rank holds some of the layers. A batch passes through the ranks one after the other, and its
// gradients come back the same way. While one rank computes, the others wait. This buys memory, not time.
#include <array>

#include "01_single_gpu/models.h"
#include "03_model_parallel/model_parallel.h"
#include "03_model_parallel/support/layer_times.h"
#include "03_model_parallel/support/model_stage.h"
#include "03_model_parallel/support/partition_option.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

namespace {

// Computes the stage's output [rows, stage.out] from x[rows, stage.in].
const Real* compute_forward(ModelStage& stage, const Batch& batch, const void* x) {
  probe("03.C", "given to compute_forward: samples", std::array{batch.samples});
  probe("03.3", "input of the stage", static_cast<const Real*>(x), {batch.samples, stage.in}, stage.stream);
  return stage.forward(batch, x);
}

// Computes the stage's gradients from the gradient of its output in stage.model.output_gradient(). Writes the gradient
// of its input to dx[rows, stage.in], unless dx is null.
void compute_backward(ModelStage& stage, int rows, Real* dx) {
  probe("03.D", "given to compute_backward: rows", std::array{rows});
  probe("03.4", "gradient of the stage's output", stage.model.output_gradient(), {rows, stage.out}, stage.stream);
  stage.backward(dx);
}

// Forward pass: the first rank starts from the batch, and the last rank ends with the predictions.
void forward(ModelStage& stage, const Batch& batch, const Job& job, cudaStream_t stream) {
  probe("03.E", "given to forward: samples and step of the batch", std::array{batch.samples, batch.step});
  probe("03.E", "given to forward: steps of the clock and whether it measures", stage.clock.steps());
  probe("03.C", "given to forward: parameters", stage.model.values(), {stage.model.count()}, stream);
  // WRITE 03.C: Get this rank's input, compute, and hand the output on.
  //   compute_forward(stage, batch, input) returns the output. The input has batch.samples x stage.in elements, the
  //   output batch.samples x stage.out; between ranks, both are of type kReal. The first rank's input is batch.x; the
  //   others get theirs from the rank before and have room for it in stage.received.data(). The last rank keeps its
  //   output. Ranks are numbered from 0 to job.world() - 1, this one is job.rank(), the communicator job.comm(). All
  //   calls are on `stream`; the host must not wait.
  const void* x = batch.x;
  const int rows = batch.samples, rank = job.rank(), last = job.world() - 1;
  // TODO 03.3: Receive this rank's input from the previous rank, compute, and send the output to the next rank.
  //   Receive the input into stage.received.data(), [rows, stage.in]. The first rank has x instead and receives
  //   nothing. compute_forward(stage, batch, input) returns the output, [rows, stage.out]. The last rank keeps it.
  //   ncclRecv(buffer, count, kReal, peer, job.comm(), stream); ncclSend takes the same arguments (docs/calls.md). The
  //   stream orders the calls; the host must not wait.
  if (rank > 0) {
    x = stage.received.data();
    NCCL_CHECK(ncclRecv(stage.received.data(), rows * stage.in, kReal, rank - 1, job.comm(), stream));
  }
  const Real* output = compute_forward(stage, batch, x);
  if (rank < last) NCCL_CHECK(ncclSend(output, rows * stage.out, kReal, rank + 1, job.comm(), stream));
  // END TODO 03.3
  // END WRITE 03.C
  probe("03.C", "samples that the stage has computed", std::array{stage.activations.samples});
}

// Backward pass: the last rank already has the gradient of its output, from the loss.
void backward(ModelStage& stage, int rows, const Job& job, cudaStream_t stream) {
  probe("03.D", "given to backward: samples that the stage has computed", std::array{stage.activations.samples});
  if (job.rank() == job.world() - 1)
    probe("03.D", "given to backward: gradient of the loss", stage.model.output_gradient(), {rows, stage.out}, stream);
  probe("03.D", "given to backward: parameters", stage.model.values(), {stage.model.count()}, stream);
  // WRITE 03.D: Get the gradient of this rank's output, compute, and hand the gradient of its input back.
  //   compute_backward(stage, rows, dx) takes the gradient of the output, rows x stage.out elements, from
  //   stage.model.output_gradient(), which must not be overwritten on the last rank. It writes the gradient of the
  //   input, rows x stage.in elements, to dx, for which there is room in stage.input_gradient.data(). On the first
  //   rank, dx is nullptr: nobody needs the gradient of the samples. All calls are on `stream`; the host must not wait.
  const int rank = job.rank(), last = job.world() - 1;
  // TODO 03.4: Receive the gradient of this rank's output, compute, and send the gradient of its input.
  //   Receive the gradient of the output into stage.model.output_gradient(), [rows, stage.out]. From which rank?
  //   compute_backward(stage, rows, dx) writes the gradient of the input to dx = stage.input_gradient.data(), [rows,
  //   stage.in]. To which rank do you send it? The first rank has no previous rank and passes nullptr for dx. The host
  //   must not wait.
  if (rank < last) {
    Real* gradient = stage.model.output_gradient();
    NCCL_CHECK(ncclRecv(gradient, rows * stage.out, kReal, rank + 1, job.comm(), stream));
  }
  Real* dx = rank > 0 ? stage.input_gradient.data() : nullptr;
  compute_backward(stage, rows, dx);
  if (rank > 0) NCCL_CHECK(ncclSend(dx, rows * stage.in, kReal, rank - 1, job.comm(), stream));
  // END TODO 03.4
  // END WRITE 03.D
  probe("03.D", "gradients of the stage", stage.model.grads(), {stage.model.count()}, stream);
}

// Adds the mean loss of the batch to *loss, and computes its gradient for the backward pass. Requires the predictions.
void compute_loss(ModelStage& stage, const Batch& batch, float* loss) {
  probe("03.E", "samples in the loss", std::array{batch.samples});
  stage.loss(batch.y, batch.samples, loss);
}

// Updates this rank's parameters. All ranks call it, because they compute the norm of the whole gradient together.
void update(ModelStage& stage, Training& training, const Job& job) {
  probe("03.E", "gradients to update with", stage.model.grads(), {stage.model.count()}, stage.stream);
  stage.update(training, job.group());
}

}  // namespace

int main(int argc, char** argv) {
  Options options("03_model_parallel/model_parallel", "Trains a model whose layers are spread over the ranks.");
  std::string partition;
  add_partition(options, partition, "ranks");
  options.with_models();
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.with_async_checkpoints();
  options.parse(argc, argv);
  const Network network = make_network(options);
  require_layers(options, network, process_ranks().world);
  Job job(options);
  const Stream stream;
  const Partition how = partition_of(partition, options);
  const std::vector<int> bounds = partition_layers(
      how == Partition::time ? nanoseconds(layer_times(make_network(options), options.batch_size, job.group(), stream))
                             : network.counts(),
      job.world(), how);
  probe(how == Partition::uniform ? "03.1" : "03.2", "first layer of each rank, and the number of layers", bounds);
  const int rank = job.rank(), last = job.world() - 1;
  ModelStage stage(network, {bounds[rank], bounds[rank + 1]}, options, stream);

  // All ranks go through the same batches. The first rank uses the inputs, the last rank the targets.
  DataSource data = network.data();
  data.needs_x = rank == 0;
  Training training(options, job, {.reports = rank == 0}, data, stream);
  add_all(training, stage.model, stage.optimizer);  // each rank adds its own layers
  const auto add_loss = [&](const Batch& batch, float* loss) {
    forward(stage, batch, job, stream);
    if (rank == last) stage.model.loss(stage.activations, batch.y, training.evaluated(), loss);
  };
  // WRITE 03.E: Train: for each epoch, its steps, the losses for rank 0, and an evaluation.
  //   training.next_epoch() begins an epoch, training.next_step() a step; each returns false if there is none left. All
  //   ranks take each step's training.batch(). forward() and backward() pass a batch through all ranks. Where the
  //   predictions are, call compute_loss(stage, batch, training.loss()). update(stage, training, job) updates this
  //   rank's parameters. stage.clock.next_step() at the beginning of a step and stage.clock.stop() at the end of an
  //   epoch measure the idle time. Once per epoch, call send_losses() of model_parallel.h, then
  //   training.evaluate(add_loss, job.group()).
  while (training.next_epoch()) {
    while (training.next_step()) {
      stage.clock.next_step();
      const Batch batch = training.batch();
      forward(stage, batch, job, stream);
      if (rank == last) compute_loss(stage, batch, training.loss());
      backward(stage, batch.samples, job, stream);
      update(stage, training, job);
    }
    send_losses(training.losses(), job.group(), stream);
    stage.clock.stop();
    training.evaluate(add_loss, job.group());
  }
  // END WRITE 03.E
  training.evaluate(add_loss, job.group());
  record_parameters(stage.model, 0, stream);
  print_stages(stage, bounds, job);
}
