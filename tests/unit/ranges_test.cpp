// SPDX-License-Identifier: Apache-2.0
#ifdef WORKSHOP_BACKEND_CPU
#include "backend_cpu/ranges.h"

#include <gtest/gtest.h>

#include <bitset>
#include <cstddef>
#include <random>

namespace workshop::cpu {
namespace {

constexpr int kBytes = 64;
char memory[kBytes];

// Returns a random range of one to four pieces inside `memory`.
ByteRange any_range(std::mt19937& generator) {
  const auto up_to = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(1, most)(generator); };
  ByteRange range = {"", memory + up_to(8), up_to(6), false};
  range.count = up_to(4);
  range.pitch = range.bytes + up_to(8) - 1;
  return range;
}

std::bitset<kBytes> bytes_of(const ByteRange& range) {
  std::bitset<kBytes> bytes;
  const auto first = static_cast<std::size_t>(static_cast<const char*>(range.begin) - memory);
  for (std::size_t piece = 0; piece < range.count; ++piece) {
    for (std::size_t i = 0; i < range.bytes; ++i) bytes.set(first + piece * range.pitch + i);
  }
  return bytes;
}

TEST(Ranges, OverlapWhereTheyHaveAByteInCommon) {
  std::mt19937 generator(1);
  int overlapping = 0;
  for (int i = 0; i < 100'000; ++i) {
    const ByteRange a = any_range(generator), b = any_range(generator);
    const bool expected = (bytes_of(a) & bytes_of(b)).any();
    ASSERT_EQ(overlap(a, b), expected);
    overlapping += expected;
  }
  EXPECT_GT(overlapping, 10'000);
  EXPECT_LT(overlapping, 90'000);
}

TEST(Ranges, CoverAtMostWhatTheyHave) {
  std::mt19937 generator(2);
  int covered = 0;
  for (int i = 0; i < 100'000; ++i) {
    const ByteRange outer = any_range(generator), inner = any_range(generator);
    if (!covers(outer, inner)) continue;
    ++covered;
    ASSERT_TRUE((bytes_of(inner) & ~bytes_of(outer)).none());
  }
  EXPECT_GT(covered, 1000);
}

}  // namespace
}  // namespace workshop::cpu
#endif
