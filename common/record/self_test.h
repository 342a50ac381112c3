// SPDX-License-Identifier: Apache-2.0
// Self-tests, which the checker adds to a program's run. They call a TODO's code with inputs that do not occur in a
// short run, such as the scores of a model after long training, and the TODO's probes record the results.
//
// They are not part of a chapter: checker/self_tests/NN_name/PROGRAM.cu, if it exists, is linked to PROGRAM
// (tools/cmake/Workshop.cmake). They run before anything else, and only with --record.
#pragma once

#include <cuda_runtime.h>

#include "common/options/options.h"

namespace workshop {

// Registers a self-test. Define static objects of this type; the tests run in the order of their definitions in the
// file, with the options of the run.
class SelfTest {
 public:
  using Run = void (*)(const Options& options, cudaStream_t stream);
  explicit SelfTest(Run run);
};

// Runs all registered self-tests and waits for them. Job calls this once.
void run_self_tests(const Options& options);

}  // namespace workshop
