// SPDX-License-Identifier: Apache-2.0
// Diagnoses integers that the host computed: ranks, counts, offsets, flags.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "checker/diagnosis.h"
#include "common/base/format.h"

namespace workshop::tools {
namespace {

using Values = std::vector<double>;

// Splits "a, b and c".
std::vector<std::string> parts_of(std::string list) {
  std::vector<std::string> parts;
  for (std::size_t end; !list.empty(); list.erase(0, end)) {
    std::size_t length = 2;
    end = list.find(", ");
    if (const std::size_t last = list.find(" and "); last < end) {
      end = last;
      length = 5;
    }
    parts.push_back(list.substr(0, end));
    end = end == std::string::npos ? list.size() : end + length;
  }
  return parts;
}

bool has_one_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::ranges::any_of(words, [&](const char* word) { return text.find(word) != std::string::npos; });
}

// Whether these numbers are answers, yes or no.
bool is_flag(const std::string& name) { return has_one_of(name, {"1 if ", "whether", ": accumulate"}); }

std::string exact(double value) { return formatted("%.10g", value); }

// The names of a list's entries, taken from its own name: "unit, backward and gather of each pass" gives the parts and
// "pass"; "first layer of each rank, and the number of layers" also gives the name of the last entry.
struct Entries {
  std::vector<std::string> parts;
  std::string each;  // empty if the parts are not repeated
  std::string last;  // name of an extra last entry, if there is one
};

Entries entries_of(const Tensor& list) {
  std::string name = list.name, each, last;
  if (const std::size_t colon = name.rfind(": "); colon != std::string::npos) name.erase(0, colon + 2);
  if (const std::size_t of = name.find(" of each "); of != std::string::npos) {
    each = name.substr(of + 9);
    name.erase(of);
  }
  if (const std::size_t and_ = each.find(", and "); and_ != std::string::npos) {
    last = each.substr(and_ + 6);
    each.erase(and_);
  }
  return {parts_of(name), each, last};
}

// The first few of a list, "1, 3, 5, …".
std::string beginning(const Values& list) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(list.size(), 3); ++i) text += (i == 0 ? "" : ", ") + exact(list[i]);
  return text + (list.size() > 3 ? ", …" : "");
}

// The numbers of a plain list that only one side has. Their order does not matter.
std::string not_in_both(const Symptom& s) {
  Values m = s.mine.values, e = s.expected.values, missing, extra;
  std::ranges::sort(m);
  std::ranges::sort(e);
  std::ranges::set_difference(e, m, std::back_inserter(missing));
  std::ranges::set_difference(m, e, std::back_inserter(extra));
  return (missing.empty() ? "" : " It lacks " + beginning(missing) + ".") +
         (extra.empty()
              ? ""
              : " It has " + beginning(extra) + (extra.size() == 1 ? ", which is" : ", which are") + " not expected.");
}

std::string other_length(const Symptom& s) {
  const auto m = static_cast<long>(s.mine.values.size()), e = static_cast<long>(s.expected.values.size());
  if (m == e) return "";
  const auto [parts, each, last] = entries_of(s.expected);
  const auto size = each.empty() ? 1L : static_cast<long>(parts.size());
  const bool whole = std::abs(m - e) % size == 0;
  const long off = std::abs(m - e) / (whole ? size : 1);
  const std::string what = whole && !each.empty() ? each : "number";
  const std::string plural = what.ends_with("s") || what.ends_with("ch") ? "es" : "s";
  return "Your list has " + std::to_string(off) + " " + what + (off == 1 ? "" : plural) +
         (m > e ? " too many." : " too few.") + (each.empty() ? not_in_both(s) : "");
}

// Every entry is off by the same number.
std::string all_off_by(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  const double off = m[0] - e[0];
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (m[i] - e[i] != off) return "";
  }
  if (m.size() < 2 && std::abs(off) != 1) return "";
  // A single number may be a flag, a rank or a place in a list, which count nothing.
  const std::string& name = s.expected.name;
  const bool is_count = has_one_of(name, {"number of", "samples", "steps", "rows", "bytes", "values", "elements",
                                          "parameters", "batches", "layers", "calls", "gathers", "messages", "events"});
  if (m.size() == 1 && (is_flag(name) || !is_count || m[0] < 0)) return "";
  const std::string entries = m.size() == 1 ? "It is " : "Every entry is ";
  const std::string size = exact(std::abs(off)) + (off > 0 ? " too large" : " too small");
  if (std::abs(off) != 1) return entries + size + ".";
  return entries + size +
         (off > 0 ? ": does a count begin at 1, or is one too many?"
                  : ": does a count begin at 0, or is one left out?");
}

