// SPDX-License-Identifier: Apache-2.0
// The option --bucket-layers: buckets chosen by hand.
#pragma once

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "02_ddp/ddp_overlap.h"
#include "common/base/check.h"

namespace workshop {

// Divides the model into buckets of these numbers of layers, from the last layer to the first: "1,2,4". Ends the
// program with status 2 if that is not a list of positive numbers whose sum is model.depth().
inline std::vector<Bucket> buckets_of(const Model& model, const std::string& list) {
  std::vector<int> numbers;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const bool is_number =
        !word.empty() && word.size() < 6 && word.find_first_not_of("0123456789") == std::string::npos;
    numbers.push_back(is_number ? std::stoi(word) : 0);
  }
  const bool positive = std::ranges::all_of(numbers, [](int number) { return number > 0; });
  if (!positive || list.ends_with(',') || std::accumulate(numbers.begin(), numbers.end(), 0) != model.depth()) {
    usage_error("--bucket-layers is '%s'; expected numbers of layers such as 1,2, whose sum is the model's %d layers",
                list.c_str(), model.depth());
  }
  std::vector<Bucket> buckets;
  int last = model.depth() - 1;
  for (const int number : numbers) {
    const int first = last - number + 1;
    int count = 0;
    for (int i = first; i <= last; ++i) count += model.layers()[i].count;
    buckets.push_back({first, last, model.layers()[first].offset, count});
    last = first - 1;
  }
  return buckets;
}

}  // namespace workshop
