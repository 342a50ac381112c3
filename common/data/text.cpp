// SPDX-License-Identifier: Apache-2.0
#include "common/data/text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <streambuf>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/base/format.h"
#include "common/data/file_kind.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::array<const char*, 3>, 3> kNames = {{
    {"train.txt", "valid.txt", "test.txt"},
    {"wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"},
    {"wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"},
}};

// Returns whether Python's str.isspace() is true for c.
bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

// Reads a file word by word.
class WordReader {
 public:
  explicit WordReader(std::string path) : path_(std::move(path)) {
    std::error_code unusable;
    if (fs::exists(path_, unusable) && !fs::is_regular_file(path_, unusable)) {
      throw std::runtime_error(path_ + ": it is not a regular file");
    }
    if (!bytes_.open(path_, std::ios::in | std::ios::binary)) {
      throw std::runtime_error(path_ + ": cannot be read: " + std::strerror(errno));
    }
    require_text();
    skip_byte_order_mark();
  }

  // Returns the next word, "<eos>" after the words of a line, and "" at the end of the file. Valid until the next call.
  std::string_view next() {
    if (end_of_line_) return end_line();
    word_.clear();
    for (;;) {
      const std::size_t size = word_.size();
      const char32_t c = read_character();
      if (c == kEnd) {
        end_of_line_ = in_line_;
        break;
      }
      in_line_ = true;
      if (!is_space(c)) continue;
      word_.resize(size);
      if (c == '\r' && bytes_.sgetc() == '\n') bytes_.sbumpc();
      end_of_line_ = c == '\n' || c == '\r';
      if (end_of_line_ || !word_.empty()) break;
    }
    return word_.empty() && end_of_line_ ? end_line() : word_;
  }

 private:
  static constexpr char32_t kEnd = 0xffffffff;

  void require_text() try {
    std::array<char, kFileBeginning> beginning{};
    const std::streamsize size = bytes_.sgetn(beginning.data(), beginning.size());
    require_data(path_, {beginning.data(), static_cast<std::size_t>(std::max<std::streamsize>(size, 0))});
    bytes_.pubseekpos(0);
  } catch (const std::ios_base::failure&) {
    throw std::runtime_error(path_ + ": cannot be read to its end");
  }

  // Some editors on Windows put one in front of a text. It is no part of the first word.
  void skip_byte_order_mark() {
    constexpr std::array<int, 3> mark = {0xef, 0xbb, 0xbf};
    if (!std::ranges::all_of(mark, [this](int byte) { return read_byte() == byte; })) bytes_.pubseekpos(0);
  }

  std::string_view end_line() {
    in_line_ = end_of_line_ = false;
    ++line_;
    return "<eos>";
  }

  // Returns the next character and appends its bytes to word_. Accepts what Python's strict UTF-8 decoder accepts,
  // except zero bytes.
  char32_t read_character() {
    const int first = read_byte();
    if (first == std::char_traits<char>::eof()) return kEnd;
    word_ += static_cast<char>(first);
    if (first > 0 && first < 0x80) return first;
    const int more = first >= 0xc2 && first <= 0xdf ? 1 : (first & 0xf0) == 0xe0 ? 2 : (first & 0xf8) == 0xf0 ? 3 : 0;
    char32_t c = first & (0x3f >> more);
    for (int i = 0; i < more; ++i) {
      const int byte = read_byte();
      if ((byte & ~0x3f) != 0x80) not_text();
      word_ += static_cast<char>(byte);
      c = c << 6 | (byte & 0x3f);
    }
    constexpr std::array<char32_t, 4> least = {0, 0x80, 0x800, 0x10000};  // smaller ones have a shorter encoding
    if (more == 0 || c < least[more] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) not_text();
    return c;
  }

  int read_byte() try { return bytes_.sbumpc(); } catch (const std::ios_base::failure&) {
    throw std::runtime_error(path_ + ": cannot be read to its end");
  }

