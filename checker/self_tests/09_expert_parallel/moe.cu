// SPDX-License-Identifier: Apache-2.0
// Self-tests that the checker runs in `moe`: they call the router's kernels with inputs that a model seldom or never
// meets in a few steps.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#pragma GCC diagnostic ignored "-Wunused-function"  // only some of the kernels are called
#include "09_expert_parallel/moe.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

// Equal logits, logits whose powers no float can hold, and scores that are 0. Some of the experts are chosen, or all.
const SelfTest equal_and_large_logits([](const Options&, cudaStream_t stream) {
  constexpr int kTokens = 6, kExperts = 5;
  for (int K : {3, kExperts}) {
    DeviceBuffer<float> logits(kTokens * kExperts, Memory::data), weights(kTokens * K, Memory::data);
    DeviceBuffer<int> chosen(kTokens * K, Memory::data);
    logits.upload({0.5f, 0.5f, 0.5f, 0.5f, 0.5f,   -1, 2,    2,    -1,   2,    90, 89, 90, -90, 88,
                   -90,  -98,  -98,  -91,  -90.5f, 0,  -200, -200, -200, -200, 3,  1,  2,  1,   1},
                  stream);
    launch(choose_experts, kTokens * kExperts, stream, logits.data(), chosen.data(), weights.data(), kTokens, kExperts,
           K);
    probe("09.A", "scores of equal and of large logits", logits.data(), {kTokens, kExperts}, stream);
    probe("09.1", "experts chosen by equal and by large logits", chosen.data(), {kTokens, K}, stream);
    probe("09.2", "weights from equal and from large logits", weights.data(), {kTokens, K}, stream);
  }
});

// Logits of a training that has diverged. Which experts they choose does not matter, but there must be such experts.
const SelfTest no_numbers([](const Options&, cudaStream_t stream) {
  constexpr int kTokens = 2, kExperts = 4, K = 3;
  DeviceBuffer<float> logits(kTokens * kExperts, Memory::data), weights(kTokens * K, Memory::data);
  DeviceBuffer<int> chosen(kTokens * K, Memory::data);
  logits.upload({NAN, NAN, NAN, NAN, 1, INFINITY, 2, -INFINITY}, stream);
  launch(choose_experts, kTokens * kExperts, stream, logits.data(), chosen.data(), weights.data(), kTokens, kExperts,
         K);
  const std::vector<int> numbers = chosen.download(stream);
  const auto experts = std::ranges::count_if(numbers, [](int e) { return 0 <= e && e < kExperts; });
  probe("09.1", "how many experts scores that are no numbers choose", std::array{static_cast<int>(experts)});
});

// All tokens of a sequence choose the same expert, or the same two; others have none, or as many as places.
const SelfTest crowded_experts([](const Options&, cudaStream_t stream) {
  constexpr int kSequences = 3, kPositions = 4, kExperts = 4, K = 2, kNumbers = kExperts * kSequences + 1;
  for (int limit : {2, kPositions}) {
    DeviceBuffer<int> chosen(kSequences * kPositions * K, Memory::data), places(chosen.size(), Memory::data),
        counts(kSequences * kExperts, Memory::data), starts(kNumbers, Memory::data);
    chosen.upload({3, 1, 3, 0, 1, 3, 0, 3, 1, 2, 2, 1, 1, 2, 1, 2, 0, 3, 2, 0, 3, 2, 2, 3}, stream);
    launch(take_places, kSequences * kExperts * kWarp, stream, places.data(), counts.data(), chosen.data(), kSequences,
           kPositions, kExperts, K, limit);
    probe("09.3", "places at crowded experts", places.data(), {kSequences * kPositions, K}, stream);
    probe("09.3", "tokens of crowded experts", counts.data(), {kSequences, kExperts}, stream);
    launch(first_rows, kNumbers * kWarp, stream, starts.data(), counts.data(), kSequences, kExperts, limit);
    probe("09.4", "first rows of crowded experts", starts.data(), {kNumbers}, stream);
  }
});

}  // namespace
}  // namespace workshop
