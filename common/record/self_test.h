// SPDX-License-Identifier: Apache-2.0
// Self-tests: what the checker has a program do besides its run. They call a TODO's code with inputs that a short run
// does not meet, such as the scores of a model that has learned for long, and its probes show what comes of them.
//
// They are not part of a chapter: checker/self_tests/NN_name/PROGRAM.cu is linked to PROGRAM where it exists
// (tools/cmake/Workshop.cmake). A run that records (--record) runs them before anything else; others do not.
#pragma once

#include <cuda_runtime.h>

#include "common/options/options.h"

namespace workshop {

// Registers a self-test: a static object of this type does, in the order in which such objects stand in the file. The
// options are those of the run.
class SelfTest {
 public:
  using Run = void (*)(const Options& options, cudaStream_t stream);
  explicit SelfTest(Run run);
};

// Runs all that are registered, and waits for them. Called once, by Job.
void run_self_tests(const Options& options);

}  // namespace workshop
