// SPDX-License-Identifier: Apache-2.0
// Self-tests that the checker runs in `tensor_parallel`: they call the code of some TODOs with inputs that only later
// chapters have.
#include "05_tensor_parallel/shards.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

// A part of the gradients that begins within one parameter and ends within another, as in chapter 07. All parameters
// are cut, so each of them counts. A run that needs no norm does not get to this code.
const SelfTest begins_in_the_middle([](const Options& options, cudaStream_t) {
  if (!options.needs_norm()) return;
  Parameter half("half of a parameter", {4, 3});
  half.shape = {2, 3};
  half.part.columns = half.count();
  counted_once({half, half, half, half}, Group(), {7, 10});
});

}  // namespace
}  // namespace workshop
