// SPDX-License-Identifier: Apache-2.0
// Self-tests that the checker runs in `gpt`: they call the code of some TODOs with inputs that a model meets only after
// long training.
#include "01_single_gpu/attention.h"
#include "01_single_gpu/blockwise_attention.h"
#include "01_single_gpu/cross_entropy.h"
#include "01_single_gpu/generate.h"
#include "01_single_gpu/layer_norm.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

// γ and β as after training (a model starts with ones and zeros), a row of values so close together that ε matters, and
// a row far from zero. The rows' means and variances are short binary numbers.
const SelfTest trained_norm([](const Options&, cudaStream_t stream) {
  constexpr int kRows = 3, kWidth = 4;
  constexpr float kStep = 1.0f / 1024;
  DeviceBuffer<Real> x(kRows * kWidth, Memory::data), y(kRows * kWidth, Memory::data), gamma(kWidth, Memory::data),
      beta(kWidth, Memory::data), statistics(reals_spanning(2) * kRows, Memory::data);
  x.upload({Real(kStep), Real(2 * kStep), Real(4 * kStep), Real(3 * kStep), Real(1), Real(7), Real(3), Real(5),
            Real(102.390625f), Real(104.96875f), Real(101.6796875f), Real(103.421875f)},
           stream);
  gamma.upload({Real(2), Real(0.5f), Real(-1), Real(3)}, stream);
  beta.upload({Real(-1), Real(4), Real(0.5f), Real(2)}, stream);
  const LayerNorm norm{
      "trained norm: nearly equal values, others, and large ones", kWidth, gamma.data(), beta.data(), nullptr, nullptr};
  norm_forward(norm, x.data(), y.data(), statistics_in(statistics), kRows, stream);
});

// The probabilities of large scores.
const SelfTest large_scores([](const Options&, cudaStream_t stream) {
  constexpr int kPositions = 4;
  constexpr float kScale = 0.25f;
  DeviceBuffer<Real> scores(kPositions * kPositions, Memory::data);
  scores.upload({Real(400), Real(0), Real(0), Real(8000), Real(-400), Real(404), Real(0), Real(0), Real(-404),
                 Real(-400), Real(-408), Real(0), Real(400), Real(404), Real(396), Real(402)},
                stream);
  launch(causal_softmax, kPositions * kPositions, stream, scores.data(), kScale, kPositions, kPositions, 0, kPositions);
  probe("01.12", "probabilities of large scores", scores.data(), {kPositions, kPositions}, stream);
});

// The same scores in two blocks of keys.
const SelfTest large_scores_in_blocks([](const Options& options, cudaStream_t stream) {
  if (options.gpt.attention_block == 0) return;
  constexpr int kKeys = 2, kWidth = 1, kPositions = 2 * kKeys;
  constexpr float kScale = 0.25f;
  DeviceBuffer<Real> first(kPositions * kKeys, Memory::data), second(kKeys * kKeys, Memory::data),
      context(kPositions, Memory::data);
  DeviceBuffer<float> values(kPositions, Memory::data), largest(kPositions, Memory::data),
      sums(kPositions, Memory::data), log_sums(kPositions, Memory::data);
  first.upload({Real(400), Real(8000), Real(-400), Real(404), Real(-404), Real(-400), Real(400), Real(404)}, stream);
  second.upload({Real(-408), Real(0), Real(396), Real(802)}, stream);
  values.upload({1, 2, 3, 4}, stream);
  const auto add = [&](Real* scores, const ScoreBlock& block) {
    const int rows = block.queries;
    launch(softmax_of_block, rows * kKeys, stream, scores, values.data(), largest.data(), sums.data(), kScale, block,
           rows, kWidth, BlockDropout{});
    probe("01.26", "powers of large scores", scores, {rows, kKeys}, stream);
    probe("01.26", "sums of powers of large scores", sums.data(), {kPositions}, stream);
    probe("01.26", "context that goes with large scores", values.data(), {kPositions, kWidth}, stream);
  };
  add(first.data(), {0, kPositions, 0, kKeys, kPositions});
  add(second.data(), {kKeys, kKeys, kKeys, kKeys, kPositions});
  const ScoreBlock all{0, kPositions, 0, kPositions, kPositions};
  launch(complete_softmax, kPositions, stream, context.data(), log_sums.data(), values.data(), largest.data(),
         sums.data(), all, kPositions, kWidth, kWidth, 1);
  probe("01.27", "context from large scores", context.data(), {kPositions, kWidth}, stream);
  probe("01.27", "logarithms of large sums of powers", log_sums.data(), {kPositions}, stream);

  DeviceBuffer<Real> scores(kKeys * kKeys, Memory::data), dp(kKeys * kKeys, Memory::data);
  DeviceBuffer<float> dots(kPositions, Memory::data), given(kPositions, Memory::data);
  scores.upload({Real(-8), Real(0), Real(396), Real(400)}, stream);
  dp.upload({Real(1), Real(2), Real(3), Real(4)}, stream);
  dots.upload({5, 6, 7, 8}, stream);
  given.upload({0, 0, -1, 101}, stream);
  const ScoreBlock last{kKeys, kKeys, kKeys, kKeys, kPositions};
  launch(gradient_of_block, kKeys * kKeys, stream, scores.data(), dp.data(), given.data(), dots.data(), kScale, last,
         kKeys, 1, BlockDropout{});
  probe("01.28", "probabilities of large scores in a block", scores.data(), {kKeys, kKeys}, stream);
  probe("01.28", "gradient of large scores in a block", dp.data(), {kKeys, kKeys}, stream);
});

