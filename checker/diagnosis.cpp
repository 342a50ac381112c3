// SPDX-License-Identifier: Apache-2.0
#include "checker/diagnosis.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "common/base/format.h"

namespace workshop::tools {
namespace {

using Values = std::vector<double>;
constexpr double kTolerance = 1e-4;  // generous: that there is a mistake is known, the question is which

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

std::string rounded(double value) { return formatted("%.6g", value); }

bool finite(double value) { return std::isfinite(value); }

std::string not_a_number(const Symptom& s) {
  const Values& m = s.mine.values;
  const auto count = std::ranges::count_if(m, [](double v) { return !finite(v); });
  if (count == 0) return "";
  const auto first = static_cast<std::size_t>(std::ranges::find_if(m, [](double v) { return !finite(v); }) - m.begin());
  const std::string where = count == static_cast<long>(m.size())
                                ? "Every value is NaN or infinite"
                                : std::to_string(count) + " of " + std::to_string(m.size()) +
                                      " values are NaN or infinite, the first at " +
                                      bracketed(place_of(first, s.mine.shape));
  if (s.mine.unwritten == 0) {
    return where + ": that comes from arithmetic, such as 0/0, ∞ − ∞, the exponential of a large number, or the root " +
           "or logarithm of a negative one; or a kernel reads beyond an array, where other data lie.";
  }
  return where + ": they come from memory that was never written (on the cpu backend, cudaMalloc fills it with NaN). " +
         "Is the operation missing, or is its count or its place wrong?";
}

std::string zeros(const Symptom& s) {
  if (!all_zero(s.mine.values) || s.mine.values.empty() || all_zero(s.expected.values)) return "";
  return "Every value is zero: is the result written to a different buffer, multiplied by zero, or cleared afterwards?";
}

// Too far off for rounding, and too close for any other mistake.
std::string nearly(const Symptom& s) {
  if (!same(s.mine.values, s.expected.values) || s.expected.values.size() < 3) return "";
  if (static_cast<double>(s.expected.values.size()) != s.expected.size()) return "";  // the rest may be far off
  if (s.expected_before != nullptr && same(s.mine.values, s.expected_before->values)) return "";  // see stale()
  return "All values are nearly right, but off by more than rounding: is a small constant, such as an epsilon, wrong "
         "or in the wrong place, here or earlier?";
}

// Each rank still has its own part, and the parts should have been combined.
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
  const Values &m = s.mine.values, &e = s.expected.values;
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (!(relative_error(m[i], e[i], s.expected.rms()) <= kTolerance)) wrong.push_back(i);
  }
  const bool at_the_end = !wrong.empty() && wrong.front() > 0 && wrong.size() == m.size() - wrong.front();
  if (at_the_end || (!wrong.empty() && 2 * wrong.size() < m.size())) {
    const bool one = wrong.size() == 1;
    return (one ? "Element " + std::to_string(wrong[0]) + " still has"
                : std::to_string(wrong.size()) + " elements, from " + std::to_string(wrong[0]) + " on, still have") +
           " each rank's own value; the others were combined. Is the count or an offset wrong?";
  }
  return std::string("The ") + (mean ? "mean" : "sum") +
         " over your ranks would be right, but each rank still has its own values: they were not combined. Is the "
         "collective missing, on a different tensor, or not finished when the values are used?";
}

