// SPDX-License-Identifier: Apache-2.0
// Each kernel as a plain function and with emulated threads: the results must be the same, up to the order of sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "checker/emulated_gpu/emulated_gpu.h"
#include "values.h"

namespace kernels_as_functions {
kernel_test::Cases cases();
}
namespace kernels_as_functions_bf16 {
kernel_test::Cases cases();
}
namespace kernels_as_threads {
kernel_test::Cases cases();
}
namespace kernels_as_threads_bf16 {
kernel_test::Cases cases();
}

namespace kernel_test {
namespace {

const struct {
  const char* precision;
  Cases functions, threads;
} kPrecisions[] = {
    {"float32", kernels_as_functions::cases(), kernels_as_threads::cases()},
    {"bf16", kernels_as_functions_bf16::cases(), kernels_as_threads_bf16::cases()},
};

struct Worst {
  std::string of;
  double part = 0;  // of the bound
};

// Returns what is different, or nothing. Values that depend on the order of a sum must both be within the bound.
std::string compare(const char* name, const Values& plain, const Values& threads, Worst& worst) {
  const std::vector<Expected> sums = expected(name, plain);
  for (std::size_t a = 0; a < plain.arrays().size(); ++a) {
    const Values::Array &x = plain.arrays()[a], &y = threads.arrays()[a];
    if (x.count != y.count) return "the arguments differ";
    const std::vector<Approximate>* bound = nullptr;
    for (const Expected& one : sums) {
      if (one.name == x.name) bound = &one.values;
    }
    if (bound == nullptr) {
      if (x.memory == y.memory) continue;
      for (std::size_t i = 0; i < x.count; ++i) {
        if (std::memcmp(x.data + i * x.element(), y.data + i * x.element(), x.element()) == 0) continue;
        return x.name + "[" + std::to_string(i) + "] is " + std::to_string(x[i]) + " as a function, " +
               std::to_string(y[i]) + " with threads";
      }
      return "something is written beside " + x.name;
    }
    if (bound->size() != x.count) return "the reference has the wrong size";
    for (std::size_t i = 0; i < x.count; ++i) {
      const auto [value, error] = (*bound)[i];
      for (const auto& [kind, found] : {std::pair{"as a function", x[i]}, {"with threads", y[i]}}) {
        if (!(std::fabs(found - value) <= error) || std::isinf(error)) {
          return x.name + "[" + std::to_string(i) + "] is " + std::to_string(found) + " " + kind + ", not " +
                 std::to_string(value) + " ± " + std::to_string(error);
        }
        if (error > 0 && !(std::fabs(found - value) / error <= worst.part)) {
          worst = {name, std::fabs(found - value) / error};
        }
      }
    }
  }
  return "";
}

void check(const Shape& shape, Worst& worst, const char* only = nullptr) {
  for (const auto& [precision, functions, threads] : kPrecisions) {
    if (only != nullptr && only != std::string(precision)) continue;
    ASSERT_EQ(functions.count, threads.count);
    for (std::size_t i = 0; i < functions.count; ++i) {
      Values plain(shape, false), emulated(shape, true);
      std::string wrong;
      functions.begin[i].run(plain);
      try {
        threads.begin[i].run(emulated);
        ASSERT_GT(emulated_gpu::accesses(), 0u) << threads.begin[i].name << " is not watched";
        wrong = compare(functions.begin[i].name, plain, emulated, worst);
      } catch (const emulated_gpu::Fault& fault) {
        wrong = fault.what();
      }
      ASSERT_EQ(wrong, "") << functions.begin[i].name << " in " << precision << ", " << shape.rows << " rows, "
                           << shape.columns << " columns, seed " << shape.seed << ", at most " << shape.most_blocks
                           << " blocks, order " << shape.order;
    }
  }
}

// How many random shapes are tested. The ordinary test has a few hundred, and fewer large shapes.
const int kRandomShapes = [] {
  const char* count = std::getenv("WORKSHOP_RANDOM_SHAPES");
  return count != nullptr ? std::atoi(count) : 200;
}();
const bool kSoak = kRandomShapes > 1000;

// Sizes at which the lanes of a warp, the threads of a block or eight columns are just used up.
TEST(Kernels, EdgesOfWarpsAndBlocks) {
  Worst worst;
  std::uint64_t seed = 0;
  for (const int rows : {1, 31, 32, 33, 1023, 1025}) {
    for (const int columns : {1, 31, 32, 33, 1023, 1025}) {
      if (rows > 33 && columns > 33 && !kSoak) continue;
      ++seed;
      check({rows, columns, seed, seed / 2 % 2 == 0 ? 4096 : 3, static_cast<int>(seed % 3)}, worst,
            kSoak ? nullptr : kPrecisions[seed % 2].precision);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Kernels, LargeVocabulary) {
  Worst worst;
  check({2, 50257, 7, 4096, 2}, worst, kSoak ? nullptr : "float32");
}

TEST(Kernels, LargeMatrix) {
  Worst worst;
  check({1025, 257, 7, 100, 0}, worst, kSoak ? nullptr : "bf16");
}

// A word may fill most places of a batch. A sum of that many bfloat16s would stop growing at 256 times a term, so the
// kernels add up in float32 and round once.
TEST(Kernels, FrequentWords) {
  int most = 0;
  for (const auto& [precision, functions, threads] : kPrecisions) {
    const Case* backward = std::find_if(functions.begin, functions.begin + functions.count,
                                        [](const Case& c) { return c.name == std::string("embedding_backward"); });
    const double rounding = precision == std::string("bf16") ? 1.0 / 256 : 1.0 / (1 << 24);
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      Values values({50000, 3, seed}, false);
      backward->run(values);
      const Values::Array &tokens = values.array("tokens"), &dy = values.array("dy"),
                          &gradients = values.array("gradients of words");
      std::map<int, std::vector<int>> rows_of;
      for (int row = 0; row < values.rows; ++row) rows_of[static_cast<int>(tokens[row])].push_back(row);
      const int first = static_cast<int>(values.scalar("first word"));
      for (const auto& [word, rows] : rows_of) {
        if (word < first || (word - first + 1) * 3 > static_cast<int>(gradients.count)) continue;
        most = std::max(most, static_cast<int>(rows.size()));
        for (int column = 0; column < 3; ++column) {
          const int place = (word - first) * 3 + column;
          double sum = gradients.at_begin(place), magnitudes = std::fabs(sum);
          for (const int row : rows) {
            sum += dy[row * 3 + column];
            magnitudes += std::fabs(dy[row * 3 + column]);
          }
          const double bound = static_cast<double>(rows.size()) / (1 << 24) * magnitudes + rounding * std::fabs(sum);
          ASSERT_TRUE(std::fabs(gradients[place] - sum) <= bound)
              << precision << ", seed " << seed << ": " << gradients[place] << ", not " << sum << " ± " << bound;
        }
      }
    }
  }
  EXPECT_GT(most, 45000);
}

TEST(Kernels, RandomShapes) {
  Worst worst;
  Values draw({1, 1, 1}, false);
  for (int i = 0; i < kRandomShapes; ++i) {
    // Sizes of all magnitudes, up to 4,096 elements, and in one of 100 cases 16 times as many.
    const int most = draw.random(100) == 0 ? 1 << 16 : 1 << 12;
    const int limit = 1 << draw.random(11);
    const int rows = 1 + draw.random(limit);
    const int columns = 1 + draw.random(most / rows < 1 ? 1 : std::min(most / rows, 1 << draw.random(15)));
    check({rows, columns, static_cast<std::uint64_t>(1000 + i), 1 << draw.random(13), draw.random(3)}, worst,
          kPrecisions[i % 2].precision);
    if (HasFatalFailure()) return;
  }
  std::printf("%d shapes; largest error: %.3f of the bound, of %s\n", kRandomShapes, worst.part, worst.of.c_str());
}

}  // namespace
}  // namespace kernel_test
