// SPDX-License-Identifier: Apache-2.0
// Trains a language model whose sequences are cut over the ranks. Each rank gathers the keys and values of all.
#include "08_context_parallel/context_parallel.h"
#include "08_context_parallel/gather_kv.h"

using namespace workshop;

int main(int argc, char** argv) {
  Options options("08_context_parallel/gather_kv", "Trains a language model with gathered keys and values.");
  std::string balance = "zigzag";
  add_options(options);
  options.with_precision();
  add_balance(options, balance);
  options.parse(argc, argv);
  const SequenceCut cut = cut_of(options, process_ranks().world, balance);
  Job job(options);

  const Stream stream;
  const Heads heads = heads_of(options, cut.whole / cut.ranks);
  const auto attention = std::make_shared<GatherAttention>(heads, cut, options.gpt.attention_block, job.group());
  train(options, job, cut, attention, stream);
}
