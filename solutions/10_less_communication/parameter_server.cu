// SPDX-License-Identifier: Apache-2.0
// Asynchronous data parallelism: rank 0 holds the parameters and updates them with each gradient as it arrives; the
// other ranks, the workers, pull parameters and push gradients, each at its own pace. Compare with 02_ddp/ddp.cu: no
// rank waits for all others, but a gradient may belong to parameters that have been updated in the meantime,
//   w_{i+1} = w_i - η ∇f(w_{i-δ}), where δ is the update's staleness.
// The communication, with the TODOs, is in parameter_server.h.
#include <array>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "10_less_communication/parameter_server.h"
#include "10_less_communication/support/server_options.h"
#include "10_less_communication/support/updates.h"
#include "10_less_communication/support/worker_share.h"
#include "common/data/training_data.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

namespace {

// Runs rank 0. Each step of its training is an update with the gradient of one worker's batch.
void serve(const Options& options, const ServerOptions& settings, const Network& network, const Job& job,
           cudaStream_t stream) {
  const int workers = job.world() - 1;
  Model model(network, options.batch_size, stream, {0, network.depth()}, Storage::bound);
  const DeviceBuffer<Real> values(model.count(), Memory::parameters);
  model.bind(values.data(), /*grads=*/nullptr);
  model.initialize(options.model_seed);
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  Training training(options, job, {}, network.data(), stream);
  Activations activations;
  if (options.validates() || network.text != nullptr) activations = model.make_activations();
  const auto add_loss = [&](const Batch& batch, float* loss) {
    probe("10.S", "samples in a batch of the evaluation", std::array{batch.samples});
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };

  const std::int64_t updates = count_steps(options, training_samples(options, network.data()), /*replicas=*/1);
  ParameterServer server(job.group(), model.values(), model.count(), Clocks(workers, settings.staleness, updates),
                         settings.order_of(updates, workers), stream);
  // WRITE 10.S: Make the updates, each with the gradient of one worker, and keep the workers busy.
  //   training has one step per update, and one loss: training.loss(). server.answer() sends the current parameters to
  //   all workers that wait and may continue; without it, no worker computes. So call it before the first update and
  //   after each one. server.next_gradient(loss) waits for a gradient, writes its loss to a float on the device, and
  //   returns the gradient. Clip and update as ddp.cu does. After each epoch, call training.evaluate(add_loss).
  server.answer();
  while (training.next_epoch()) {
    while (training.next_step()) {
      Real* gradient = server.next_gradient(training.loss());
      if (clipping.enabled()) clipping.clip(gradient, model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), gradient, training.lr_factor());
      server.answer();
    }
    training.evaluate(add_loss);
  }
  // END WRITE 10.S
  training.evaluate(add_loss);
  server.stop();
  report(server.updates(), workers);
  record_parameters(model, 0, stream);
}

// Runs any other rank: computes gradients on its share of the samples until the server has enough updates.
void work(const Options& options, const ServerOptions& settings, const Network& network, const Job& job,
          cudaStream_t stream) {
  Model model(network, options.batch_size, stream, {0, network.depth()}, Storage::bound);
  Worker worker(job.group(), model.count(), stream);
  model.bind(worker.parameters(), worker.gradient());
  Activations activations = model.make_activations();
  WorkerShare share(options, network.data(), /*workers=*/job.world() - 1, /*worker=*/job.rank() - 1, stream);
  const int passes = job.rank() == settings.slow_rank ? settings.slowness : 1;  // for a straggler, more

  // WRITE 10.T: Compute gradients until the server has enough of them.
  //   A step begins with share.next_step(), which returns nothing. worker.pull() gets the parameters, and returns false
  //   if there is no step left to make. share.batch() is the step's batch: its targets are at batch.y, and it has
  //   batch.samples samples.
  //   model.loss(activations, batch.y, batch.samples, worker.loss()) adds to a float on the device, which still holds
  //   the loss of the step before. Compute everything after pull() `passes` times, so that a straggler takes longer,
  //   and push only the last result, with worker.push().
  for (share.next_step(); worker.pull(); share.next_step()) {
    const Batch batch = share.batch();
    for (int pass = 0; pass < passes; ++pass) {
      CUDA_CHECK(cudaMemsetAsync(worker.loss(), 0, sizeof(float), stream));
      model.forward(batch, activations);
      model.loss(activations, batch.y, batch.samples, worker.loss());
      model.backward(activations);
    }
    worker.push();
  }
  // END WRITE 10.T
  share.finish();
}

}  // namespace

int main(int argc, char** argv) {
  Options options("10_less_communication/parameter_server",
                  "Trains a model on workers that do not wait for each other.", Sampling::distributed);
  ServerOptions settings;
  settings.add_to(options);
  options.with_models();
  options.with_precision();
  options.with_validation();
  options.parse(argc, argv);
  settings.complete();
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  job.rank() == 0 ? serve(options, settings, network, job, stream) : work(options, settings, network, job, stream);
}
