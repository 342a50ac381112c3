// SPDX-License-Identifier: Apache-2.0
// Trains a language model with a mixture of experts in each block, on one GPU. The training is that of
// 01_single_gpu/gpt.cu. Every strategy of the other chapters can train this model, too (--model gpt --experts 8).
#include <memory>
#include <string>
#include <vector>

#include "01_single_gpu/gpt.h"
#include "01_single_gpu/optimizer.h"
#include "09_expert_parallel/moe.h"
#include "09_expert_parallel/support/mixture_options.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("09_expert_parallel/moe", "Trains a language model with mixtures of experts on one GPU.");
  options.for_one_rank();
  add_mixture_options(options, "full");
  options.with_precision();
  options.parse(argc, argv);
  require_experts(options);
  Job job(options);

  const Stream stream;
  std::vector<std::shared_ptr<Mixture>> mixtures;  // one per block
  const Network network = make_gpt(options, [&](const GptOptions& o, int positions) {
    return mixtures.emplace_back(std::make_shared<Mixture>(o, positions));
  });
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);

  Training training(options, job, {}, network.data(), stream);
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
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    training.end_epoch();
    for (int i = 0; i < options.gpt.blocks; ++i) print_loads(i, mixtures[i]->take_loads(stream));
    training.evaluate(add_loss);
  }
  training.evaluate(add_loss);
  record_parameters(model, 0, stream);
}