// Explains a factor by the run's options and the tensor's shape: " 4 is --micro-batches here."
std::string quantities(const Symptom& s, double factor) {
  std::vector<std::pair<std::string, double>> known;
  if (s.options != nullptr) {
    for (const char* name :
         {"dp", "pp", "tp", "micro-batches", "accumulation-steps", "batch-size", "chunks", "hybrid", "heads", "width",
          "context", "sequence", "vocabulary", "lr", "outer-lr", "outer-momentum"}) {
      const auto option = s.options->find(name);
      if (option != s.options->end() && option->second > 0)
        known.emplace_back(std::string("--") + name, option->second);
    }
    const auto width = s.options->find("width"), heads = s.options->find("heads");
    if (width != s.options->end() && heads != s.options->end() && heads->second > 0)
      known.emplace_back("the features of a head", width->second / heads->second);
  }
  for (long extent : s.expected.shape) {
    if (extent > 3) known.emplace_back("an extent of the tensor", static_cast<double>(extent));
  }
  const double times = std::max(factor, 1 / factor);
  std::string found;
  for (const bool root : {false, true}) {
    std::string names, number;
    for (const auto& [name, value] : known) {
      const double at_least_one = value < 1 ? 1 / value : value;  // a learning rate, for example
      const double size = root ? std::sqrt(at_least_one) : at_least_one;
      if (!(at_least_one >= 2) || std::abs(times - size) > kTolerance * size || names.find(name) != std::string::npos)
        continue;
      names += (names.empty() ? "" : " and ") + name;
      number = (root ? "√" : "") + rounded(value);
    }
    if (!names.empty()) found += (found.empty() ? " " : ", ") + number + " is " + (root ? "the root of " : "") + names;
  }
  return found.empty() ? "" : found + " here.";
}

// A few equal values may match an unrelated tensor by chance.
bool telling(const Values& values) {
  return values.size() > 2 && std::ranges::adjacent_find(values, std::not_equal_to<>()) != values.end();
}

// Numbers that lie close together also have nearly one quotient.
std::string constant_difference(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() != e.size() || !telling(e) || same(m, e)) return "";
  const double off = m[0] - e[0];
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (!(std::abs(m[i] - e[i] - off) <= kTolerance * std::abs(off))) return "";
  }
  return std::string("Every value is too ") + (off < 0 ? "small" : "large") + " by " + rounded(std::abs(off)) +
         ": was something added or left out, or are these different values altogether?";
}

std::string constant_factor(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  const double squares = std::inner_product(e.begin(), e.end(), e.begin(), 0.0);
  if (m.size() != e.size() || !(squares > 0)) return "";
  const double factor = std::inner_product(m.begin(), m.end(), e.begin(), 0.0) / squares;
  if (!same(m, scaled(e, factor)) || !constant_difference(s).empty()) return "";
  const double tolerance = m.size() < 3 ? 1e-6 : kTolerance;  // any two numbers have some quotient
  const auto is = [&](double value) { return std::abs(factor - value) <= tolerance * std::abs(value); };
  const std::string ranks = std::to_string(s.world), known = quantities(s, factor);
  if (s.world > 1 && is(s.world)) {
    return "Every value is " + ranks + " times what is expected: summed over the " + ranks + " ranks, not averaged" +
           (s.world == 2 ? ", or added twice." : ".") + (known.empty() ? "" : " Or is a factor wrong?" + known);
  }
  if (s.world > 1 && is(1.0 / s.world)) {
    return "Every value is 1/" + ranks + " of what is expected: divided by the number of ranks once too often.";
  }
  if (is(1)) return "";
  if (is(-1)) return "Every value has the wrong sign.";
  if (is(2)) return "Every value is twice what is expected: added twice, or multiplied by 2 once too often." + known;
  if (is(0.5)) return "Every value is half of what is expected: a factor of 2 is missing." + known;
  const bool fraction = std::abs(factor) < 1;
  const double times = fraction ? 1 / factor : factor;
  constexpr double kLargest = 1e6;
  if (std::abs(times) > kLargest && known.empty()) {
    return "Every value is " + std::string(fraction ? "far too small" : "far too large") +
           ": are the values of one type taken for those of another?";
  }
  // Any two numbers have some quotient, but it is a whole number only rarely by chance.
  if (m.size() < 3 && known.empty() && !(std::abs(times - std::round(times)) <= 1e-9 * std::abs(times))) return "";
  const bool is_count = std::abs(times - std::round(times)) <= kTolerance * times;
  const std::string why = !known.empty() ? "." + known
                          : !is_count    ? ": is a factor missing, wrong, or one too many?"
                          : fraction     ? ": is it a mean where a sum belongs, or divided by the wrong count?"
                                         : ": is it a sum where a mean belongs, or is a factor one too many?";
  return "Every value is " + rounded(times) + (fraction ? " times smaller than" : " times") + " what is expected" + why;
}

