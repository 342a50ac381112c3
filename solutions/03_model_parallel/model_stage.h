// SPDX-License-Identifier: Apache-2.0
// What a rank of model parallelism holds, and what it tells of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "01_single_gpu/clip.h"
#include "01_single_gpu/model.h"
#include "01_single_gpu/optimizer.h"
#include "common/job.h"
#include "common/training.h"
#include "idle_clock.h"

namespace workshop {

// What the probes call a stage, and the TODOs that have brought it its input and the gradient of its output, and that
// have it updated, where one does.
struct StageProbes {
  std::string name = "the stage";
  const char *input = "03.3", *gradient = "03.4", *update = nullptr;
};

// The layers of one rank, with what they need beyond a model on one GPU: room for what arrives and for what goes back.
struct Stage {
  Stage(const Network& network, LayerRange layers, const Options& options, cudaStream_t stream, StageProbes probes = {})
      : model(network, options.batch_size, stream, layers),
        in(model.input_size()),
        out(model.output_size()),
        activations(model.make_activations()),
        optimizer(options, model.count(), stream),
        clipping(options, model.count(), stream),
        received(layers.first > 0 ? options.batch_size * in : 0, Memory::activations),
        input_gradient(received.size(), Memory::activations),
        clock(stream, /*warm_up=*/kProbedSteps),
        stream(stream),
        probes(std::move(probes)) {
    model.initialize(options.model_seed);
  }

  // The output of these layers, [rows, out], for the samples of `batch`, of which they see x[rows, in].
  const Real* forward(const void* x, int rows) {
    probe(probes.input, "input of " + probes.name, static_cast<const Real*>(x), {rows, in}, stream);
    const Real* output = nullptr;
    clock.compute([&] { output = model.forward(batch.with_x(x), activations); });
    return output;
  }

  // Writes the loss to *loss, and its gradient to model.output_gradient().
  void loss(const void* target, int rows, float* loss) {
    clock.compute([&] {
      const Range range("loss", stream);
      model.loss(activations, target, rows, loss);
    });
  }

  // The gradients of the parameters from model.output_gradient() and, unless dx is null, that of the input in
  // dx[rows, in].
  void backward(int rows, Real* dx) {
    probe(probes.gradient, "gradient of " + probes.name + "'s output", model.output_gradient(), {rows, out}, stream);
    clock.compute([&] { model.backward(activations, /*accumulate=*/false, {}, dx); });
  }

  // All stages together clip by the norm of the whole model's gradient, where that is asked for.
  void update(Training& training, const Group& stages) {
    float* norm = training.losses().gradient_norm();
    add_squares(norm);
    clipping.finish(norm, stages);
    step(norm, training.lr_factor());
  }
  void add_squares(float* norm) {
    clock.compute([&] { clipping.add_squares(model.grads(), model.count(), norm); });
  }
  void step(const float* norm, double lr_factor) {
    if (probes.update != nullptr)
      probe(probes.update, "factor of the learning rate of " + probes.name, std::vector{lr_factor});
    clock.compute([&] {
      clipping.clip(model.grads(), model.count(), norm);
      optimizer.step(model.values(), model.grads(), lr_factor);
    });
  }

  Model model;
  int in, out;  // floats per sample
  Activations activations;
  Optimizer optimizer;
  Clipping clipping;
  Batch batch;                        // under way
  DeviceBuffer<Real> received;        // the input from the rank before, [rows, in]; none on the first rank
  DeviceBuffer<Real> input_gradient;  // what goes back to that rank, likewise
  IdleClock clock;
  cudaStream_t stream;
  StageProbes probes;
};

// Ends the program unless every rank, or whatever `one` is, can have a layer.
inline void require_layers(const Options& options, const Network& network, int count, const char* one = "rank") {
  if (network.depth() >= count) return;
  usage_error("%s for %d %ss; expected a layer a %s or more", layers_of(options, network).c_str(), count, one, one);
}

// Prints and records which rank has which layers and how long it idled. That stays out of the ledger.
inline void report(const Stage& stage, const std::vector<int>& bounds, const Job& job) {
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
