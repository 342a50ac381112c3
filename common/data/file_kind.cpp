// SPDX-License-Identifier: Apache-2.0
#include "common/data/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <utility>

namespace workshop {
namespace {

using std::string_view_literals::operator""sv;

// From the first character that is neither a byte-order mark nor white space, in lower case.
std::string text_of(std::string_view beginning) {
  if (beginning.starts_with("\xef\xbb\xbf"sv)) beginning.remove_prefix(3);
  std::string text(beginning.substr(0, 128));
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_json(const std::string& text) {
  if (text.empty() || (text[0] != '{' && text[0] != '[')) return false;
  const std::size_t next = text.find_first_not_of(" \t\r\n", 1);
  return next != std::string::npos && (text[next] == '"' || text[next] == '{');
}

}  // namespace

std::string misplaced_kind(std::string_view beginning) {
  constexpr std::array<std::pair<std::string_view, const char*>, 3> kBinary = {{
      {"PK\x03\x04"sv, "a zip archive"},
      {"\x1f\x8b"sv, "a gzip archive"},
      {"version https://git-lfs.github.com/spec/"sv, "a Git LFS pointer, not the file itself"},
  }};
  for (const auto& [start, kind] : kBinary) {
    if (beginning.starts_with(start)) return kind;
  }
  constexpr std::size_t kTarMagic = 257;
  if (beginning.size() > kTarMagic && beginning.substr(kTarMagic).starts_with("ustar"sv)) return "a tar archive";
  const std::string text = text_of(beginning);
  if (text.starts_with("<!doctype") || text.starts_with("<html") || text.starts_with("<?xml")) return "an HTML page";
  return is_json(text) ? "a JSON document" : "";
}

void require_data(const std::string& path, std::string_view beginning) {
  const std::string kind = misplaced_kind(beginning);
  if (!kind.empty()) throw std::runtime_error(path + ": it is " + kind);
}

}  // namespace workshop