std::string another_rank(const Symptom& s) {
  for (std::size_t rank = 0; rank < s.expected_by_rank.size(); ++rank) {
    const Tensor* other = s.expected_by_rank[rank];
    if (other == &s.expected || !same(s.mine.values, other->values)) continue;
    return "These are the values that rank " + std::to_string(rank) +
           " should have: is the rank, the root, the peer or the offset wrong?";
  }
  return "";
}

std::string stale(const Symptom& s) {
  if (s.expected_before == nullptr || !same(s.mine.values, s.expected_before->values)) return "";
  return "These are the right values of the step before: not updated, or read before the update finished.";
}

// The right values of something else: a different ring step, micro-batch or unit, or the input of the operation.
std::string elsewhere(const Symptom& s) {
  if (!telling(s.mine.values)) return "";
  for (const Known& other : s.others) {
    // The record holds only the first values of a large tensor; its norm covers the rest.
    if (same(s.mine.values, other.tensor->values) && relative_error(s.mine.l2, other.tensor->l2) <= kTolerance / 10)
      return "These are " + other.name + (other.name.ends_with('?') ? "" : ".");
  }
  return "";
}

// Every row is off by the same row of values, such as a bias.
std::string same_in_every_row(const Symptom& s) {
  if (s.expected.shape.size() != 2 || s.mine.values.size() != s.expected.values.size()) return "";
  const auto cols = static_cast<std::size_t>(s.expected.shape[1]);
  if (cols < 1 || s.mine.values.size() < 3 * cols) return "";
  Values off = s.mine.values, rows;
  std::ranges::transform(off, s.expected.values, off.begin(), std::minus<>());
  for (std::size_t i = 0; i < off.size(); ++i) rows.push_back(off[i % cols]);
  const double size = s.expected.rms();
  if (same(s.mine.values, s.expected.values)) return "";  // then only values that are not recorded differ
  for (std::size_t i = 0; i < off.size(); ++i) {
    if (!(std::abs(off[i] - rows[i]) <= kTolerance * size)) return "";
  }
  return "Every row is off by the same values: is a bias added too often (on every rank?), or not at all?";
}

// The result was added to the old contents of the buffer, or overwrote them.
std::string kept_or_lost(const Symptom& s) {
  for (const Tensor* before : s.mine_before) {
    if (before->values.size() != s.mine.values.size() || all_zero(before->values)) continue;
    if (before->values.size() < 3) continue;  // one or two values match too often by chance
    Values sum = s.expected.values, rest = s.expected.values;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += before->values[i], rest[i] -= before->values[i];
    if (same(s.mine.values, sum))
      return "This is the right result added to what was there before: overwrite it, or clear it first.";
    if (same(s.mine.values, rest))
      return "This is the right result without what was there before: add to it instead of overwriting it.";
  }
  return "";
}

std::string moved(std::size_t by, const Symptom& s, bool forward) {
  std::size_t row = 1;
  for (std::size_t axis = 1; axis < s.expected.shape.size(); ++axis)
    row *= static_cast<std::size_t>(s.expected.shape[axis]);
  const bool rows = s.expected.shape.size() > 1 && row > 1 && by % row == 0;
  const std::size_t count = rows ? by / row : by;
  return "The values are right but " + std::to_string(count) + (rows ? " row" : " element") + (count == 1 ? "" : "s") +
         (forward ? " too far back" : " too far ahead") + ": an offset is wrong.";
}

// The right values, a few places off.
std::string shifted(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() != e.size() || m.size() < 4 || m.size() > 4096) return "";
  for (std::size_t by = 1; by <= m.size() / 2; ++by) {
    const auto n = static_cast<std::ptrdiff_t>(by);
    const Values m_tail(m.begin() + n, m.end()), e_head(e.begin(), e.end() - n);
    if (telling(m_tail) && same(m_tail, e_head)) return moved(by, s, true);
    const Values m_head(m.begin(), m.end() - n), e_tail(e.begin() + n, e.end());
    if (telling(m_head) && same(m_head, e_tail)) return moved(by, s, false);
  }
  return "";
}

