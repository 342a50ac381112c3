// SPDX-License-Identifier: Apache-2.0
// Asynchronous data parallelism: rank 0 holds the parameters and updates them with each gradient as it arrives; the
// other ranks, the workers, pull parameters and push gradients, each at its own pace. Compare with 02_ddp/ddp.cu: no
// rank waits for all others, but a gradient may belong to parameters that have been updated in the meantime,
//   w_{i+1} = w_i - η ∇f(w_{i-δ}), where δ is the update's staleness.
// The communication, with the TODOs, is in parameter_server.h.
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
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };

  const std::int64_t updates = count_steps(options, training_samples(options, network.data()), /*replicas=*/1);
  ParameterServer server(job.group(), model.values(), model.count(), Clocks(workers, settings.staleness, updates),
                         settings.order_of(updates, workers), stream);
  server.answer();
  while (training.next_epoch()) {
    while (training.next_step()) {
      Real* gradient = server.next_gradient();
      const float* loss = word_of(gradient, model.count());
      CUDA_CHECK(cudaMemcpyAsync(training.loss(), loss, sizeof(float), cudaMemcpyDeviceToDevice, stream));
      if (clipping.enabled()) clipping.clip(gradient, model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), gradient, training.lr_factor());
      server.answer();
    }
    training.evaluate(add_loss);
  }
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
