// SPDX-License-Identifier: Apache-2.0
// Reading untrusted input: files and messages.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace workshop {

// A text from a file, made safe for an error line: at most 80 characters, '?' for everything but printable ASCII.
inline std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string plain;
  for (char c : text.substr(0, kMost)) plain += c >= ' ' && c <= '~' ? c : '?';
  return plain + (text.size() > kMost ? "..." : "");
}

inline std::string quote(std::string_view text) { return "'" + shown(text) + "'"; }

// Parses a text. Throws if it is nested deeper than any of our files, before the parser goes deeper: writing or
// comparing such a value would overflow the stack. `on_key` receives each object's keys and their depth.
inline nlohmann::json parse_json(
    std::string_view text,
    const std::function<void(int, const std::string&)>& on_key = [](int, const std::string&) {}) {
  constexpr int kDeepest = 8;
  using Json = nlohmann::json;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw std::runtime_error("it is nested too deep");
    if (event == Json::parse_event_t::key) on_key(depth, parsed.get_ref<const std::string&>());
    return true;
  };
  return Json::parse(text, watch);
}

}  // namespace workshop
