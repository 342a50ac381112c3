// SPDX-License-Identifier: Apache-2.0
// Judges golf/tensor_overlap.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "common/base/random.h"
#include "common/nccl/off_the_record.h"
#include "golf/judge/judge.h"
#include "golf/judge/machines.h"
#include "golf/judge/tensor_overlap.h"

namespace {

using namespace workshop;
using Task = golf::TensorOverlap;

constexpr int kX = Task::kRows * Task::kWidth, kW1 = Task::kWidth * Task::kFeatures,
              kW2 = Task::kFeatures * Task::kWidth, kY = Task::kRows * Task::kWidth, kH = Task::kRows * Task::kFeatures;

void fill(std::uint64_t seed, float* values) {
  for (int i = 0; i < kX + kW1 + kW2; ++i) {
    values[i] = static_cast<float>(splitmix64(seed + i * kSplitMix64Step) >> 40) * 0x1p-23f - 1;  // in [-1, 1)
  }
}

// This rank's part of the straight computation, and of the bound of its rounding errors.
class Reference {
 public:
  Reference(std::vector<float> inputs, golf::Judge& judge) : judge_(judge), inputs_(std::move(inputs)) {}

  std::vector<float> output() {
    inputs_on_device_.upload(inputs_, judge_.own_stream());
    multiply_first();
    golf::gelu(h_.data(), kH, judge_.own_stream());
    return multiply_second();
  }

  // A sum of k products is off by at most k roundings of the sum of their magnitudes, and gelu' is at most 1.13.
  std::vector<float> bound() {
    inputs_on_device_.upload(inputs_, judge_.own_stream());
    multiply_first();
    golf::gelu(h_.data(), kH, judge_.own_stream());
    std::vector<float> h = h_.download(judge_.own_stream());
    for (float& value : inputs_) value = std::abs(value);
    inputs_on_device_.upload(inputs_, judge_.own_stream());
    multiply_first();
    const std::vector<float> magnitudes = h_.download(judge_.own_stream());
    for (int i = 0; i < kH; ++i) {
      h[i] = (Task::kFeatures + Task::kRanks + 2) * std::abs(h[i]) + 1.13f * (Task::kWidth + 4) * magnitudes[i];
    }
    h_.upload(h, judge_.own_stream());
    return multiply_second();
  }

 private:
  void multiply_first() {
    const float* const x = inputs_on_device_.data();
    golf::multiply(x, x + kX, h_.data(), Task::kRows, Task::kWidth, Task::kFeatures, judge_.own_stream());
  }
  std::vector<float> multiply_second() {
    const float* const W2 = inputs_on_device_.data() + kX + kW1;
    golf::multiply(h_.data(), W2, y_.data(), Task::kRows, Task::kFeatures, Task::kWidth, judge_.own_stream());
    return y_.download(judge_.own_stream());
  }

  golf::Judge& judge_;
  std::vector<float> inputs_;
  DeviceBuffer<float> inputs_on_device_{kX + kW1 + kW2, Memory::data}, h_{kH, Memory::data}, y_{kY, Memory::data};
};

bool check(const golf::Call& call, golf::Judge& judge, const float* y, const Job& job) {
  const std::vector<float> found = judge.download(y, kY);
  std::uint64_t first_seed = 0;
  {
    const OffTheRecord off_the_record;
    first_seed = job.group().gather(call.seed)[0];
  }
  std::vector<float> inputs(kX + kW1 + kW2), first(inputs.size());
  fill(call.seed, inputs.data());
  fill(first_seed, first.data());
  std::copy_n(first.begin(), kX, inputs.begin());  // x is rank 0's
  Reference reference(std::move(inputs), judge);
  const std::vector<float> expected = judge.sum_over_ranks(reference.output());
  const std::vector<float> bound = judge.sum_over_ranks(reference.bound());
  int wrong = 0;
  for (int i = 0; i < kY; ++i) {
    wrong += !(std::abs(static_cast<double>(found[i]) - expected[i]) <= static_cast<double>(FLT_EPSILON) * bound[i]);
  }
  return golf::all_right(wrong, found.size(), job);
}

}  // namespace

int main(int argc, char** argv) {
  golf::simulate(golf::kOneNode);
  Options options("golf/tensor_overlap", "Judges a pair of layers, cut over four ranks");
  options.without_training();
  options.parse(argc, argv);
  Job job(options);
  golf::Judge judge(job, Task::kRanks, kX + kW1 + kW2, Task::kScratch);
  const DeviceBuffer<float> y(kY, Memory::data);
  const float* const x = judge.inputs();
  const Task given = {x,
                      x + kX,
                      x + kX + kW1,
                      y.data(),
                      judge.scratch(),
                      job.rank(),
                      {judge.world(0), judge.world(1)},
                      judge.streams()};
  bool right = true;
  for (int i = 0; i < golf::kCalls; ++i) {
    CUDA_CHECK(cudaMemsetAsync(y.data(), 0xff, y.bytes(), judge.own_stream()));
    right = check(judge.run([&] { tensor_overlap(given); }, fill, kX), judge, y.data(), job) && right;
  }
  return judge.finish("tensor_overlap", right);
}
