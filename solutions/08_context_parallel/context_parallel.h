// SPDX-License-Identifier: Apache-2.0
// The training loop of context parallelism: all ranks work on the same samples, each on its own positions. All
// parameters are replicas, so their gradients are averaged over the ranks, as in chapter 02.
#pragma once

#include <array>
#include <memory>

#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "08_context_parallel/sequence.h"
#include "08_context_parallel/support/context_models.h"
#include "08_context_parallel/support/context_options.h"
#include "common/job/job.h"
#include "common/training/training.h"
#include "model/clip.h"

namespace workshop {

// Evaluates with all ranks of the group: sums what add_loss(batch, loss) adds to *loss on each of them.
inline void evaluate_parts(Training& training, const Training::AddLoss& add_loss, const Group& group,
                           cudaStream_t stream) {
  probe("08.D", "given to evaluate_parts: ranks", std::array{group.size()});
  const auto probed = [&](const Batch& batch, float* loss) {
    add_loss(batch, loss);
    probe("08.D", "this rank's share of the loss of the evaluation so far", loss, {1}, stream);
  };
  training.evaluate(probed, group);
}

// Trains the language model, whose sequences are cut over all ranks of the job. `attention` is that of all blocks.
inline void train(const Options& options, const Job& job, const SequenceCut& cut,
                  const std::shared_ptr<Attention>& attention, cudaStream_t stream) {
  probe_cut(cut);
  const Positions mine = cut.of(job.rank());
  const Network network = make_context_network(options, mine, attention);
  Model model(network, options.batch_size, stream);
  model.initialize(options.model_seed);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  const Clipping clipping(options, model.count(), stream);
  BatchCut part_of(mine, options.batch_size, stream);

  DataSource data = network.data();
  data.in = data.out = cut.whole;  // whole samples
  Training training(options, job, {.reports = job.rank() == 0}, data, stream);
  add_all(training, model, optimizer);

  // WRITE 08.D: Train on this rank's part of each batch, and evaluate.
  //   The loop is that of solutions/02_ddp/ddp.cu, with three differences:
  //   - All ranks get the same batches. part_of(batch) is this rank's part of one: a Batch of the tokens at its
  //     positions.
  //   - model.loss() adds the sum of the losses of this rank's tokens, divided by its third argument times the number
  //     of tokens that this rank has of a sample; all ranks have equally many. In training, each rank's loss is the
  //     mean over its own tokens. average_parts(training.losses(), job.group(), stream) averages those of an epoch over
  //     the ranks, before the evaluation, in the place of average_losses().
  //   - evaluate_parts(training, add_loss, job.group(), stream) takes the place of evaluate(), after each epoch and at
  //     the end. It sums over all ranks what add_loss(batch, loss) adds to *loss. This sum must be the mean over all
  //     tokens of training.evaluated() samples.
  const auto add_loss = [&](const Batch& batch, float* loss) {
    const Batch part = part_of(batch);
    int samples = training.evaluated();
    // TODO 08.13: Set `samples` so that the sum over all ranks is the mean over all tokens.
    //   `samples` is the number of samples that are evaluated, the same on all ranks. model.loss() adds the sum of the
    //   losses of this rank's tokens, divided by `samples` times the number of tokens that this rank has of a sample.
    //   The results of all job.world() ranks are summed.
    samples *= job.world();
    // END TODO 08.13
    probe("08.13", "number to divide by in the evaluation", std::array{samples});
    model.forward(part, activations);
    model.loss(activations, part.y, samples, loss);
  };
  while (training.next_epoch()) {
    while (training.next_step()) {
      for (MicroBatch batch; training.next_batch(batch);) {
        const Batch part = part_of(batch);
        model.forward(part, activations);
        model.loss(activations, part.y, training.samples(), training.loss());
        model.backward(activations, /*accumulate=*/!batch.first);
      }
      // TODO 08.14: Average the gradients over the ranks of job.group(), with chapter 02's average_gradients().
      //   average_gradients(model, group, stream) averages all of them; call it on a single rank, too. The loss is the
      //   mean over all tokens; each rank has computed the gradients of the mean over its own tokens. All ranks have
      //   equally many.
      average_gradients(model, job.group(), stream);
      // END TODO 08.14
      probe("08.14", "gradients, averaged", model.grads(), {model.count()}, stream);
      if (clipping.enabled()) clipping.clip(model.grads(), model.count(), training.losses().gradient_norm());
      optimizer.step(model.values(), model.grads(), training.lr_factor());
    }
    average_parts(training.losses(), job.group(), stream);
    evaluate_parts(training, add_loss, job.group(), stream);
  }
  evaluate_parts(training, add_loss, job.group(), stream);
  // END WRITE 08.D
  record_parameters(model, job.rank(), stream);
}

// Adds the options of all programs of this chapter, except --precision.
inline void add_options(Options& options) {
  options.with_gpt();
  options.without({"--generate", "--tokens", "--temperature"});
  options.without_experts();
  options.with_checkpoints("full");
  options.with_async_checkpoints();
}

}  // namespace workshop
