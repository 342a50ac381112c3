// SPDX-License-Identifier: Apache-2.0
// Self-test that the checker runs in `ring_attention`: a merge that is right on a CPU, but wrong on a GPU, where the
// lanes of a warp share a row. It says nothing about code that is wrong on a CPU too.
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#pragma GCC diagnostic ignored "-Wunused-function"  // only the kernel is called
#include "checker/self_tests/08_context_parallel/merge.h"
#include "common/base/random.h"
#include "common/record/recorder.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

using namespace merge;

// The arrays of a call, the same ones each time. Around each of them is room for a wrong index.
class Inputs {
 public:
  Inputs() {
    for (std::vector<float>& values : values_) {
      values.resize(3 * kRows * kWidth);
      generator_.randn(values.data(), values.size());
    }
    for (float& sum : values_[4]) sum = 1 + sum * sum;
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  Arrays arrays() { return {at(0), at(1), at(2), at(3), at(4)}; }

 private:
  float* at(int i) { return values_[i].data() + kRows * kWidth; }

  Generator generator_{1};
  std::vector<float> values_[5];
};

bool is_right(const Arrays& found) {
  Inputs inputs;
  const Arrays given = inputs.arrays();
  for (int row = 0; row < kRows; ++row) {
    const double before = given.log_sums[row], part = given.largest[row] + std::log(given.sums[row]);
    const double now = std::log(std::exp(before) + std::exp(part));
    if (!(std::fabs(found.log_sums[row] - now) <= 1e-4)) return false;
    for (int i = row * kWidth; i < (row + 1) * kWidth; ++i) {
      const double context =
          std::exp(before - now) * given.context[i] + std::exp(part - now) * given.values[i] / given.sums[row];
      if (!(std::fabs(found.context[i] - context) <= 1e-4)) return false;
    }
  }
  return true;
}

std::string what_is_wrong(const std::string& fault) {
  if (fault.find("race") != std::string::npos) {
    return "one lane writes a value that another lane has yet to read. sync_lanes() waits until all have read it, and "
           "lanes(n) gives each lane values of its own.";
  }
  return "the result is different. In a loop over lanes(), each lane has only every 32nd value of the row.";
}

const SelfTest merge_on_gpu([](const Options&, cudaStream_t) {
  for (int blocks : {2, 1}) {  // of eight warps each: one row per warp, then several
    Inputs threads;
    const Outcome outcome = on_threads(blocks, threads.arrays());
    if (outcome.open || (outcome.fault.empty() && is_right(threads.arrays()))) continue;
    Inputs plain;
    call_merge(plain.arrays(), [](auto kernel, auto... arguments) { kernel(arguments...); });
    if (!is_right(plain.arrays())) return;
    finish_probes(std::chrono::seconds(1));  // those of the other self-tests may show what else is wrong
    end_alike(kFailed, "TODO 08.4 is right on a CPU, but not on a GPU, where the 32 lanes of a warp share a row: " +
                           what_is_wrong(outcome.fault));
  }
});

}  // namespace
}  // namespace workshop
