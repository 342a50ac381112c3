// SPDX-License-Identifier: Apache-2.0
// Asynchronous data parallelism: rank 0 holds the parameters and updates them with each gradient as it comes; the other
// ranks, the workers, pull parameters and push gradients, each at its own pace. Read it beside ddp.cu: no rank waits
// for all others, and a gradient is that of parameters which others have updated meanwhile.
//   w_{t+1} = w_t - γ ∇f(w_{t-τ}), where τ is the update's staleness.
#include "01_single_gpu/clip.h"
#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "common/job.h"
#include "common/training.h"
#include "push_pull.h"
#include "server_options.h"

using namespace workshop;

namespace {

// What the server has to say of each worker.
void report(const std::vector<Update>& updates, int workers) {
  std::vector<std::int64_t> count(workers + 1), sum(workers + 1), most(workers + 1);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const auto& [worker, staleness] = updates[i];
    ++count[worker];
    sum[worker] += staleness;
    most[worker] = std::max(most[worker], staleness);
    record_value("worker of update " + std::to_string(i), worker);
    record_value("staleness of update " + std::to_string(i), static_cast<double>(staleness));
  }
  for (int w = 1; w <= workers; ++w) {
    const double mean = count[w] > 0 ? static_cast<double>(sum[w]) / static_cast<double>(count[w]) : 0;
    print0("worker %d: %lld updates, staleness %.2f on average, %lld at most\n", w, static_cast<long long>(count[w]),
           mean, static_cast<long long>(most[w]));
  }
}

// Rank 0. A step of its training is an update, with the gradient of one worker's batch.
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

  ParameterServer server(job.group(), model.values(), model.count(), {workers, settings.staleness, training.steps()},
                         settings.order_of(training.steps(), workers), stream);
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

// Any other rank, on its share of the samples, until the server has enough.
void work(const Options& options, const ServerOptions& settings, const Network& network, const Job& job,
          cudaStream_t stream) {
  Model model(network, options.batch_size, stream, {0, network.depth()}, Storage::bound);
  Worker worker(job.group(), model.count(), stream);
  model.bind(worker.parameters(), worker.gradient());
  Activations activations = model.make_activations();
  const ReplicaPlace place{.replicas = job.world() - 1, .replica = job.rank() - 1, .reports = false, .endless = true};
  Training training(options, job, place, network.data(), stream);
  const int passes = job.rank() == settings.slow_rank ? settings.slowness : 1;  // a straggler computes it all again

  while (training.next_epoch()) {
    while (training.next_step()) {
      if (!worker.pull()) {
        training.stop();
        break;
      }
      const Batch batch = training.batch();
      for (int pass = 0; pass < passes; ++pass) {
        CUDA_CHECK(cudaMemsetAsync(worker.loss(), 0, sizeof(float), stream));
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), worker.loss());
        model.backward(activations);
      }
      worker.push();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options("02_ddp/parameter_server", "Trains a model on workers that do not wait for each other.",
                  Sampling::distributed);
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
