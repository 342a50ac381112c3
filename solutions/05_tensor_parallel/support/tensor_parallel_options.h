// SPDX-License-Identifier: Apache-2.0
// Options that say how the layers of a network are cut over the ranks of a group.
#pragma once

#include <vector>

#include "common/base/check.h"

namespace workshop {

struct TensorParallelOptions {
  bool sequence_parallel = false;  // each rank has only its own rows outside the pairs
  bool overlap = false;            // sum dx over the ranks while dW is computed
};

// Ends the job with status 2 unless --layers consists of pairs and `ranks` divides the widths inside them.
inline void require_pairs(const std::vector<int>& widths, int ranks) {
  const int layers = static_cast<int>(widths.size()) - 1;
  if (layers % 2 != 0) {
    usage_error(
        "--layers has %d layer%s; expected an even number, in pairs of a column- and a row-parallel one, "
        "such as 6,4,2",
        layers, layers == 1 ? "" : "s");
  }
  for (int i = 1; i < layers; i += 2) {
    if (widths[i] % ranks == 0) continue;
    usage_error("--layers has a width of %d inside a pair; expected a multiple of the %d ranks", widths[i], ranks);
  }
}

}  // namespace workshop
