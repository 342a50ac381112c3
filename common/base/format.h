// SPDX-License-Identifier: Apache-2.0
// Texts as printf makes them.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace workshop {

[[gnu::format(printf, 1, 0)]] inline std::string vformatted(const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  std::string text(std::vsnprintf(nullptr, 0, format, again), '\0');
  va_end(again);
  std::vsnprintf(text.data(), text.size() + 1, format, arguments);
  return text;
}

[[gnu::format(printf, 1, 2)]] inline std::string formatted(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = vformatted(format, arguments);
  va_end(arguments);
  return text;
}

// Writes `text` to stderr with one write, so that the lines of several ranks do not mix. (fprintf() of glibc 2.41
// writes 128 bytes at a time to a stream without a buffer.)
inline void print_error(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stderr); }

// Throws std::runtime_error with this text.
[[noreturn, gnu::format(printf, 1, 2)]] inline void throw_error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  throw std::runtime_error(vformatted(format, arguments));
}

}  // namespace workshop
