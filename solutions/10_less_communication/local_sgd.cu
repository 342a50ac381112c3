// SPDX-License-Identifier: Apache-2.0
// Data parallelism that communicates once per round of several steps. Within a round, each replica trains on its own;
// then all continue from the mean of their parameters (local SGD: Stich, ICLR 2019), or from where an outer optimizer
// steps if it treats the whole round as one step (DiLoCo: Douillard et al., 2023). Compare with 02_ddp/ddp.cu: LocalSgd
// replaces average_gradients().
#include <vector>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

// Makes the outer optimizer's step from start[n], where the round began, toward values[n], the mean of the replicas at
// its end. Both become the start of the next round. momentum[n] is kept from round to round; `factor` multiplies it.
__global__ void outer_step(float* values, float* start, float* momentum, float lr, float factor, int n);

struct OuterStep {
  double lr = 1, momentum = 0;
  bool is_the_mean() const { return lr == 1 && momentum == 0; }
};

class LocalSgd {
 public:
  // `steps` are those of one round. The replicas must be equal when this is called. In mixed precision the optimizer's
  // exact weights are averaged: a round may move a weight by less than the distance between two bfloat16s.
  LocalSgd(int steps, OuterStep outer, const Model& model, Optimizer& optimizer, const Group& replicas,
           cudaStream_t stream)
      : steps_(steps),
        outer_(outer),
        model_(model),
        optimizer_(optimizer),
        weights_(optimizer.weights(model.values())),
        replicas_(replicas),
        stream_(stream) {
    if (outer_.is_the_mean()) return;
    start_ = DeviceBuffer<float>(model.count(), Memory::optimizer);
    momentum_ = DeviceBuffer<float>(model.count(), Memory::optimizer);
    CUDA_CHECK(cudaMemcpyAsync(start_.data(), weights_, start_.bytes(), cudaMemcpyDeviceToDevice, stream));
    CUDA_CHECK(cudaMemsetAsync(momentum_.data(), 0, momentum_.bytes(), stream));
  }

  // Ends the round if it is complete. Call after each update.
  void step_done() {
    probe("10.F", "given to step_done: parameters", weights_, {model_.count()}, stream_);
    if (++made_ % steps_ == 0) end_round();
  }
  // Ends the last round, which may be shorter. Call after the last step.
  void finish() {
    probe("10.F", "given to finish: parameters", weights_, {model_.count()}, stream_);
    if (made_ % steps_ > 0) end_round();
  }

  // Adds the outer optimizer's state, which is the same on all ranks, to checkpoints.
  void add_to(Training& training) {
    training.add(&made_);
    if (outer_.is_the_mean()) return;
    const std::vector<int> shape{model_.count()};
    training.add(
        {whole_tensor("outer.start", shape, start_.data()), whole_tensor("outer.momentum", shape, momentum_.data())});
  }

 private:
  void end_round() {
    const Range range("end of a round", stream_);
    float* values = weights_;
    const int count = model_.count();
    const ncclComm_t comm = replicas_.comm();
    // WRITE 10.F: Let all replicas continue from the mean of their parameters, or from where the outer step leads.
    //   values[count] are the parameters: floats, one array. Average them over `comm`, in place, on stream_, in one
    //   call. Unless outer_.is_the_mean(), call make_outer_step(), which steps from the round's start toward the mean
    //   in `values`. At the end, call optimizer_.weights_changed(model_.values()): in mixed precision, it rounds the
    //   new parameters for the model.
    // TODO 10.5: Replace the parameters of all replicas by their mean, in place.
    //   They are one array, values[count]. Use one NCCL call on stream_, that of TODO 02.2.
    NCCL_CHECK(ncclAllReduce(values, values, count, ncclFloat, ncclAvg, comm, stream_));
    // END TODO 10.5
    probe("10.5", "mean of the replicas' parameters", values, {count}, stream_);
    if (!outer_.is_the_mean()) make_outer_step();
    optimizer_.weights_changed(model_.values());
    // END WRITE 10.F
    probe("10.F", "parameters after the round", model_.values(), {count}, stream_);
  }

  void make_outer_step() {
    const int count = model_.count();
    probe("10.G", "given to make_outer_step: mean", weights_, {count}, stream_);
    launch(outer_step, count, stream_, weights_, start_.data(), momentum_.data(), static_cast<float>(outer_.lr),
           static_cast<float>(outer_.momentum), count);
    probe("10.6", "parameters after the outer step", weights_, {count}, stream_);
  }

  int steps_, made_ = 0;  // steps per round; steps so far
  OuterStep outer_;
  const Model& model_;
  Optimizer& optimizer_;
  float* weights_;
  const Group& replicas_;
  cudaStream_t stream_;
  DeviceBuffer<float> start_, momentum_;  // of the outer step; empty if it is the mean
};

__global__ void outer_step(float* values, float* start, float* momentum, float lr, float factor, int n) {
  // WRITE 10.G: Make the outer step of each of the n values: SGD with Nesterov's momentum, as PyTorch computes it.
  //   values[i] is the mean of the replicas, start[i] where the round began. The gradient points from the mean to the
  //   start. Keep the momentum in momentum[i], and write the new parameter to values[i] and, for the next round, to
  //   start[i]. The formulas are in README.md. A kernel's loop over the elements is for (int i : grid_stride(n)).
  for (int i : grid_stride(n)) {
    // TODO 10.6: Make the outer step of value i: SGD with Nesterov's momentum, as PyTorch computes it.
    //   A gradient points uphill, so it points from the mean back to the start: gradient = start - values. Then
    //   momentum = factor·momentum + gradient, and start -= lr·(gradient + factor·momentum). Copy the new start to
    //   `values`.
    const float gradient = start[i] - values[i];
    momentum[i] = factor * momentum[i] + gradient;
    start[i] -= lr * (gradient + factor * momentum[i]);
    values[i] = start[i];
    // END TODO 10.6
  }
  // END WRITE 10.G
}

int main(int argc, char** argv) {
  Options options("10_less_communication/local_sgd",
                  "Trains replicas that average their parameters once per round of steps.", Sampling::distributed);
  int sync_every = 8;
  OuterStep outer;
  options.add("--sync-every", sync_every, "steps of each replica on its own between two averages", 1);
  options.add("--outer-lr", outer.lr, "learning rate of the step from a round's start to the mean", 0.0);
  options.add("--outer-momentum", outer.momentum, "Nesterov's momentum of that step", 0.0, 1);
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
  if (job.rank() == 0) model.initialize(options.model_seed);
  broadcast_parameters(model, job.group(), stream);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  LocalSgd local_sgd(sync_every, outer, model, optimizer, job.group(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  // The replicas differ within a round, so each one is saved.
  float* weights = optimizer.weights(model.values());
  training.add_all(of_replica(parts_of(model, weights), job.rank(), job.world()), weights,
                   optimizer.state(model.values()));
  local_sgd.add_to(training);

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  // WRITE 10.H: Train: each replica on its own within a round, and from the mean after it.
  //   The loops are those of ddp.cu, without average_gradients(). local_sgd.step_done() counts a step and ends the
  //   round if it is complete; call it when the step's update is enqueued. local_sgd.finish() ends a last round that is
  //   not complete. An epoch does not end a round.
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
      local_sgd.step_done();
    }
    average_losses(training.losses(), job.group(), stream);
    evaluate(training, job.group(), stream, add_loss);
  }
  local_sgd.finish();
  // END WRITE 10.H
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, job.rank(), stream);
}
