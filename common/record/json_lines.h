// SPDX-License-Identifier: Apache-2.0
// The lines of a run record, in JSON. Apart from recorder.h, so that what does not write lines compiles faster.
#pragma once

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "common/record/recorder.h"

namespace workshop {

using Json = nlohmann::ordered_json;  // keeps "type" first

// Adds one line of JSON to this rank's record.
inline void record_line(const Json& json) { record_text(json.dump()); }

// Converts a number to JSON. JSON has neither NaN nor infinity, so these become strings, which never equal a number.
// "unwritten" is the NaN that new memory is filled with (always on the cpu backend, in checks on GPUs), and any NaN
// computed from it.
Json number(double value);

// Appends a number as number() writes it, and a comma. Uses the fewest digits that tell the value from all others of
// its type.
void append_number(std::string& text, float value);
void append_number(std::string& text, double value);

// Returns `line` as text, with `count` values, their L2 norm and their sum added. Writes the text directly: converting
// each number through Json would take most of the time of a recorded run. The key is "floats" for floats and "values"
// for other types.
template <typename T>
std::string with_values(const Json& line, const T* values, std::size_t count) {
  constexpr std::size_t kMaxValues = 4096;  // of a tensor are written out; the norm and the sum are of all values
  using Written = std::conditional_t<std::is_same_v<T, float>, float, double>;
  std::string text = line.dump();
  text.back() = ',';
  text += std::is_same_v<T, float> ? "\"floats\":[" : "\"values\":[";
  double squares = 0, sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    squares += static_cast<double>(values[i]) * values[i];
    sum += values[i];
    if (i < kMaxValues) append_number(text, static_cast<Written>(values[i]));
  }
  if (count > 0) text.pop_back();  // the last comma
  text += "],\"l2\":";
  append_number(text, std::sqrt(squares));
  text += "\"sum\":";
  append_number(text, sum);
  text.back() = '}';
  return text;
}

}  // namespace workshop
