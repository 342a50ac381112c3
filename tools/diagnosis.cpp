// SPDX-License-Identifier: Apache-2.0
#include "tools/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/run/text.h"

namespace workshop::tools {
namespace {

using Values = std::vector<double>;
constexpr double kTolerance = 1e-4;  // generous: the question is which mistake was made, not whether

bool same(const Values& a, const Values& b) {
  if (a.size() != b.size() || a.empty()) return false;
  const double rms = std::sqrt(std::inner_product(b.begin(), b.end(), b.begin(), 0.0) / static_cast<double>(b.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(relative_error(a[i], b[i], rms) <= kTolerance)) return false;
  }
  return true;
}

bool all_zero(const Values& values) {
  return std::ranges::all_of(values, [](double v) { return v == 0; });
}

Values scaled(Values values, double factor) {
  for (double& v : values) v *= factor;
  return values;
}

std::string text(double value) { return formatted("%.6g", value); }

std::string not_a_number(const Symptom& s) {
  const auto count = std::ranges::count_if(s.mine.values, [](double v) { return !std::isfinite(v); });
  if (count == 0) return "";
  const auto first = std::ranges::find_if(s.mine.values, [](double v) { return !std::isfinite(v); });
  const std::size_t total = s.mine.values.size();
  const std::string where = count == static_cast<long>(total)
                                ? "Every value is NaN or infinite"
                                : std::to_string(count) + " of " + std::to_string(total) +
                                      " values are NaN or infinite, the first at position " +
                                      std::to_string(first - s.mine.values.begin());
  return where +
         ": that is memory which nothing wrote (on the cpu backend cudaMalloc fills with NaN). Is the operation "
         "missing, is its count too small, or does a stream read before another has written: an event or a wait "
         "too few?";
}

std::string zeros(const Symptom& s) {
  if (!all_zero(s.mine.values) || s.mine.values.empty() || all_zero(s.expected.values)) return "";
  return "Every value is zero: is the result written to another buffer, multiplied by zero, or cleared afterwards?";
}

// Each rank still has its own part of what should have been combined.
std::string not_combined(const Symptom& s) {
  if (s.world < 2 || static_cast<int>(s.mine_by_rank.size()) != s.world) return "";
  Values sum(s.expected.values.size());
  bool alike = true;
  for (const Tensor* tensor : s.mine_by_rank) {
    if (tensor->values.size() != sum.size()) return "";
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += tensor->values[i];
    alike = alike && same(tensor->values, s.mine.values);
  }
  if (alike) return "";
  const bool mean = same(scaled(sum, 1.0 / s.world), s.expected.values);
  if (!mean && !same(sum, s.expected.values)) return "";
  return std::string("The ") + (mean ? "mean" : "sum") +
         " over your ranks would be right, but each rank still has its own values: they were not combined. Is the "
         "collective missing, on another tensor, or not done yet when the values are used?";
}

std::string constant_factor(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  const double squares = std::inner_product(e.begin(), e.end(), e.begin(), 0.0);
  if (m.size() != e.size() || !(squares > 0)) return "";
  const double factor = std::inner_product(m.begin(), m.end(), e.begin(), 0.0) / squares;
  if (!same(m, scaled(e, factor))) return "";
  const auto is = [factor](double value) { return std::abs(factor - value) <= kTolerance * std::abs(value); };
  const std::string ranks = std::to_string(s.world);
  if (s.world > 1 && is(s.world)) {
    return "Every value is " + ranks + " times what is expected: summed over the " + ranks + " ranks, not averaged" +
           (s.world == 2 ? ", or added twice." : ".");
  }
  if (s.world > 1 && is(1.0 / s.world)) {
    return "Every value is 1/" + ranks + " of what is expected: divided by the number of ranks once too often.";
  }
  if (is(-1)) return "Every value has the wrong sign.";
  if (is(2)) return "Every value is twice what is expected: added twice, or a factor 2 too many.";
  if (is(0.5)) return "Every value is half of what is expected: a factor 2 is missing.";
  if (m.size() < 3) return "";  // some factor fits any two numbers too often
  const bool fraction = std::abs(factor) < 1;
  return "Every value is " + text(fraction ? 1 / factor : factor) + (fraction ? " times smaller than" : " times") +
         " what is expected: is it a mean where a sum belongs, or divided by another count?";
}

std::string another_rank(const Symptom& s) {
  for (std::size_t rank = 0; rank < s.expected_by_rank.size(); ++rank) {
    const Tensor* other = s.expected_by_rank[rank];
    if (other == &s.expected || !same(s.mine.values, other->values)) continue;
    return "These are the values that rank " + std::to_string(rank) +
           " should have: is the rank, the root, the peer or the offset another one?";
  }
  return "";
}

std::string stale(const Symptom& s) {
  if (s.expected_before == nullptr || !same(s.mine.values, s.expected_before->values)) return "";
  return "These are the right values of the step before: not updated, or read before the update was done.";
}

std::string transposed(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (s.expected.shape.size() != 2 || static_cast<double>(e.size()) != s.expected.size()) return "";
  const auto rows = static_cast<std::size_t>(s.expected.shape[0]), cols = static_cast<std::size_t>(s.expected.shape[1]);
  if (rows < 2 || cols < 2) return "";
  Values transpose;
  for (std::size_t j = 0; j < cols; ++j) {
    for (std::size_t i = 0; i < rows; ++i) transpose.push_back(e[i * cols + j]);
  }
  if (!same(m, transpose)) return "";
  return "This is the transpose of what is expected: row-major and column-major are mixed up, or a matrix product "
         "has its operands swapped.";
}

std::string only_a_part(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() != e.size()) return "";
  std::vector<bool> right;
  for (std::size_t i = 0; i < m.size(); ++i) right.push_back(relative_error(m[i], e[i]) <= kTolerance);
  const auto wrong = std::ranges::find(right, false);
  const auto count = wrong - right.begin();
  if (count < 1 || m.size() < 4 || std::find(wrong, right.end(), true) != right.end()) return "";
  return "The first " + std::to_string(count) + " of " + std::to_string(m.size()) +
         " values are right and all others wrong: is a count or an offset too small? Counts are elements, not bytes.";
}

std::string reordered(const Symptom& s) {
  Values m = s.mine.values, e = s.expected.values;
  std::ranges::sort(m);
  std::ranges::sort(e);
  if (m.size() < 2 || !same(m, e)) return "";
  return "These are the right values in another order: an offset, a chunk or the order of the ranks is wrong.";
}

}  // namespace

std::string diagnose(const Symptom& symptom) {
  for (const auto check :
       {not_a_number, zeros, not_combined, constant_factor, another_rank, stale, transposed, only_a_part, reordered}) {
    const std::string sentence = check(symptom);
    if (!sentence.empty()) return sentence;
  }
  return "";
}

}  // namespace workshop::tools
