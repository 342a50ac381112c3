// SPDX-License-Identifier: Apache-2.0
// One stage of model parallelism: its layers, buffers and optimizer.
#pragma once

#include <vector>

#include "01_single_gpu/optimizer.h"
#include "03_model_parallel/support/idle_clock.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"
#include "model/model.h"

namespace workshop {

// The layers of one rank or device. Compared with a model on one GPU, it has two more buffers, for the input that
// arrives and for the gradient that goes back, and a clock that counts the time for which it computes.
struct ModelStage {
  ModelStage(const Network& network, LayerRange layers, const Options& options, cudaStream_t stream)
      : model(network, options.batch_size, stream, layers),
        in(model.input_size()),
        out(model.output_size()),
        activations(model.make_activations()),
        optimizer(options, model.count(), stream),
        clipping(options, model.count(), stream),
        received(layers.first > 0 ? options.batch_size * in : 0, Memory::activations),
        input_gradient(received.size(), Memory::activations),
        clock(stream, /*warm_up=*/kProbedSteps),
        stream(stream) {
    model.initialize(options.model_seed);
  }

  // Returns the output of these layers, [samples, out]. Their input is x[samples, in] in place of batch.x.
  const Real* forward(const Batch& batch, const void* x) {
    const Real* output = nullptr;
    clock.compute([&] { output = model.forward(batch.with_x(x), activations); });
    return output;
  }

  // Writes the mean loss over `samples` samples to *loss, and its gradient to model.output_gradient().
  void loss(const void* target, int samples, float* loss) {
    clock.compute([&] {
      const Range range("loss", stream);
      model.loss(activations, target, samples, loss);
    });
  }

  // Computes the gradients of the parameters from model.output_gradient(). Writes the gradient of the input to
  // dx[samples, in], unless dx is null.
  void backward(Real* dx) {
    clock.compute([&] { model.backward(activations, /*accumulate=*/false, {}, dx); });
  }

  // Updates the parameters. If clipping is enabled, clips by the norm of the whole model's gradient, which all stages
  // compute together.
  void update(Training& training, const Group& stages) {
    float* norm = training.losses().gradient_norm();
    if (clipping.enabled()) {
      add_squares(norm);
      clipping.sum_over(stages, norm);
      clipping.take_root(norm);
    }
    step(norm, training.lr_factor());
  }
  void add_squares(float* norm) {
    clock.compute([&] { clipping.add_squares(model.grads(), model.count(), norm); });
  }
  void step(const float* norm, double lr_factor) {
    clock.compute([&] {
      if (clipping.enabled()) clipping.scale(model.grads(), model.count(), norm);
      optimizer.step(model.values(), model.grads(), lr_factor);
    });
  }

  Model model;
  int in, out;  // floats per sample
  Activations activations;
  Optimizer optimizer;
  Clipping clipping;
  DeviceBuffer<Real> received;        // the input from the previous rank, [samples, in]; empty on the first rank
  DeviceBuffer<Real> input_gradient;  // the gradient that goes back to that rank, [samples, in]
  IdleClock clock;
  cudaStream_t stream;
};

// Ends the program if there are fewer than `count` layers. `one` names what needs a layer each, for the message.
inline void require_layers(const Options& options, const Network& network, int count, const char* one = "rank") {
  if (network.depth() >= count) return;
  usage_error("%s for %d %ss; expected a layer a %s or more", layers_of(options, network).c_str(), count, one, one);
}

// Prints each rank's layers and idle share, and records the idle share. Stays out of the ledger.
inline void print_stages(const ModelStage& stage, const std::vector<int>& bounds, const Job& job) {
  struct Row {
    float idle_share;
    int parameters;
  };
  const Row mine{static_cast<float>(stage.clock.idle_share()), stage.model.count()};
  record_value("idle share", mine.idle_share);
  const std::vector<Row> all = job.group().gather(mine);
  print0("rank  layers     parameters  idle\n");
  for (int rank = 0; rank < job.world(); ++rank) {
    print0("%4d  %3d to %-3d %10d  %3.0f %%\n", rank, bounds[rank], bounds[rank + 1] - 1, all[rank].parameters,
           100 * all[rank].idle_share);
  }
}

}  // namespace workshop
