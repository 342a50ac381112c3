// SPDX-License-Identifier: Apache-2.0
#include "common/data/text.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

namespace workshop {

Text read_text(const std::string& folder, int vocabulary, int) {
  const auto words = [&](const std::string& name) {
    std::ifstream in(folder + "/" + name + ".txt");
    if (!in) throw std::runtime_error(folder + "/" + name + ".txt: cannot be read");
    std::vector<std::string> words;
    for (std::string line; std::getline(in, line); words.push_back("<eos>")) {
      std::istringstream stream(line);
      for (std::string word; stream >> word;) words.push_back(word);
    }
    return words;
  };
  Text text;
  const std::vector<std::string> train = words("train");
  std::unordered_map<std::string, int> count;
  std::vector<std::string> kept;
  for (const std::string& word : train)
    if (word != "<unk>" && word != "<eos>" && count[word]++ == 0) kept.push_back(word);
  std::ranges::stable_sort(kept, [&](const auto& a, const auto& b) { return count[a] > count[b]; });
  text.vocabulary = {"<unk>", "<eos>"};
  text.vocabulary.insert(text.vocabulary.end(), kept.begin(), kept.end());
  if (vocabulary > 0 && text.vocabulary.size() > static_cast<std::size_t>(vocabulary))
    text.vocabulary.resize(vocabulary);
  std::unordered_map<std::string, std::int32_t> number;
  for (std::size_t i = 0; i < text.vocabulary.size(); ++i) number[text.vocabulary[i]] = static_cast<std::int32_t>(i);
  const auto numbers = [&](const std::vector<std::string>& words) {
    std::vector<std::int32_t> stream;
    for (const std::string& word : words) stream.push_back(number.contains(word) ? number[word] : 0);
    return stream;
  };
  text.train = numbers(train);
  text.valid = numbers(words("valid"));
  text.test = numbers(words("test"));
  return text;
}

}  // namespace workshop
