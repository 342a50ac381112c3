// SPDX-License-Identifier: Apache-2.0
// Options that say how sequences are cut over ranks.
#pragma once

#include <string>

#include "01_single_gpu/heads.h"
#include "08_context_parallel/sequence.h"
#include "common/base/check.h"
#include "common/options/options.h"

namespace workshop {

// Adds --balance.
inline void add_balance(Options& options, std::string& balance) {
  options.add("--balance", balance, "positions of a rank: neighbors, or a piece from the front and one from the end",
              {"none", "zigzag"});
}

// Returns how --context is cut over the ranks. Ends the job with status 2 if it cannot be.
inline SequenceCut cut_of(const Options& options, int ranks, const std::string& balance) {
  const int T = options.gpt.context, pieces = balance == "zigzag" && ranks > 1 ? 2 * ranks : ranks;
  if (T % pieces != 0 && pieces == ranks)
    usage_error("--context is '%d'; expected a multiple of the %d ranks", T, ranks);
  if (T % pieces != 0) {
    usage_error("--context is '%d'; expected a multiple of %d, two pieces for each of %d ranks", T, pieces, ranks);
  }
  return {T, ranks, balance == "zigzag" ? Balance::zigzag : Balance::none};
}

// Returns the heads of a block, for n positions, on each of `tensor_ranks` ranks over which they are cut.
inline Heads heads_of(const Options& options, int n, int tensor_ranks = 1) {
  return {n, options.gpt.heads / tensor_ranks, options.gpt.width / options.gpt.heads};
}

}  // namespace workshop
