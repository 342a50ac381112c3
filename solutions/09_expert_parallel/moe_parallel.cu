// SPDX-License-Identifier: Apache-2.0
// Trains a language model with mixtures of experts, whose experts are spread over the ranks. All other parameters are
// replicated, and the training loop is that of 02_ddp/ddp.cu.
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/gpt.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "09_expert_parallel/moe_parallel.h"
#include "09_expert_parallel/support/mixture_options.h"
#include "common/job/job.h"
#include "common/training/training.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("09_expert_parallel/moe_parallel", "Trains a language model with its experts spread over the ranks.",
                  Sampling::distributed);
  ExpertOptions how;
  how.add_to(options);
  add_mixture_options(options, "sharded");
  options.with_precision();
  options.with_global_batch();
  options.parse(argc, argv);
  require_experts(options);
  how.complete(options, process_ranks().world);
  Job job(options);

  const Stream stream;
  const ExpertGroups groups = make_expert_groups(job.group(), how.ranks);
  std::vector<std::shared_ptr<Mixture>> mixtures;  // one per block
  const Network network = make_gpt(options, [&](const GptOptions& o, int positions) {
    const auto experts = std::make_shared<ParallelExperts>(o, positions, how, groups.experts);
    return mixtures.emplace_back(std::make_shared<Mixture>(o, positions, experts));
  });
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const GradientRanges ranges = ranges_of(model);
  const GradientParts parts = parts_of(ranges, groups.experts);
  const Clipping clipping(options, parts.largest(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  add_all(training, model, optimizer);

  const auto add_loss = [&](const Batch& batch, float* loss) {
    model.forward(batch, activations);
    model.loss(activations, batch.y, training.evaluated(), loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        batch.auxiliary = training.losses().auxiliary();
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      average_gradients(ranges, job.group(), groups, stream);
      if (clipping.enabled()) {
        float* norm = training.losses().gradient_norm();
        clipping.clip(parts, groups.experts, norm);
        probe("09.18", "norm of the gradient", norm, {1}, stream);
      }
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_losses(training.losses(), job.group(), stream);
    training.end_epoch();
    for (int i = 0; i < options.gpt.blocks; ++i) print_loads(i, mixtures[i]->take_loads(stream));
    evaluate(training, job.group(), stream, add_loss);
  }
  evaluate(training, job.group(), stream, add_loss);
  record_parameters(model, groups, job.rank(), stream);
}
