// SPDX-License-Identifier: Apache-2.0
// Self-test that the checker runs in `model_parallel`: a part with more parameters than an int can count. It says
// nothing about code that is wrong with fewer, because the other checks know more about that.
#include "03_model_parallel/model_parallel.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

const SelfTest many_parameters([](const Options& options, cudaStream_t) {
  if (options.json().find("\"parameters\"") == std::string::npos)
    return;  // otherwise the TODO may not be filled in yet
  const std::vector<std::int64_t> few = {1, 1, 2, 1};
  constexpr std::int64_t kTimes = std::int64_t{1} << 30;
  std::vector<std::int64_t> many;
  for (std::int64_t count : few) many.push_back(kTimes * count);
  const bool alike = fill_parts(many, 2, 3 * kTimes) == fill_parts(few, 2, 3);
  probe("03.2", "1 if parts with billions of parameters have the bounds of small ones", std::array{int{alike}});
});

}  // namespace
}  // namespace workshop
