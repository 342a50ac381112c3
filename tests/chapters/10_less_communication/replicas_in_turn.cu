// SPDX-License-Identifier: Apache-2.0
// replicas_in_turn: computes in one process, without NCCL, what decentralized and local_sgd compute on several ranks.
// It holds all replicas, trains them one after another, and mixes their exact parameters on the host in double
// precision.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

namespace {

using Values = std::vector<double>;

struct Replica {
  Replica(const Options& options, const Job& job, int number, int replicas, cudaStream_t stream)
      : network(make_network(options)),
        model(network, options.batch_size, stream),
        activations(model.make_activations()),
        optimizer(options, model.count(), stream),
        clipping(options, model.count(), stream),
        training(options, job, {.replicas = replicas, .replica = number}, network.data(), stream) {}

  void compute_gradients() {
    for (MicroBatch batch; training.next_batch(batch);) {
      model.forward(batch, activations);
      model.loss(activations, batch.y, training.samples(), training.loss());
      model.backward(activations, !batch.first);
    }
    if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
  }
  void update() { optimizer.step(model.values(), model.grads(), training.lr_factor()); }

  Values values(cudaStream_t stream) {
    const std::vector<float> read = downloaded(optimizer.weights(model.values()), model.count(), stream);
    return {read.begin(), read.end()};
  }
  void set(const Values& values, cudaStream_t stream) {
    upload(optimizer.weights(model.values()), {values.begin(), values.end()}, stream);
    optimizer.weights_changed(model.values());
  }

  static std::vector<float> downloaded(const float* from, int count, cudaStream_t stream) {
    std::vector<float> values(count);
    CUDA_CHECK(cudaMemcpyAsync(values.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    return values;
  }
  static void upload(float* to, const std::vector<float>& values, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  Network network;
  Model model;
  Activations activations;
  Optimizer optimizer;
  Clipping clipping;
  Training training;
};

using Replicas = std::vector<std::unique_ptr<Replica>>;

std::vector<Values> values_of(const Replicas& replicas, cudaStream_t stream) {
  std::vector<Values> values;
  for (const auto& replica : replicas) values.push_back(replica->values(stream));
  return values;
}

Values mean_of(const std::vector<Values>& all) {
  Values mean(all[0].size());
  for (const Values& values : all) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[i] / static_cast<double>(all.size());
  }
  return mean;
}

// The mixing matrix of the ring: row i has the weights with which replica i mixes all replicas.
std::vector<Values> ring(int size) {
  std::vector<Values> weights(size, Values(size));
  for (int i = 0; i < size; ++i) {
    for (int j : {i, (i + 1) % size, (i + size - 1) % size}) weights[i][j] = 1.0 / std::min(size, 3);
  }
  return weights;
}

void mix(const Replicas& replicas, const std::vector<Values>& weights, cudaStream_t stream) {
  const std::vector<Values> before = values_of(replicas, stream);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    Values mixed(before[i].size());
    for (std::size_t j = 0; j < replicas.size(); ++j) {
      for (std::size_t p = 0; p < mixed.size(); ++p) mixed[p] += weights[i][j] * before[j][p];
    }
    replicas[i]->set(mixed, stream);
  }
}

double distance(const Replicas& replicas, cudaStream_t stream) {
  const std::vector<Values> all = values_of(replicas, stream);
  const Values mean = mean_of(all);
  double squares = 0;
  for (const Values& values : all) {
    for (std::size_t p = 0; p < mean.size(); ++p) squares += (values[p] - mean[p]) * (values[p] - mean[p]);
  }
  return std::sqrt(squares / static_cast<double>(all.size()));
}

// The rounds of local_sgd: torch.optim.SGD(lr=lr, momentum=momentum, nesterov=True) applied to the replicas' mean
// change since the last round.
struct Outer {
  double lr = 1, momentum = 0;
  Values start = {}, buffer = {};

  void step(const Replicas& replicas, cudaStream_t stream) {
    const Values mean = mean_of(values_of(replicas, stream));
    buffer.resize(mean.size());
    for (std::size_t p = 0; p < mean.size(); ++p) {
      const double gradient = start[p] - mean[p];
      buffer[p] = momentum * buffer[p] + gradient;
      start[p] -= lr * (gradient + momentum * buffer[p]);
    }
    for (const auto& replica : replicas) replica->set(start, stream);
  }
};

void average_losses(const Replicas& replicas, cudaStream_t stream) {
  std::vector<Values> all;
  const int count = replicas[0]->training.losses().count();
  for (const auto& replica : replicas) {
    const auto read = Replica::downloaded(replica->training.losses().losses(), count, stream);
    all.emplace_back(read.begin(), read.end());
  }
  const Values mean = mean_of(all);
  for (const auto& replica : replicas) {
    Replica::upload(replica->training.losses().global_losses(), {mean.begin(), mean.end()}, stream);
  }
}

// Advances all replicas; returns false at the end.
bool next_epoch(const Replicas& replicas) {
  bool any = false;
  for (const auto& replica : replicas) any = replica->training.next_epoch();
  return any;
}
bool next_step(const Replicas& replicas) {
  bool any = false;
  for (const auto& replica : replicas) any = replica->training.next_step();
  return any;
}

}  // namespace

int main(int argc, char** argv) {
  Options options("tests/replicas_in_turn", "Several replicas in one process.", Sampling::distributed);
  int count = 3, sync_every = 8;
  std::string technique = "ring";
  bool own_initial_values = false, average_at_end = false;
  Outer outer;
  options.add("--technique", technique, "of decentralized, or of local_sgd", {"ring", "rounds"});
  options.add("--replicas", count, "", 1);
  options.add("--sync-every", sync_every, "", 1);
  options.add("--outer-lr", outer.lr, "", 0.0);
  options.add("--outer-momentum", outer.momentum, "", 0.0, 1);
  options.add_flag("--own-initial-values", own_initial_values, "");
  options.add_flag("--average-at-end", average_at_end, "");
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.parse(argc, argv);
  Job job(options);
  const bool in_a_ring = technique == "ring";

  const Stream stream;
  Replicas replicas;
  for (int i = 0; i < count; ++i) {
    replicas.push_back(std::make_unique<Replica>(options, job, i, count, stream));
    replicas[i]->model.initialize(options.model_seed + (own_initial_values ? i : 0));
  }
  outer.start = replicas[0]->values(stream);

  int steps = 0;
  while (next_epoch(replicas)) {
    while (next_step(replicas)) {
      ++steps;
      for (const auto& replica : replicas) replica->compute_gradients();
      if (in_a_ring) mix(replicas, ring(count), stream);
      for (const auto& replica : replicas) replica->update();
      if (!in_a_ring && steps % sync_every == 0) outer.step(replicas, stream);
    }
    average_losses(replicas, stream);
    if (in_a_ring) record_value("distance after step " + std::to_string(steps), distance(replicas, stream));
  }
  if (!in_a_ring && steps % sync_every != 0) outer.step(replicas, stream);
  if (average_at_end) {
    const Values mean = mean_of(values_of(replicas, stream));
    for (const auto& replica : replicas) replica->set(mean, stream);
  }
  for (int i = 0; i < count; ++i) record_parameters(replicas[i]->model, i, stream);
}
