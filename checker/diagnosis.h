// SPDX-License-Identifier: Apache-2.0
// What usually goes wrong when a tensor comes out like this.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/shared/run_record.h"

namespace workshop::tools {

// A tensor of the solution's run, and what a sentence calls it: "the values of 'partial sum' on rank 1, step 0".
struct Known {
  std::string name;
  const Tensor* tensor;
};

// A tensor of the participant's run that differs from the solution's, and what it may be compared with.
struct Symptom {
  const Tensor& mine;
  const Tensor& expected;
  int world = 1;                                           // ranks of the run
  std::vector<const Tensor*> mine_by_rank = {};            // the same tensor on every rank, if all ranks recorded it
  std::vector<const Tensor*> expected_by_rank = {};        // the same, of the solution's run
  const Tensor* expected_before = nullptr;                 // the solution's tensor one step earlier
  std::vector<const Tensor*> mine_before = {};             // what this rank recorded there earlier, the latest first
  std::vector<Known> others = {};                          // further tensors of the solution's run, of this TODO first
  const std::map<std::string, double>* options = nullptr;  // of the run: 4 of "micro-batches"
};

// One sentence for the first known mistake that fits; where none does, how much differs, or nothing.
std::string diagnose(const Symptom& symptom);

// The same for what the host has worked out: ranks, counts, flags.
std::string diagnose_integers(const Symptom& symptom);

// What an entry of a list is, as far as the list's name tells: of "unit, backward and gather of each pass" number 14 is
// "gather of pass 4". Empty where it does not.
std::string name_of_entry(const Tensor& list, std::size_t position);

// The place of a value in its tensor: [row, column] for position row * columns + column.
std::vector<long> place_of(std::size_t position, const std::vector<long>& shape);
std::string bracketed(const std::vector<long>& list);

}  // namespace workshop::tools
