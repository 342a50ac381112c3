// SPDX-License-Identifier: Apache-2.0
// Trains a language model on one GPU and lets it generate text. The training is that of mlp.cu, which can train this
// model too (--model gpt); only the generation at the end is new.
#include <string>

#include "01_single_gpu/generate.h"
#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("01_single_gpu/gpt", "Trains a language model on one GPU.");
  options.for_one_rank();
  options.with_gpt();
  options.with_precision();
  options.with_checkpoints("full");
  options.with_async_checkpoints();
  options.parse(argc, argv);
  Job job(options);

  const Stream stream;
  const Network network = make_network(options);
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
        model.forward(batch, activations);
        model.loss(activations, batch.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    training.evaluate(add_loss);
  }
  training.evaluate(add_loss);
  record_parameters(model, 0, stream);

  const GptOptions& o = options.gpt;
  if (o.generate.empty()) return 0;
  Generator generator(options.seed);
  Writer writer(model, activations, network, o.context, stream);
  print0("%s\n", writer.write(o.generate, o.tokens, o.temperature, generator).c_str());
}
