// SPDX-License-Identifier: Apache-2.0
// Data parallelism without a sum over all ranks: each replica averages its parameters with its two neighbors in a ring,
// and steps from that mean along its own gradient (D-PSGD: Lian et al., NeurIPS 2017). Compare with 02_ddp/ddp.cu:
// NeighborAverage replaces average_gradients().
#include <cmath>
#include <string>
#include <vector>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"
#include "model/elementwise.h"

using namespace workshop;

// Replaces values[n] by the mean of itself and `neighbors` other arrays, received[neighbors, n].
__global__ void average_with(float* values, const float* received, int neighbors, int n);

// Returns the previous and the next rank in the ring. With two ranks they are the same one; a single rank has none.
static std::vector<int> neighbors_in(const Group& ring) {
  const int rank = ring.rank(), size = ring.size();
  const int previous = (rank + size - 1) % size, next = (rank + 1) % size;
  if (size == 1) return {};
  if (size == 2) return {next};
  return {previous, next};
}

class NeighborAverage {
 public:
  // `weights` are the model's or, in mixed precision, the optimizer's exact ones. If rounded weights were averaged, the
  // mean would pull each one back to the nearest bfloat16, and steps smaller than that would never add up.
  NeighborAverage(const Model& model, float* weights, const Group& ring, cudaStream_t compute)
      : model_(model),
        weights_(weights),
        ring_(ring),
        neighbors_(neighbors_in(ring)),
        received_(neighbors_.size() * model.count(), Memory::buckets),
        compute_(compute) {
    probe("10.A", "neighbors", neighbors_);
  }

  // Starts the exchange. Call when a step begins; the parameters travel during the forward and backward passes. No
  // second buffer is needed: both passes only read the parameters, and the previous step is done with received_.
  void start() {
    float* values = weights_;
    const int count = model_.count(), neighbors = static_cast<int>(neighbors_.size());
    const ncclComm_t comm = ring_.comm();
    probe("10.B", "given to start: parameters", values, {count}, compute_);
    // TODO 10.1: Make the communication stream wait for the parameters, which the compute stream has yet to update.
    //   Record the event updated_ on one stream, and let the other wait for it, as in TODO 02.7.
    todo("10.1");
    // END TODO 10.1
    probe("10.1", "parameters before they are sent", values, {count}, communication_);
    // TODO 10.2: Send the parameters to each neighbor in neighbors_, and receive its parameters.
    //   ncclSend(buffer, count, ncclFloat, peer, comm, stream) and ncclRecv(…), on the communication stream. Receive
    //   those of neighbors_[k] at received_.data() + k·count; compute the offset as a std::size_t. All ranks send
    //   first: what keeps them from waiting for each other?
    todo("10.2");
    // END TODO 10.2
    probe("10.2", "parameters of each neighbor", received_.data(), {neighbors, count}, communication_);
  }

  // Replaces the parameters by the mean. Call before the update, which steps from there.
  void finish() {
    const int count = model_.count(), neighbors = static_cast<int>(neighbors_.size());
    probe("10.C", "given to finish: parameters", weights_, {count}, compute_);
    probe("10.C", "given to finish: gradients", model_.grads(), {count}, compute_);
    // TODO 10.3: Let the compute stream wait for the communication stream, with the event exchanged_.
    //   The mean may only read parameters that have arrived. It also overwrites this rank's: what does the
    //   communication stream still do with those?
    todo("10.3");
    // END TODO 10.3
    probe("10.3", "parameters of each neighbor before the mean", received_.data(), {neighbors, count}, compute_);
    launch(average_with, count, compute_, weights_, received_.data(), neighbors, count);
    probe("10.4", "parameters after the mean", weights_, {count}, compute_);
    ++steps_;
  }

  int* steps() { return &steps_; }  // steps so far

  // Prints how far apart the replicas are. Collective and blocking; call it between two steps.
  void report_distance() const {
    const double far = distance();
    print0("distance between replicas after step %5d: %.3e\n", steps_, far);
    if (ring_.rank() == 0) record_value("distance after step " + std::to_string(steps_), far);
  }

 private:
  // Returns √(1/P Σ_r ‖w_r - w̄‖²) over the P replicas, where w̄ is their mean.
  double distance() const {
    if (ring_.size() == 1) return 0;
    float* difference = received_.data();
    const int count = model_.count();
    NCCL_CHECK(ncclAllReduce(weights_, difference, count, ncclFloat, ncclAvg, ring_.comm(), compute_));
    launch(add_floats, count, compute_, difference, weights_, -1.0f, count);
    std::vector<float> on_host(count);
    CUDA_CHECK(cudaMemcpyAsync(on_host.data(), difference, count * sizeof(float), cudaMemcpyDeviceToHost, compute_));
    CUDA_CHECK(cudaStreamSynchronize(compute_));
    double squares = 0, of_all = 0;
    for (double d : on_host) squares += d * d;
    for (double of_rank : ring_.gather(squares)) of_all += of_rank;
    return std::sqrt(of_all / ring_.size());
  }

  const Model& model_;
  float* weights_;
  const Group& ring_;
  std::vector<int> neighbors_;
  DeviceBuffer<float> received_;  // [neighbors, count]
  Event updated_, exchanged_;
  int steps_ = 0;
  cudaStream_t compute_;
  Stream communication_{"communication", Priority::high};
};

__global__ void average_with(float* values, const float* received, int neighbors, int n) {
  for (int i : grid_stride(n)) {
    // TODO 10.4: Replace values[i] by the mean of itself and the same value of each neighbor k, received[k·n + i].
    //   All of them have the same weight. `neighbors` and n are ints, but k·n + i may not fit into one.
    todo("10.4");
    // END TODO 10.4
  }
}

int main(int argc, char** argv) {
  Options options("10_less_communication/decentralized",
                  "Trains replicas that average only with their neighbors in a ring.", Sampling::distributed);
  bool own_initial_values = false, average_at_end = false;
  options.add_flag("--own-initial-values", own_initial_values, "replica r starts from those of --model-seed plus r");
  options.add_flag("--average-at-end", average_at_end, "replace all replicas by their mean after the last step");
  options.with_models();
  options.with_precision();
  options.with_accumulation();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  if (job.rank() == 0 || own_initial_values) model.initialize(options.model_seed + job.rank());
  if (!own_initial_values) broadcast_parameters(model, job.group(), stream);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  float* weights = optimizer.weights(model.values());
  NeighborAverage average(model, weights, job.group(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  // The replicas differ, so each one is saved.
  training.add_all(of_replica(parts_of(model, weights), job.rank(), job.world()), weights,
                   optimizer.state(model.values()));
  training.add(average.steps());

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      average.start();
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      average.finish();
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    training.end_epoch();
    average.report_distance();
    evaluate(training, job.group(), stream, add_loss);
  }
  if (average_at_end) {
    NCCL_CHECK(ncclAllReduce(weights, weights, model.count(), ncclFloat, ncclAvg, job.comm(), stream));
    optimizer.weights_changed(model.values());
  }
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, job.rank(), stream);
}