std::string inverted(const Symptom& s) {
  if (s.mine.values.size() < 2) return "";  // a single wrong flag does not show that all would be inverted
  for (std::size_t i = 0; i < s.mine.values.size(); ++i) {
    const double m = s.mine.values[i], e = s.expected.values[i];
    if ((e != 0 && e != 1) || m != 1 - e) return "";
  }
  return "Every entry is the opposite of what is expected: is a condition inverted?";
}

// Every entry that is not zero is off by the same factor. A list of several entries needs two that are not zero,
// because one could match by chance.
std::string all_times(const Symptom& s) {
  const Values &m = s.mine.values, &e = s.expected.values;
  if (m.size() > 1 && std::ranges::count_if(e, [](double x) { return x != 0; }) < 2) return "";
  double factor = 0;
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (e[i] == 0 && m[i] == 0) continue;
    if (e[i] == 0 || m[i] == 0 || (factor != 0 && m[i] != factor * e[i])) return "";
    factor = m[i] / e[i];
  }
  if (factor <= 0 || factor == 1) return "";
  const double times = std::max(factor, 1 / factor);
  std::string why;
  const bool counts_calls = has_one_of(s.expected.name, {"so far", "calls", "times"});
  if (times == s.world && !counts_calls)
    why = ", the number of ranks: is a part taken for the whole, or the other way around?";
  if (times == sizeof(float) && s.world != times) why = ": bytes where elements are counted, or the other way around?";
  const bool is_small = m.size() == 1 && std::max(m[0], e[0]) <= 4;  // it may be the number of a kind of copy
  if (m.size() == 1 && (why.empty() || is_small)) return "";         // any two numbers have some quotient
  return "Every entry is " + exact(times) + (factor > 1 ? " times too large" : " times too small") +
         (why.empty() ? "." : why);
}

std::string of_another_rank(const Symptom& s) {
  // -1, "none", fits many ranks, and so does yes or no.
  if (is_flag(s.expected.name) || std::ranges::all_of(s.mine.values, [](double x) { return x < 0; })) return "";
  for (std::size_t rank = 0; rank < s.expected_by_rank.size(); ++rank) {
    const Tensor* other = s.expected_by_rank[rank];
    if (other == &s.expected || other->values != s.mine.values) continue;
    return "This is what rank " + std::to_string(rank) + " should have.";
  }
  return "";
}

std::string other_order(const Symptom& s) {
  Values m = s.mine.values, e = s.expected.values;
  std::ranges::sort(m);
  std::ranges::sort(e);
  const bool flags = !e.empty() && e.back() <= 1;  // two lists of yes and no are easily alike
  return m.size() > 1 && m == e && !flags ? "These are the right numbers in a different order." : "";
}

std::string wrong_entries(const Symptom& s) {
  std::string list;
  int wrong = 0;
  for (std::size_t i = 0; i < s.mine.values.size(); ++i) {
    if (s.mine.values[i] == s.expected.values[i] || ++wrong > 3) continue;
    const std::string name = name_of_entry(s.expected, i);
    list += (list.empty() ? "" : ", ") + (name.empty() ? "[" + std::to_string(i) + "]" : name) + " is " +
            exact(s.mine.values[i]) + ", expected " + exact(s.expected.values[i]);
  }
  if (wrong < 2) return "";
  return std::to_string(wrong) + " of " + std::to_string(s.mine.values.size()) + " differ: " + list +
         (wrong > 3 ? ", …" : "") + ".";
}

}  // namespace

std::string name_of_entry(const Tensor& list, std::size_t position) {
  if (!list.integers && list.shape.size() != 1) return "";
  const auto [parts, each, last] = entries_of(list);
  const std::size_t repeated = list.values.size() - (last.empty() ? 0 : 1);
  if (position == repeated) return last;
  if (!each.empty() && repeated % parts.size() == 0)
    return parts[position % parts.size()] + " of " + each + " " + std::to_string(position / parts.size());
  if (each.empty() && parts.size() > 1 && parts.size() == list.values.size()) return parts[position];
  return "";
}

std::string diagnose_integers(const Symptom& symptom) {
  if (symptom.mine.values.empty()) return other_length(symptom);
  if (symptom.mine.values.size() != symptom.expected.values.size()) {
    const std::string of_another = of_another_rank(symptom);
    return of_another.empty() ? other_length(symptom) : of_another;
  }
  for (const auto check : {inverted, of_another_rank, all_off_by, all_times, other_order, wrong_entries}) {
    const std::string sentence = check(symptom);
    if (!sentence.empty()) return sentence;
  }
  return "";
}

}  // namespace workshop::tools
