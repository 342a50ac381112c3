// SPDX-License-Identifier: Apache-2.0
// delayed_sgd --replay RECORD --workers-of-run K [OPTION]...: computes in one process what a parameter server and K
// workers have trained. Each update of the record takes the gradient at old parameters: w_{i+1} = w_i - η ∇f(w_{i-δ})
// with staleness δ.
#include <deque>
#include <vector>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "10_less_communication/support/worker_share.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("10_less_communication/parameter_server", "Trains what a run of parameter_server did.",
                  Sampling::distributed);
  std::string replay;
  int workers = 1;
  options.add("--replay", replay, "run record", {});
  options.add("--workers-of-run", workers, "of that run", 1);
  options.with_models();
  options.with_precision();
  options.with_validation();
  options.parse(argc, argv);
  Job job(options);
  const std::vector<double> worker_of = read_values(replay, "worker of update");
  const std::vector<double> staleness_of = read_values(replay, "staleness of update");

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  Training training(options, job, {}, network.data(), stream);
  std::deque<WorkerShare> shares;
  for (int w = 0; w < workers; ++w) shares.emplace_back(options, make_network(options).data(), workers, w, stream);
  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };

  const std::vector<float> initial = model.initial_values(options.model_seed);
  std::vector<std::vector<Real>> versions{{initial.begin(), initial.end()}};
  const auto use = [&](std::size_t version) {
    const std::size_t bytes = model.count() * sizeof(Real);
    CUDA_CHECK(cudaMemcpyAsync(model.values(), versions.at(version).data(), bytes, cudaMemcpyHostToDevice, stream));
    stream.synchronize();
  };
  for (std::size_t update = 0; training.next_epoch();) {
    for (; training.next_step(); ++update) {
      WorkerShare& share = shares.at(static_cast<std::size_t>(worker_of.at(update)) - 1);
      share.next_step();
      const Batch batch = share.batch();
      use(update - static_cast<std::size_t>(staleness_of.at(update)));
      model.forward(batch, activations);
      model.loss(activations, batch.y, batch.samples, training.loss());
      model.backward(activations);
      use(update);
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
      std::vector<Real>& version = versions.emplace_back(model.count());
      CUDA_CHECK(cudaMemcpyAsync(version.data(), model.values(), version.size() * sizeof(Real), cudaMemcpyDeviceToHost,
                                 stream));
      stream.synchronize();
    }
    training.evaluate(add_loss);
  }
  training.evaluate(add_loss);
  record_parameters(model, 0, stream);
}
