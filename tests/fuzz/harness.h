// SPDX-License-Identifier: Apache-2.0
// Shared by the harnesses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

// Called by libFuzzer, or by replay.cpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Ends the harness with a finding if the condition is false.
inline void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

// Requires that an error message is one line of at most 400 printable characters.
inline void require_one_line(const std::string& message) {
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  require(!message.empty() && message.size() <= 400, "a message of " + std::to_string(message.size()) + " characters");
  require(std::all_of(message.begin(), message.end(), printable), "a message that is not one line of plain text");
}
