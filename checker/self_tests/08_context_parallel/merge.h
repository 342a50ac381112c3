// SPDX-License-Identifier: Apache-2.0
// A call of merge_part(). ring_attention_rows.cu calls it as a plain function; ring_attention_rows_on_threads.cu, where
// `workshop` has a different name, with emulated threads of a GPU.
#pragma once

#include <string>

#include "08_context_parallel/partial_attention.h"

namespace merge {

constexpr int kRows = 10, kWidth = 34;  // two columns more than lanes

struct Arrays {
  float *context, *values;           // [kRows, kWidth]
  float *log_sums, *largest, *sums;  // [kRows]
};

// The outcome of the kernel, run on emulated threads.
struct Outcome {
  bool open = false;  // its TODO is not filled in
  std::string fault;  // empty: none
};
Outcome on_threads(int blocks, const Arrays& arrays);

}  // namespace merge

namespace workshop {

// Calls run(kernel, arguments…).
template <typename Run>
void call_merge(const merge::Arrays& a, Run run) {
  using namespace merge;
  run(merge_part, a.context, a.log_sums, a.values, a.largest, a.sums, /*first=*/false, Positions(kRows), 1, kRows,
      kWidth, kWidth);
}

}  // namespace workshop