  [[noreturn]] void not_text() const { throw_error("%s: line %zu is not UTF-8 text", path_.c_str(), line_); }

  std::string path_;
  std::filebuf bytes_;
  std::string word_;
  std::size_t line_ = 1;
  bool in_line_ = false, end_of_line_ = false;
};

// Numbers the words in the order in which they first appear.
class WordNumbers {
 public:
  std::int32_t operator[](std::string_view word) {
    const auto found = numbers_.find(word);
    if (found != numbers_.end()) return found->second;
    words_.emplace_back(word);
    return numbers_[words_.back()] = static_cast<std::int32_t>(words_.size()) - 1;
  }
  const std::vector<std::string>& words() const { return words_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
  };
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> numbers_;
  std::vector<std::string> words_;
};

std::vector<std::int32_t> read_stream(const std::string& path, int context, WordNumbers& numbers) {
  // Reads the file twice, because a growing vector would temporarily hold the tokens twice and keep up to twice the
  // memory.
  std::size_t count = 0;
  for (WordReader words(path); !words.next().empty();) ++count;
  if (count == 0) throw std::runtime_error(path + ": it is empty");
  if (count <= static_cast<std::size_t>(context)) {
    throw_error("%s: %zu tokens are too few; a sample with a context of %d needs %d", path.c_str(), count, context,
                context + 1);
  }
  if (count > std::numeric_limits<std::int32_t>::max()) throw_error("%s: more than 2^31 - 1 tokens", path.c_str());
  std::vector<std::int32_t> stream;
  stream.reserve(count);
  WordReader words(path);
  for (std::string_view word = words.next(); !word.empty(); word = words.next()) stream.push_back(numbers[word]);
  return stream;
}

}  // namespace

Text read_text(const std::string& folder, int vocabulary, int context) {
  std::error_code unusable;
  if (!fs::is_directory(folder, unusable)) throw std::runtime_error(folder + ": there is no such folder");
  const auto there = [&](const auto& names) { return fs::exists(fs::path(folder) / names[0], unusable); };
  const auto names = std::find_if(kNames.begin(), kNames.end(), there);
  if (names == kNames.end()) {
    throw std::runtime_error(folder + ": has no train.txt, wiki.train.tokens or wiki.train.raw");
  }
  const auto path = [&](int stream) { return (fs::path(folder) / (*names)[stream]).string(); };
  WordNumbers numbers;
  Text text;
  text.train = read_stream(path(0), context, numbers);
  text.valid = read_stream(path(1), context, numbers);
  text.test = read_stream(path(2), context, numbers);
  text.vocabulary = numbers.words();
  keep_most_frequent(text, vocabulary);
  return text;
}

void keep_most_frequent(Text& text, int limit) {
  const std::size_t words = text.vocabulary.size();
  std::vector<std::int32_t> counts(words), order;  // order: by first appearance
  for (std::int32_t token : text.train) {
    const std::string& word = text.vocabulary[token];
    if (counts[token]++ == 0 && word != "<unk>" && word != "<eos>") order.push_back(token);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return counts[a] > counts[b]; });

  std::vector<std::string> vocabulary = {"<unk>", "<eos>"};
  std::vector<std::int32_t> numbers(words, 0);
  if (limit > 0 && order.size() + 2 > static_cast<std::size_t>(limit)) order.resize(std::max(0, limit - 2));
  for (std::int32_t token : order) {
    numbers[token] = static_cast<std::int32_t>(vocabulary.size());
    vocabulary.push_back(text.vocabulary[token]);
  }
  if (limit == 1) vocabulary.pop_back();
  const auto eos = std::find(text.vocabulary.begin(), text.vocabulary.end(), "<eos>");
  if (eos != text.vocabulary.end()) numbers[eos - text.vocabulary.begin()] = limit == 1 ? 0 : 1;
  for (auto* stream : {&text.train, &text.valid, &text.test}) {
    for (std::int32_t& token : *stream) token = numbers[token];
  }
  text.vocabulary = std::move(vocabulary);
}

}  // namespace workshop
