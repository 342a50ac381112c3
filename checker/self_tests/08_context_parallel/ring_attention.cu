// SPDX-License-Identifier: Apache-2.0
// Self-test that the checker runs in `ring_attention`: it merges parts of an attention whose scores are as large as
// those of a model after long training.
#include "08_context_parallel/partial_attention.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

// Rows whose earlier part weighs more, less or the same, with logarithms whose powers no float can hold.
const SelfTest large_scores([](const Options& options, cudaStream_t stream) {
  if (options.gpt.attention_block == 0) return;  // the kernel may not be filled in yet
  constexpr int kRows = 5, kWidth = 2;
  DeviceBuffer<float> context(kRows * kWidth, Memory::data), log_sums(kRows, Memory::data),
      values(kRows * kWidth, Memory::data), largest(kRows, Memory::data), sums(kRows, Memory::data);
  context.upload({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, stream);
  log_sums.upload({200, -300, 120, -150, 0.5f}, stream);
  values.upload({2, 4, -6, 3, 8, 1, -2, 5, 1, 7}, stream);
  largest.upload({-200, 500, 119, -151, 0.25f}, stream);
  sums.upload({2, 4, 3, 2, 1.5f}, stream);
  launch(merge_part, kRows * kWidth, stream, context.data(), log_sums.data(), values.data(), largest.data(),
         sums.data(), false, Positions(kRows), 1, kRows, kWidth, kWidth);
  probe("08.4", "logarithms of the sums of two parts with large scores", log_sums.data(), {kRows}, stream);
  probe("08.4", "context of two parts with large scores", context.data(), {kRows, kWidth}, stream);
});

}  // namespace
}  // namespace workshop