// Losses and gradient of large logits.
const SelfTest large_logits([](const Options&, cudaStream_t stream) {
  constexpr int kRows = 4, kVocabulary = 3;
  DeviceBuffer<Real> logits(kRows * kVocabulary, Memory::data), gradient(kRows * kVocabulary, Memory::data);
  DeviceBuffer<std::int32_t> targets(kRows, Memory::data);
  DeviceBuffer<float> losses(kRows, Memory::data), log_sums(kRows, Memory::data);
  logits.upload({Real(100), Real(101), Real(102), Real(-102), Real(-101), Real(-100), Real(-100), Real(-6), Real(-5),
                 Real(0.5f), Real(1), Real(-1)},
                stream);
  targets.upload({2, 0, 1, 0}, stream);
  launch(cross_entropy_forward, kRows * kVocabulary, stream, losses.data(), log_sums.data(), logits.data(),
         targets.data(), kRows, kVocabulary);
  probe("01.17", "losses of large logits", losses.data(), {kRows}, stream);
  probe("01.17", "logarithms of large sums", log_sums.data(), {kRows}, stream);
  if (kMixedPrecision) return;  // the gradient may be rounded once or twice, and both are right
  launch(cross_entropy_backward, kRows * kVocabulary, stream, gradient.data(), logits.data(), log_sums.data(),
         targets.data(), kRows, kVocabulary, kRows);
  probe("01.18", "gradient of large logits", gradient.data(), {kRows, kVocabulary}, stream);
});

// Blocks of keys of which a position sees one more than its own number, as it may in chapter 08, and blocks that only
// the last two positions look at.
const SelfTest keys_ahead([](const Options& options, cudaStream_t stream) {
  if (options.gpt.attention_block == 0) return;
  constexpr Heads kHeads{4, 1, 1, 2};
  DeviceBuffer<Real> qkv(kHeads.positions * 3, Memory::data), context(kHeads.positions, Memory::data),
      room(BlockwiseRoom::size(kHeads), Memory::data);
  qkv.upload(
      {Real(1), Real(2), Real(1), Real(2), Real(1), Real(-1), Real(-1), Real(3), Real(2), Real(-2), Real(-1), Real(3)},
      stream);
  const Blas blas(stream);
  const Head head(kHeads, {qkv.data(), nullptr, context.data()}, 0);
  BlockwiseRoom in(kHeads, room.data(), 1);
  in.ahead = 1;
  sum_over_blocks(blas, kHeads, in, head, 1, 0, kHeads.positions, BlockDropout{});
  in.ahead = 0;
  sum_over_blocks(blas, kHeads, in, head, 1, 2, kHeads.positions, BlockDropout{});
});

// Due to rounding, the sum of all probabilities may be at or below the number that is drawn. In the second call, the
// probability of the first token is that number, and no more.
const SelfTest rare_draws([](const Options& options, cudaStream_t) {
  if (options.gpt.generate.empty()) return;
  next_token({0, 0, 0}, 1, 1);
  next_token({0, 0}, 1, 0.5);
});

}  // namespace
}  // namespace workshop
