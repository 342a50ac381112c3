// SPDX-License-Identifier: Apache-2.0
// A text as a stream of words, each by its number in a vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

struct Text {
  std::vector<std::string> vocabulary;
  std::vector<std::int32_t> train, valid, test;  // numbers in the vocabulary
};

// Reads train.txt, valid.txt and test.txt of a folder.
Text read_text(const std::string& folder, int vocabulary, int context);

}  // namespace workshop
