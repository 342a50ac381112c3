// SPDX-License-Identifier: Apache-2.0
// Judges golf/all_to_all.
#include "common/base/random.h"
#include "common/nccl/off_the_record.h"
#include "golf/judge/all_to_all.h"
#include "golf/judge/judge.h"
#include "golf/judge/machines.h"

namespace {

using namespace workshop;
using golf::AllToAll;

// Returns element i of what a rank with this seed sends.
float element(std::uint64_t seed, int i) {
  return static_cast<float>(splitmix64(seed + i * kSplitMix64Step) >> 40);  // exact: 24 bits
}

bool check(const golf::Call& call, golf::Judge& judge, const DeviceBuffer<float>& receive, const Job& job) {
  const OffTheRecord off_the_record;
  const std::vector<std::uint64_t> seeds = job.group().gather(call.seed);
  const std::vector<float> found = judge.download(receive.data(), static_cast<int>(receive.size()));
  int wrong = 0;
  for (int from = 0; from < AllToAll::kRanks; ++from) {
    const float* const part = found.data() + AllToAll::receive_offset(job.rank(), from);
    const int first = AllToAll::send_offset(from, job.rank());
    for (int i = 0; i < AllToAll::count(from, job.rank()); ++i) wrong += part[i] != element(seeds[from], first + i);
  }
  return golf::all_right(wrong, found.size(), job);
}

}  // namespace

int main(int argc, char** argv) {
  golf::simulate(golf::kTwoNodes);
  Options options("golf/all_to_all", "Judges a way to exchange messages of unequal sizes over two nodes");
  options.without_training();
  options.parse(argc, argv);
  Job job(options);
  const int rank = job.rank(), sent = AllToAll::send_offset(rank, AllToAll::kRanks);
  golf::Judge judge(job, AllToAll::kRanks, sent, AllToAll::kScratch);
  const DeviceBuffer<float> receive(AllToAll::receive_offset(rank, AllToAll::kRanks), Memory::data);
  const AllToAll given = {
      judge.inputs(),      receive.data(),        judge.scratch(), rank, {judge.world(0), judge.world(1)},
      judge.node().comm(), judge.across().comm(), judge.streams()};
  const auto fill = [&](std::uint64_t seed, float* values) {
    for (int i = 0; i < sent; ++i) values[i] = element(seed, i);
  };
  bool right = true;
  for (int i = 0; i < golf::kCalls; ++i) {
    CUDA_CHECK(cudaMemsetAsync(receive.data(), 0xff, receive.bytes(), judge.own_stream()));
    right = check(judge.run([&] { all_to_all(given); }, fill), judge, receive, job) && right;
  }
  return judge.finish("all_to_all", right);
}
