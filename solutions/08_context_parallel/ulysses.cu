// SPDX-License-Identifier: Apache-2.0
// Trains a language model whose sequences are cut over the ranks. All-to-alls exchange positions for heads.
#include "05_tensor_parallel/support/parallel_models.h"
#include "08_context_parallel/context_parallel.h"
#include "08_context_parallel/ulysses.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("08_context_parallel/ulysses", "Trains a language model with exchanged heads (DeepSpeed-Ulysses).");
  add_options(options);
  options.with_precision();
  options.parse(argc, argv);
  const int ranks = process_ranks().world;
  require_heads(options, ranks);
  const SequenceCut cut = cut_of(options, ranks, "none");  // each rank has all positions of its heads: balanced
  Job job(options);

  const Stream stream;
  const auto attention = std::make_shared<UlyssesAttention>(
      heads_of(options, cut.whole / ranks), make_attention(options.gpt, options.gpt.heads / ranks), job.group());
  train(options, job, cut, attention, stream);
}