// The transpose of the matrix, or of each matrix of a batch.
std::string transposed(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  const std::size_t axes = s.expected.shape.size();
  if (axes < 2 || m.size() != e.size() || static_cast<double>(e.size()) != s.expected.size()) return "";
  const auto rows = static_cast<std::size_t>(s.expected.shape[axes - 2]);
  const auto cols = static_cast<std::size_t>(s.expected.shape[axes - 1]);
  if (rows < 2 || cols < 2) return "";
  Values transpose;
  for (std::size_t matrix = 0; matrix < e.size(); matrix += rows * cols) {
    for (std::size_t j = 0; j < cols; ++j) {
      for (std::size_t i = 0; i < rows; ++i) transpose.push_back(e[matrix + i * cols + j]);
    }
  }
  if (!same(m, transpose)) return "";
  return "This is the transpose of what is expected: row-major and column-major are mixed up, or a matrix product "
         "has its operands swapped.";
}

std::string name_of_axis(const Symptom& s, std::size_t axis) {
  const long extent = s.expected.shape[axis];
  const std::size_t from_behind = s.expected.shape.size() - axis;
  if (from_behind > 2 && s.options != nullptr) {
    const auto heads = s.options->find("heads");
    if (heads != s.options->end() && heads->second == static_cast<double>(extent)) return "head";
  }
  if (s.expected.shape.size() == 1) return "position";
  return from_behind == 1 ? "column" : from_behind == 2 ? "row" : "index " + std::to_string(axis);
}

// For a tensor with the columns of queries, keys and values side by side: which of the three these columns belong to.
std::string third(const Symptom& s, std::size_t axis, long first, long last) {
  const long extent = s.expected.shape[axis], part = extent / 3;
  if (axis + 1 != s.expected.shape.size() || extent % 3 != 0 || s.expected.name.find("quer") == std::string::npos)
    return "";
  if (part == 0 || first / part != last / part) return "";
  constexpr const char* kNames[] = {"queries", "keys", "values"};
  return std::string(", of the ") + kNames[first / part];
}

// Diagnoses only the entries `first` to `last` of an axis: " There: …", or "".
std::string within(const Symptom& s, std::size_t axis, long first, long last) {
  const auto part = [&](const Tensor& whole) {
    Tensor t{whole.name, whole.shape, {}};
    t.shape[axis] = last - first + 1;
    for (std::size_t i = 0; i < whole.values.size(); ++i) {
      const long at = place_of(i, whole.shape)[axis];
      if (at >= first && at <= last) t.values.push_back(whole.values[i]);
    }
    t.l2 = std::sqrt(std::inner_product(t.values.begin(), t.values.end(), t.values.begin(), 0.0));
    return t;
  };
  const Tensor mine = part(s.mine), expected = part(s.expected);
  std::vector<Tensor> before;
  Symptom symptom{mine, expected, s.world};
  symptom.options = s.options;
  for (const Tensor* earlier : s.mine_before) {
    if (earlier->shape == s.mine.shape && earlier->values.size() == s.mine.values.size())
      before.push_back(part(*earlier));
  }
  for (const Tensor& earlier : before) symptom.mine_before.push_back(&earlier);
  for (const auto check : {zeros, constant_factor, transposed, kept_or_lost}) {
    std::string sentence = check(symptom);
    if (sentence.empty()) continue;
    sentence[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(sentence[0])));
    return " There: " + sentence;
  }
  return "";
}

// One contiguous part of the tensor is wrong, and the rest is right.
std::string wrong_part(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() != e.size() || static_cast<double>(e.size()) != s.expected.size()) return "";
  const double rms = s.expected.rms();
  for (std::size_t axis = 0; axis < s.expected.shape.size(); ++axis) {
    const long extent = s.expected.shape[axis];
    std::vector<long> wrong;
    for (std::size_t i = 0; i < m.size(); ++i) {
      if (!(relative_error(m[i], e[i], rms) <= kTolerance)) wrong.push_back(place_of(i, s.expected.shape)[axis]);
    }
    std::ranges::sort(wrong);
    wrong.erase(std::unique(wrong.begin(), wrong.end()), wrong.end());
    if (wrong.empty() || static_cast<long>(wrong.size()) == extent ||
        wrong.back() - wrong.front() + 1 != static_cast<long>(wrong.size()))
      continue;
    const bool one = wrong.size() == 1;
    return "Only " + name_of_axis(s, axis) + (one ? " " : "s ") + std::to_string(wrong.front()) +
           (one ? "" : " to " + std::to_string(wrong.back())) + " (of 0 to " + std::to_string(extent - 1) + ")" +
           (one ? " is wrong" : " are wrong") + third(s, axis, wrong.front(), wrong.back()) + "." +
           within(s, axis, wrong.front(), wrong.back());
  }
  return "";
}

