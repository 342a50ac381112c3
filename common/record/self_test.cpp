// SPDX-License-Identifier: Apache-2.0
#include "common/record/self_test.h"

#include <vector>

#include "common/device/device.h"

namespace workshop {
namespace {

std::vector<SelfTest::Run>& self_tests() {
  static std::vector<SelfTest::Run> self_tests;
  return self_tests;
}

}  // namespace

SelfTest::SelfTest(Run run) { self_tests().push_back(run); }

void run_self_tests(const Options& options) {
  if (options.record.empty() || self_tests().empty()) return;
  const Stream stream;
  for (const SelfTest::Run run : self_tests()) run(options, stream);
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace workshop
