// SPDX-License-Identifier: Apache-2.0
// Pipeline parallelism: model parallelism in which the ranks work on different micro-batches at the same time. The
// schedule is data: schedule.h makes it, check_schedule.h checks it, and the executor in pipeline.h runs it on the
// layers and buffers of stage.h.
#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "03_model_parallel/model_parallel.h"
#include "03_model_parallel/support/idle_clock.h"
#include "03_model_parallel/support/layer_times.h"
#include "03_model_parallel/support/partition_option.h"
#include "04_pipeline/pipeline.h"
#include "04_pipeline/schedule.h"
#include "04_pipeline/stage.h"
#include "04_pipeline/support/checkpoint_interval.h"
#include "04_pipeline/support/evaluate.h"
#include "04_pipeline/support/pipeline_settings.h"
#include "04_pipeline/support/report.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

namespace {

// Runs a few steps of a model that waits instead of computing. The clock ignores the first one, in which NCCL connects
// the ranks.
void simulate(const Options& options, PipelineStage& stage, PipelineExecutor& executor, IdleClock& clock) {
  const int steps = options.max_steps > 0 ? options.max_steps : 6;
  const DeviceBuffer<float> x(options.batch_size * stage.chunks().front().model.input_size(), Memory::data);
  for (int step = 0; step < steps; ++step) {
    clock.next_step();
    stage.begin_step({.x = x.data(), .samples = options.batch_size}, nullptr);
    executor.step([] {}, [](int, int) {});
  }
  clock.stop();
}

void train(const Options& options, const Network& network, const Schedule& schedule, PipelineStage& stage,
           PipelineExecutor& executor, IdleClock& clock, const Job& job, cudaStream_t stream) {
  // All ranks go through the same batches. The stage of the first part uses the inputs, that of the last one the
  // targets.
  DataSource data = network.data();
  data.needs_x = job.rank() == 0;
  Training training(options, job, {.reports = job.rank() == 0}, data, stream);
  std::deque<Optimizer> optimizers;
  GradientParts gradients;
  for (ModelChunk& chunk : stage.chunks()) {
    chunk.model.initialize(options.model_seed);
    Optimizer& optimizer = optimizers.emplace_back(options, chunk.model.count(), stream);
    add_all(training, chunk.model, optimizer);
    gradients.held.emplace_back(chunk.model.grads(), chunk.model.count());
  }
  gradients.counted = gradients.held;
  const Clipping clipping(options, gradients.largest(), stream);
  const auto update = [&] {
    for (std::size_t c = 0; probing() && c < optimizers.size(); ++c) {
      const Model& model = stage.chunks()[c].model;
      probe("04.I", "given to update: gradients of chunk " + std::to_string(c), model.grads(), {model.count()}, stream);
    }
    probe("04.I", "given to update: 1 if it is inside of clock_.compute()", std::array{int{clock.is_computing()}});
    float* norm = training.losses().gradient_norm();
    if (clipping.enabled()) {
      clock.compute([&] { clipping.add_squares(gradients, norm); });
      clipping.sum_over(job.group(), norm);
      clipping.take_root(norm);
    }
    clock.compute([&] {
      if (clipping.enabled()) clipping.scale(gradients, norm);
      for (std::size_t c = 0; c < optimizers.size(); ++c) {
        const Model& model = stage.chunks()[c].model;
        optimizers[c].step(model.values(), model.grads(), training.lr_factor());
      }
    });
  };
  // No other rank has these layers, so there is nothing to average, unlike in chapter 07. The call serves only the
  // checker.
  const auto ready = [&](int chunk, int layer) {
    if (!probing()) return;
    const Model& model = stage.chunks()[chunk].model;
    const auto [offset, count] = model.layers()[layer];
    probe(schedule.splits_backward ? "04.10" : "04.H",
          "given to ready: gradients of layer " + std::to_string(layer) + " of chunk " + std::to_string(chunk),
          model.grads() + offset, {count}, stream);
  };
  const auto add_loss = [&](const Batch& batch, float* loss) {
    evaluate_batch(stage, schedule, job.group(), batch, training.evaluated(), loss, stream);
  };

  while (training.next_epoch()) {
    while (training.next_step()) {
      clock.next_step();
      stage.begin_step(training.batch(), training.loss());
      executor.step(update, ready);
    }
    send_losses(training.losses(), schedule, job.group(), stream);
    clock.stop();
    training.evaluate(add_loss, job.group());
  }
  training.evaluate(add_loss, job.group());
  for (const ModelChunk& chunk : stage.chunks()) record_parameters(chunk.model, 0, stream);
}

// Cuts the network into parts, and returns their bounds: part i gets the layers [bounds[i], bounds[i + 1]).
std::vector<int> bounds_of(const PipelineSettings& settings, const Options& options, const Network& network,
                           const Schedule& schedule, const Group& ranks, cudaStream_t stream) {
  const Partition how = partition_of(settings.partition, options);
  const std::vector<std::int64_t> counts = network.counts();
  if (how != Partition::time) return partition_layers(counts, schedule.parts(), how);
  const int samples = options.batch_size / schedule.micro_batches;
  std::vector<LayerTime> times = layer_times(make_pipeline_network(settings, options), samples, ranks, stream);
  if (settings.checkpoint_interval > 0 || options.gpt.recompute == "stages") {
    for (LayerTime& time : times) time.backward += time.forward;  // the backward repeats the forward
  }
  print_layer_times(schedule, counts, times);
  return partition_layers(nanoseconds(times), schedule.parts(), how);
}

}  // namespace

int main(int argc, char** argv) {
  Options options("04_pipeline/pipeline", "Trains a model whose stages work on several micro-batches at once.");
  PipelineSettings settings;
  add_options(options, settings);
  options.with_models({"none", "blocks", "stages"});
  options.with_precision();
  options.with_validation();
  options.with_checkpoints("sharded");
  options.with_async_checkpoints();
  options.parse(argc, argv);
  complete(settings, options);
  if (settings.print) {
    print_schedule(checked_schedule(settings), slots_of(settings));
    return 0;
  }
  Network network = make_pipeline_network(settings, options);

  Job job(options);
  const Schedule schedule = checked_schedule(settings);
  const Stream stream;
  std::vector<int> bounds = bounds_of(settings, options, network, schedule, job.group(), stream);
  if (settings.checkpoint_interval > 0) network = grouped(network, bounds, settings.checkpoint_interval);
  PipelineStage stage(network, options.batch_size, schedule, job.rank(), bounds, options.gpt.recompute == "stages",
                      stream);
  const bool simulated = settings.milliseconds > 0;
  IdleClock clock(stream, simulated ? 1 : kProbedSteps);
  PipelineExecutor executor(schedule, stage, job.group(), stream, clock);
  if (simulated) {
    simulate(options, stage, executor, clock);
  } else {
    train(options, network, schedule, stage, executor, clock, job, stream);
  }
  std::optional<double> expected_bubble;
  if (simulated) {
    expected_bubble = settings.pipeline.from_file
                          ? simulated_bubble(schedule, settings.milliseconds, settings.weight_milliseconds)
                          : bubble(schedule, settings.weight_milliseconds / settings.milliseconds);
  }
  print_idle_shares(stage, clock, expected_bubble, job, stream);
}
