// SPDX-License-Identifier: Apache-2.0
// Trains a language model whose sequences are cut over the ranks. Keys and values travel around a ring.
#include "08_context_parallel/context_parallel.h"
#include "08_context_parallel/ring_attention.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("08_context_parallel/ring_attention", "Trains a language model with ring attention.");
  std::string balance = "zigzag";
  add_options(options);
  options.with_precision();
  add_balance(options, balance);
  options.parse(argc, argv);
  const SequenceCut cut = cut_of(options, process_ranks().world, balance);
  Job job(options);

  const Stream stream;
  const Heads heads = heads_of(options, cut.whole / cut.ranks);
  const auto attention = std::make_shared<RingAttention>(heads, cut, options.gpt.attention_block, job.group());
  train(options, job, cut, attention, stream);
}
