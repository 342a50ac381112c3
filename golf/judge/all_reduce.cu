// SPDX-License-Identifier: Apache-2.0
// Judges golf/all_reduce.
#include <cfloat>
#include <cmath>

#include "common/base/random.h"
#include "golf/judge/all_reduce.h"
#include "golf/judge/judge.h"
#include "golf/judge/machines.h"

namespace {

using namespace workshop;
using golf::AllReduce;

bool check(const golf::Call& call, golf::Judge& judge, void fill(std::uint64_t, float*), const Job& job) {
  std::vector<float> values(AllReduce::kCount);
  fill(call.seed, values.data());
  const std::vector<float> expected = judge.sum_over_ranks(values);
  for (float& value : values) value = std::abs(value);
  const std::vector<float> magnitudes = judge.sum_over_ranks(values);
  const std::vector<float> found = judge.download(judge.inputs(), AllReduce::kCount);
  int wrong = 0;
  for (int i = 0; i < AllReduce::kCount; ++i) {
    // Two sums of P floats in different orders differ by at most 2(P-1) roundings, each of at most FLT_EPSILON / 2.
    const double tolerance = (job.world() - 1) * static_cast<double>(FLT_EPSILON) * magnitudes[i];
    if (!(std::abs(static_cast<double>(found[i]) - expected[i]) <= tolerance)) ++wrong;
  }
  return golf::all_right(wrong, found.size(), job);
}

}  // namespace

int main(int argc, char** argv) {
  golf::simulate(golf::kTwoNodes);
  Options options("golf/all_reduce", "Judges a way to all-reduce a vector over two nodes");
  options.without_training();
  options.parse(argc, argv);
  Job job(options);
  golf::Judge judge(job, 2 * golf::kOnNode, AllReduce::kCount, AllReduce::kCount);
  const AllReduce given = {judge.inputs(),      judge.scratch(),       job.rank(),     {judge.world(0), judge.world(1)},
                           judge.node().comm(), judge.across().comm(), judge.streams()};
  const auto fill = [](std::uint64_t seed, float* values) {
    for (int i = 0; i < AllReduce::kCount; ++i) {
      values[i] = static_cast<float>(splitmix64(seed + i * kSplitMix64Step) >> 40) * 0x1p-23f - 1;  // in [-1, 1)
    }
  };
  bool right = true;
  for (int i = 0; i < golf::kCalls; ++i) {
    right = check(judge.run([&] { all_reduce(given); }, fill), judge, fill, job) && right;
  }
  return judge.finish("all_reduce", right);
}
