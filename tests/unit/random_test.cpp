// SPDX-License-Identifier: Apache-2.0
// The random numbers of common/base/random.h against those of PyTorch 2.15 (the same in 1.13), bit for bit where
// PyTorch's results do not depend on the processor. The values are float.hex() of the tensors named in each test.
#include "common/base/random.h"

#include <gtest/gtest.h>

#include <vector>

namespace workshop {
namespace {

using Floats = std::vector<float>;

Floats uniform(Generator& generator, std::size_t count, double from = 0, double to = 1) {
  Floats values(count);
  generator.uniform(values.data(), count, from, to);
  return values;
}

Floats randn(Generator& generator, std::size_t count) {
  Floats values(count);
  generator.randn(values.data(), count);
  return values;
}

// PyTorch's vectorized logarithm, sine and cosine round differently from the C library's.
void expect_near(const Floats& expected, const Floats& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(expected[i], got[i], 1e-6f) << "at " << i;
}

TEST(Generator, DrawsUniformsOfASeed) {
  Generator generator(0);
  EXPECT_EQ(uniform(generator, 4), (Floats{0x1.fc2abp-2f, 0x1.89545ep-1f, 0x1.6a675p-4f, 0x1.0e66p-3f}));
}

TEST(Generator, StartsFromTheDefaultSeedOfTorchGenerator) {
  Generator generator(67280421310721ull);
  EXPECT_EQ(uniform(generator, 4), (Floats{0x1.11b5d8p-2f, 0x1.bebc08p-1f, 0x1.5755f4p-2f, 0x1.9cb03p-2f}));
}

TEST(Generator, UsesTheLow32BitsOfTheSeed) {
  const Floats expected = {0x1.a916c6p-1f, 0x1.02467p-3f, 0x1.d09fdep-1f};
  Generator small(5), large((1ull << 32) + 5), largest(~0ull);
  EXPECT_EQ(uniform(small, 3), expected);
  EXPECT_EQ(uniform(large, 3), expected);
  EXPECT_EQ(uniform(largest, 2), (Floats{0x1.fcd346p-1f, 0x1.248244p-1f}));
}

TEST(Generator, ScalesUniformsWithOneRounding) {
  Generator generator(1);
  EXPECT_EQ(uniform(generator, 6, -0.3, 0.7),
            (Floats{0x1.d49d6p-2f, -0x1.52f88p-6f, 0x1.a62bfp-4f, 0x1.bd1decp-2f, -0x1.153738p-2f, 0x1.ffdafp-2f}));
}

TEST(Generator, PutsTheFirstDrawOfA64BitNumberHigh) {
  Generator halves(1), whole(1);
  const std::uint64_t high = halves.random32();
  EXPECT_EQ(whole.random64(), high << 32 | halves.random32());
}

TEST(Randn, KeepsTheSecondNormalOfAPairForTheNextCall) {
  Generator generator(12345);
  EXPECT_EQ(randn(generator, 5),
            (Floats{0x1.6d586cp0f, -0x1.debe2ap0f, -0x1.323ad8p0f, -0x1.05a032p1f, -0x1.d2ef32p-2f}));
  EXPECT_EQ(randn(generator, 0), Floats{});
  EXPECT_EQ(randn(generator, 3), (Floats{-0x1.6df078p0f, -0x1.6f60bcp-1f, 0x1.64672cp0f}));
  EXPECT_EQ(randn(generator, 1), (Floats{0x1.4c07dcp-4f}));
}

TEST(Randn, KeepsTheSecondNormalWhileOtherNumbersAreDrawn) {
  Generator generator(12345);
  randn(generator, 9);
  EXPECT_EQ(uniform(generator, 1), (Floats{0x1.a8f34p-2f}));
  EXPECT_EQ(randn(generator, 2), (Floats{-0x1.318eaap0f, -0x1.fca322p0f}));
}

TEST(Randn, ForgetsTheSecondNormalWhenSeeded) {
  Generator generator(12345);
  randn(generator, 1);
  generator.manual_seed(7);
  EXPECT_EQ(randn(generator, 2), (Floats{-0x1.2ca2e8p-3f, 0x1.92811cp-1f}));
}

TEST(Randn, TransformsSixteenValuesAsOneBlock) {
  Generator generator(3);
  expect_near({-0x1.39ef5ep-4f, 0x1.7084c8p-2f, -0x1.906482p-1f, 0x1.24fa44p-4f, 0x1.5465d4p-1f, -0x1.25a9bcp-2f,
               0x1.9edc6ap0f, -0x1.98c1dcp0f, -0x1.a75ed6p-5f, -0x1.3951b2p-2f, 0x1.fcee7cp-3f, -0x1.c7cdfap-3f,
               0x1.d388a6p-1f, 0x1.a27d98p-3f, 0x1.25e152p-1f, 0x1.aa52cp-2f},
              randn(generator, 16));
  EXPECT_EQ(uniform(generator, 1), (Floats{0x1.67a3b8p-3f}));  // the calls above drew 16 numbers, no more
}

TEST(Randn, DrawsTheLastBlockAnewWhereSixteenDoesNotDivideTheCount) {
  Generator generator(3);
  expect_near(
      {-0x1.39ef5ep-4f, 0x1.7084c8p-2f, -0x1.906482p-1f, -0x1.a6d38cp0f, 0x1.0bc826p0f, 0x1.0b5c18p-1f, -0x1.55a00ap-3f,
       0x1.b2731ap-5f, 0x1.9e5156p-2f, 0x1.38fc44p-1f, 0x1.8551e4p-1f, -0x1.31faep0f, 0x1.feefbp-1f, 0x1.d63366p-2f,
       0x1.37dbdcp1f, -0x1.2ca9c4p-3f, 0x1.f0c1bap-2f, 0x1.a451ecp-3f, 0x1.5a8cecp-2f},
      randn(generator, 19));
  EXPECT_EQ(uniform(generator, 1), (Floats{0x1.040d68p-2f}));  // the calls above drew 19 + 16 numbers
}

TEST(Randn, IsStandardNormal) {
  Generator generator(1);
  const Floats values = randn(generator, 1000000);
  double sum = 0, squares = 0;
  for (double value : values) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 1e6, 0, 5e-3);
  EXPECT_NEAR(squares / 1e6, 1, 1e-2);
}

TEST(Randperm, ShufflesFromTheFront) {
  Generator generator(9);
  EXPECT_EQ(generator.randperm(10), (std::vector<int>{0, 5, 8, 7, 6, 2, 9, 1, 4, 3}));
  EXPECT_EQ(generator.randperm(1), std::vector<int>{0});
  EXPECT_EQ(generator.randperm(2), (std::vector<int>{1, 0}));
  EXPECT_EQ(generator.randperm(0), std::vector<int>{});
  const std::vector<int> large = generator.randperm(1000);
  EXPECT_EQ(std::vector<int>(large.begin(), large.begin() + 6), (std::vector<int>{358, 812, 135, 545, 890, 165}));
  EXPECT_EQ(std::vector<int>(large.end() - 6, large.end()), (std::vector<int>{931, 919, 686, 527, 252, 563}));
  EXPECT_EQ(uniform(generator, 1), (Floats{0x1.ca185cp-2f}));  // n - 1 draws each, none for n < 2
}

TEST(InitLinear, FillsTheModelOfTheCourse) {
  Generator generator(67280421310721ull);
  Floats weight(24), bias(4);
  init_linear(generator, 6, 4, weight.data(), bias.data());
  EXPECT_EQ(Floats(weight.begin(), weight.begin() + 6), (Floats{-0x1.85201cp-3f, 0x1.3777d8p-2f, -0x1.136d76p-3f,
                                                                -0x1.4459d4p-4f, 0x1.e01e04p-3f, -0x1.1b9268p-5f}));
  EXPECT_EQ(Floats(weight.end() - 6, weight.end()), (Floats{0x1.1ed5b6p-2f, 0x1.97ed2ep-2f, 0x1.8e0782p-5f,
                                                            -0x1.ac78aap-5f, -0x1.3757b6p-2f, -0x1.7539b8p-3f}));
  EXPECT_EQ(bias, (Floats{0x1.ab62a6p-3f, -0x1.29521ep-5f, -0x1.4bfa36p-2f, 0x1.cf576p-3f}));

  weight.resize(8), bias.resize(2);
  init_linear(generator, 4, 2, weight.data(), bias.data());
  EXPECT_EQ(weight, (Floats{0x1.d51d08p-2f, 0x1.11a418p-3f, -0x1.014414p-2f, 0x1.6e62ecp-2f, 0x1.8c4124p-2f,
                            -0x1.cf105p-2f, -0x1.71a0d4p-2f, -0x1.95bf7p-2f}));
  EXPECT_EQ(bias, (Floats{-0x1.85996p-4f, -0x1.88808p-5f}));
}

TEST(InitLinear, ScalesWithTheInputs) {
  Generator generator(1);
  Floats weight(3000), bias(3);
  init_linear(generator, 1000, 3, weight.data(), bias.data());
  EXPECT_EQ(Floats(weight.begin(), weight.begin() + 2), (Floats{0x1.0af636p-6f, -0x1.c95cep-7f}));
  EXPECT_EQ(Floats(weight.end() - 2, weight.end()), (Floats{0x1.dc9fd8p-7f, -0x1.4747fap-6f}));
  EXPECT_EQ(bias, (Floats{0x1.448274p-7f, -0x1.072d76p-10f, 0x1.86151ep-6f}));

  generator.manual_seed(1);
  init_linear(generator, 1, 1, weight.data(), bias.data());
  EXPECT_EQ(weight[0], 0x1.07d094p-1f);
  EXPECT_EQ(bias[0], -0x1.c3f8a8p-2f);
}

// Steele's SplitMix64 from seed 0. It advances its state by the step before each draw.
TEST(SplitMix64, DrawsTheSequenceOfItsReference) {
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(splitmix64(kSplitMix64Step), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(splitmix64(2 * kSplitMix64Step), 0x06c45d188009454fu);
}

}  // namespace
}  // namespace workshop
