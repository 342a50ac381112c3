// SPDX-License-Identifier: Apache-2.0
// What the harnesses share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

// Called by libFuzzer, or by replay.cpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Ends the harness: a finding.
inline void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

// An error message is one line that a terminal shows as it is, and quotes no more than 200 characters of the input.
inline void require_one_line(const std::string& message) {
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  require(!message.empty() && message.size() <= 400, "a message of " + std::to_string(message.size()) + " characters");
  require(std::all_of(message.begin(), message.end(), printable), "a message that is not one line of plain text");
}