// Counts the wrong values, for when no mistake fits.
std::string how_many(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() != e.size() || m.size() < 2) return "";
  const double rms = s.expected.rms();
  int wrong = 0;
  bool should_be_zero = true, are_zero = true;
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (relative_error(m[i], e[i], rms) <= kTolerance) continue;
    ++wrong;
    should_be_zero = should_be_zero && e[i] == 0;
    are_zero = are_zero && m[i] == 0;
  }
  if (wrong == 0) return "";
  const bool all = static_cast<double>(e.size()) == s.expected.size();
  const std::string which = wrong == 1 ? " That one" : " All of these";
  if (all && wrong == static_cast<int>(m.size()) && !should_be_zero && !are_zero) {
    return "All " + std::to_string(wrong) +
           " values differ. They are no multiple of what is expected, not moved or in "
           "another order, and not those of another " +
           (s.world > 1 ? "rank or " : "") + "step.";
  }
  return std::to_string(wrong) + (all ? " of " : " of the first ") + std::to_string(m.size()) + " values differ." +
         (should_be_zero ? which + " should be zero: does a condition let too much through?"
          : are_zero     ? which + (wrong == 1 ? " is" : " are") + " zero: does a condition leave too much out?"
                         : "");
}

std::string only_a_part(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() != e.size()) return "";
  std::vector<bool> right;
  for (std::size_t i = 0; i < m.size(); ++i) right.push_back(relative_error(m[i], e[i]) <= kTolerance);
  const auto wrong = std::ranges::find(right, false);
  const auto count = wrong - right.begin();
  if (count < 1 || m.size() < 4 || wrong == right.end() || std::find(wrong, right.end(), true) != right.end())
    return "";
  // As many as a number of elements would give that is taken for one of bytes.
  const bool bytes =
      count > 1 && std::abs(static_cast<double>(count) * sizeof(float) - s.expected.size()) < sizeof(float);
  return "The first " + std::to_string(count) + " of " + std::to_string(m.size()) +
         " values are right and all others wrong: is a count or an offset wrong?" +
         (bytes ? " NCCL counts elements; cudaMemcpy and cudaMemset count bytes." : "");
}

std::string reordered(const Symptom& s) {
  Values m = s.mine.values, e = s.expected.values;
  if (same(m, e)) return "";  // then only values that are not recorded differ
  std::ranges::sort(m);
  std::ranges::sort(e);
  if (m.size() < 2 || !same(m, e)) return "";
  return std::string("These are the right values in a different order: is an offset, ") +
         (s.world > 1 ? "a chunk or the order of the ranks" : "a stride or an index") +
         " wrong, or were two exchanged?";
}

}  // namespace

std::vector<long> place_of(std::size_t position, const std::vector<long>& shape) {
  std::vector<long> index(shape.size());
  auto rest = static_cast<long>(position);
  for (std::size_t axis = shape.size(); axis-- > 0; rest /= std::max(shape[axis], 1L)) {
    index[axis] = rest % std::max(shape[axis], 1L);
  }
  return index;
}

std::string bracketed(const std::vector<long>& list) {
  std::string result = "[";
  for (long value : list) result += (result.size() > 1 ? ", " : "") + std::to_string(value);
  return result + "]";
}

std::string diagnose(const Symptom& symptom) {
  if (symptom.expected.integers) return diagnose_integers(symptom);
  for (const auto check :
       {not_a_number, zeros, nearly, not_combined, constant_factor, another_rank, stale, elsewhere, transposed,
        only_a_part, reordered, shifted, kept_or_lost, same_in_every_row, constant_difference, wrong_part}) {
    const std::string sentence = check(symptom);
    if (!sentence.empty()) return sentence;
  }
  return how_many(symptom);
}

}  // namespace workshop::tools
