// SPDX-License-Identifier: Apache-2.0
// Guesses the mistake behind a wrong tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/shared/run_record.h"

namespace workshop::tools {

// A tensor of the solution's run, and its name in a sentence: "the values of 'partial sum' on rank 1, step 0".
struct Known {
  std::string name;
  const Tensor* tensor;
};

// A tensor of the participant's run that differs from the solution's, and tensors to compare it with.
struct Symptom {
  const Tensor& mine;
  const Tensor& expected;
  int world = 1;                                           // ranks of the run
  std::vector<const Tensor*> mine_by_rank = {};            // the same tensor on each rank that recorded it
  std::vector<const Tensor*> expected_by_rank = {};        // the same, in the solution's run
  const Tensor* expected_before = nullptr;                 // the solution's tensor one step earlier
  std::vector<const Tensor*> mine_before = {};             // the same tensor, recorded earlier; the latest first
  std::vector<Known> others = {};                          // other tensors of the solution's run, this TODO's first
  const std::map<std::string, double>* options = nullptr;  // numeric options of the run: "micro-batches" -> 4
};

// Returns one sentence about the first mistake that fits. If none does, says how many values differ, or returns "".
std::string diagnose(const Symptom& symptom);

// The same for integers that the host computed: ranks, counts, flags.
std::string diagnose_integers(const Symptom& symptom);

// Names an entry of a list after the list's own name: entry 14 of "unit, backward and gather of each pass" is "gather
// of pass 4". Returns "" if the list's name does not say.
std::string name_of_entry(const Tensor& list, std::size_t position);

// The place of a value in its tensor: [row, column] for position row * columns + column.
std::vector<long> place_of(std::size_t position, const std::vector<long>& shape);
std::string bracketed(const std::vector<long>& list);

}  // namespace workshop::tools
