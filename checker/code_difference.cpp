// SPDX-License-Identifier: Apache-2.0
#include "checker/code_difference.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace workshop::tools {
namespace {

struct Token {
  std::string text;
  std::size_t begin = 0, end = 0;  // in the code
};
using Tokens = std::vector<Token>;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name(const Token& t) { return is_word(t.text[0]) && !std::isdigit(static_cast<unsigned char>(t.text[0])); }

bool same_text(const Token& a, const Token& b) { return a.text == b.text; }

bool is_one_of(const Token& token, std::string_view characters) {
  return token.text.size() == 1 && characters.find(token.text[0]) != std::string_view::npos;
}

// The end of the token that begins at `at`.
std::size_t end_of_token(std::string_view code, std::size_t at) {
  std::size_t end = at + 1;
  if (is_word(code[at])) {
    // A number may have a point, an exponent's sign and digit separators.
    const bool number = std::isdigit(static_cast<unsigned char>(code[at]));
    const auto goes_on = [&](char c) { return is_word(c) || (number && (c == '.' || c == '\'')); };
    while (end < code.size() && goes_on(code[end])) ++end;
  } else if (code[at] == '"' || code[at] == '\'') {
    while (end < code.size() && code[end] != code[at]) end += code[end] == '\\' ? 2 : 1;
    end = std::min(end + 1, code.size());
  } else {
    constexpr std::array<std::string_view, 19> kPairs = {"::", "->", "<<", ">>", "==", "!=", "<=", ">=", "&&", "||",
                                                         "++", "--", "+=", "-=", "*=", "/=", "%=", "|=", "&="};
    if (std::ranges::find(kPairs, code.substr(at, 2)) != kPairs.end()) ++end;
  }
  return end;
}

Tokens tokens_of(std::string_view code) {
  Tokens tokens;
  for (std::size_t at = 0; at < code.size();) {
    if (std::isspace(static_cast<unsigned char>(code[at]))) {
      ++at;
    } else if (code.substr(at, 2) == "//") {
      at = std::min(code.find('\n', at), code.size());
    } else if (code.substr(at, 2) == "/*") {
      at = std::min(code.find("*/", at), code.size() - 2) + 2;
    } else {
      const std::size_t end = end_of_token(code, at);
      tokens.push_back({std::string(code.substr(at, end - at)), at, end});
      at = end;
    }
  }
  return tokens;
}

// Without `const`, `std::`, a comma before a closing brace, and calls of probe().
Tokens without_what_does_not_count(const Tokens& tokens) {
  Tokens rest;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto is = [&](std::size_t k, std::string_view text) { return k < tokens.size() && tokens[k].text == text; };
    if (is(i, "const") || (is(i, ",") && is(i + 1, "}"))) continue;
    if (is(i, "std") && is(i + 1, "::")) {
      ++i;
    } else if (tokens[i].text.starts_with("probe") && is(i + 1, "(")) {
      while (i < tokens.size() && !is(i, ";")) ++i;
    } else {
      rest.push_back(tokens[i]);
    }
  }
  return rest;
}

// Where the brace at `open` is closed.
std::size_t closing(const Tokens& tokens, std::size_t open) {
  std::size_t at = open;
  for (int depth = 0; at < tokens.size(); ++at) {
    depth += tokens[at].text == "{" ? 1 : tokens[at].text == "}" ? -1 : 0;
    if (depth == 0) break;
  }
  return at;
}

// Whether these braces hold a single statement without an `else` behind it, so that they could be left out.
bool hold_one_statement(const Tokens& tokens, std::size_t open, std::size_t close) {
  int statements = 0, parentheses = 0;
  for (std::size_t i = open + 1; i < close; ++i) {
    if (is_one_of(tokens[i], "{}")) return false;
    parentheses += is_one_of(tokens[i], "(") ? 1 : is_one_of(tokens[i], ")") ? -1 : 0;
    statements += parentheses == 0 && tokens[i].text == ";" ? 1 : 0;
  }
  return statements == 1 && (close + 1 == tokens.size() || tokens[close + 1].text != "else");
}

enum class Braces { all_that_count, none };

// Without the braces around the bodies of loops and conditions, at least those around single statements; with ++i for
// i++ at the end of a loop's head.
Tokens in_one_style(Tokens tokens, Braces braces) {
  for (std::size_t i = tokens.size(); i-- > 1;) {  // inner braces first
    if (tokens[i].text != "{" || (tokens[i - 1].text != ")" && tokens[i - 1].text != "else")) continue;
    const std::size_t close = closing(tokens, i);
    if (close == tokens.size() || (braces == Braces::all_that_count && !hold_one_statement(tokens, i, close))) continue;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(close));
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t i = 3; i < tokens.size(); ++i) {
    const bool steps = tokens[i - 1].text == "++" || tokens[i - 1].text == "--";
    if (steps && tokens[i].text == ")" && tokens[i - 3].text == ";") std::swap(tokens[i - 2].text, tokens[i - 1].text);
  }
  return tokens;
}

// Gives local variables the names $0, $1, … in the order of their declarations.
Tokens renamed(Tokens tokens) {
  constexpr std::array<std::string_view, 8> kNoTypes = {"return", "else",  "new",  "delete",
                                                        "case",   "throw", "goto", "sizeof"};
  std::map<std::string, std::string> names;
  const auto is_type = [&](const Token& t) {
    return is_name(t) && std::ranges::find(kNoTypes, t.text) == kNoTypes.end();
  };
  for (std::size_t i = 1; i + 1 < tokens.size(); ++i) {
    if (!is_name(tokens[i])) continue;
    const std::string &before = tokens[i - 1].text, &after = tokens[i + 1].text;
    // "T& x" and "vector<T> x" may be expressions, too, but not before these.
    const bool initialized = after == "=" || after == ":" || after == "{";
    if (is_type(tokens[i - 1]) || ((before == ">" || before == "&" || before == "*") && initialized))
      names.try_emplace(tokens[i].text, "$" + std::to_string(names.size()));
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const bool is_member = i > 0 && (tokens[i - 1].text == "." || tokens[i - 1].text == "->");
    if (const auto name = names.find(tokens[i].text); name != names.end() && !is_member) tokens[i].text = name->second;
  }
  return tokens;
}

// Where one list of tokens has some in place of some of the other's: [first, last) of each.
struct Hunk {
  std::size_t first, last, first_in_solution, last_in_solution;
  bool is_missing() const { return first == last; }
  bool is_added() const { return first_in_solution == last_in_solution; }
};

// Tokens [first, last) that only one list has may be others that look the same, farther to the left: "f(a); g(" may be
// "g(b); f(a);" without its beginning. Returns by how many of at most `most` to shift them so that they are a statement
// or, failing that, begin with a comma; 0 if neither is possible.
std::size_t shift_to_left(const Tokens& tokens, std::size_t first, std::size_t last, std::size_t most) {
  std::size_t at_comma = 0;
  for (std::size_t shift = 0;; ++shift) {
    if (is_one_of(tokens[last - shift - 1], ";}")) return shift;
    if (at_comma == 0 && tokens[first - shift].text == ",") at_comma = shift;
    if (shift == most || tokens[first - shift - 1].text != tokens[last - shift - 1].text) return at_comma;
  }
}

// The differences, by a longest common subsequence. Those with only a token or two between them are one.
std::vector<Hunk> hunks(const Tokens& mine, const Tokens& solution) {
  const std::size_t n = mine.size(), m = solution.size();
  std::vector<std::vector<int>> longest(n + 1, std::vector<int>(m + 1, 0));  // of the ends that begin at i and j
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t j = m; j-- > 0;) {
      longest[i][j] =
          mine[i].text == solution[j].text ? longest[i + 1][j + 1] + 1 : std::max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  std::vector<Hunk> found;
  for (std::size_t i = 0, j = 0; i < n || j < m;) {
    if (i < n && j < m && mine[i].text == solution[j].text) {
      ++i;
      ++j;
      continue;
    }
    const bool take_mine = j == m || (i < n && longest[i + 1][j] >= longest[i][j + 1]);
    const std::size_t next_i = i + (take_mine ? 1 : 0), next_j = j + (take_mine ? 0 : 1);
    if (!found.empty() && i - found.back().last <= 2 &&
        std::none_of(mine.begin() + static_cast<std::ptrdiff_t>(found.back().last),
                     mine.begin() + static_cast<std::ptrdiff_t>(i), [](const Token& t) { return t.text == ";"; })) {
      found.back().last = next_i;
      found.back().last_in_solution = next_j;
    } else {
      found.push_back({i, next_i, j, next_j});
    }
    i = next_i;
    j = next_j;
  }
  std::size_t end = 0;  // of the hunk before
  for (Hunk& h : found) {
    const std::size_t between = h.first - end;
    std::size_t shift = 0;
    if (h.is_added()) shift = shift_to_left(mine, h.first, h.last, between);
    if (h.is_missing()) shift = shift_to_left(solution, h.first_in_solution, h.last_in_solution, between);
    end = h.last;
    h = {h.first - shift, h.last - shift, h.first_in_solution - shift, h.last_in_solution - shift};
  }
  return found;
}

std::size_t changed(const std::vector<Hunk>& found) {
  std::size_t sum = 0;
  for (const Hunk& h : found) sum += std::max(h.last - h.first, h.last_in_solution - h.first_in_solution);
  return sum;
}

struct Difference {
  Tokens mine, solution;
  std::vector<Hunk> hunks;
};

Tokens normalized(const std::string& code, Braces braces) {
  return in_one_style(without_what_does_not_count(tokens_of(code)), braces);
}

// Whether there are more differences with the braces than without them.
bool braces_differ(const Todo& todo) {
  const auto differences = [&](Braces braces) {
    return changed(hunks(normalized(todo.code, braces), normalized(todo.code_in_solution, braces)));
  };
  return differences(Braces::all_that_count) > differences(Braces::none);
}

// Local variables have their own names or, if that is more alike, numbers. Braces do not count.
Difference difference(const Todo& todo) {
  const Tokens mine = normalized(todo.code, Braces::none), solution = normalized(todo.code_in_solution, Braces::none);
  Difference as_is{mine, solution, hunks(mine, solution)};
  Difference with_numbers{renamed(mine), renamed(solution), {}};
  with_numbers.hunks = hunks(with_numbers.mine, with_numbers.solution);
  return changed(with_numbers.hunks) < changed(as_is.hunks) ? with_numbers : as_is;
}

using Range = std::pair<std::size_t, std::size_t>;  // of tokens: [first, last)

// The argument, or the part of a statement, around some tokens.
Range widened(const Tokens& tokens, std::size_t first, std::size_t last) {
  // Parentheses that the tokens open and do not close, or the reverse.
  int open = 0, closed = 0;
  for (std::size_t i = first; i < last; ++i) {
    if (is_one_of(tokens[i], "([")) ++open;
    if (is_one_of(tokens[i], ")]")) open > 0 ? --open : ++closed;
  }
  for (int depth = closed; first > 0; --first) {
    const Token& token = tokens[first - 1];
    if (depth == 0 && is_one_of(token, "([,;{}=")) break;
    depth += is_one_of(token, ")]") ? 1 : is_one_of(token, "([") ? -1 : 0;
  }
  for (int depth = open; last < tokens.size(); ++last) {
    if (depth == 0 && first < last && is_one_of(tokens[last - 1], ";}")) break;
    const Token& token = tokens[last];
    if (depth == 0 && is_one_of(token, ")],;{}=")) break;
    depth += is_one_of(token, "([") ? 1 : is_one_of(token, ")]") ? -1 : 0;
  }
  return {first, last};
}

// ", argument 3 of ncclBroadcast()" if these tokens are one of several arguments; "" otherwise.
std::string which_argument(const Tokens& tokens, Range range) {
  if (widened(tokens, range.first, range.first + 1) != range) return "";  // several
  std::size_t number = 1, open = range.first;
  for (int depth = 0; open > 0; --open) {
    const Token& token = tokens[open - 1];
    if (is_one_of(token, ";{}")) return "";
    if (depth == 0 && token.text == ",") ++number;
    if (depth == 0 && is_one_of(token, "([")) break;
    depth += is_one_of(token, ")]") ? 1 : is_one_of(token, "([") ? -1 : 0;
  }
  const bool several = number > 1 || (range.second < tokens.size() && tokens[range.second].text == ",");
  if (open < 2 || tokens[open - 1].text != "(" || !is_name(tokens[open - 2]) || !several) return "";
  return ", argument " + std::to_string(number) + " of " + tokens[open - 2].text + "()";
}

// The participant's code of some tokens, on one line.
std::string quoted(const std::string& code, const Tokens& tokens, Range range) {
  std::string text;
  for (std::size_t at = tokens[range.first].begin; at < tokens[range.second - 1].end; ++at) {
    const bool space = std::isspace(static_cast<unsigned char>(code[at])) != 0;
    if (!space || text.back() != ' ') text += space ? ' ' : code[at];
  }
  constexpr std::size_t kLongest = 90;
  if (text.size() > kLongest) text = text.substr(0, kLongest - 4) + " ...";
  return "'" + text + "'";
}

// How often these tokens stand in the list.
std::ptrdiff_t occurrences(const Tokens& tokens, Range range) {
  const auto at = [&](std::size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
  std::ptrdiff_t count = 0;
  for (std::size_t i = 0; i + range.second - range.first <= tokens.size(); ++i)
    count += std::equal(at(range.first), at(range.second), at(i), same_text);
  return count;
}

// What contains the parentheses around some tokens: "1 / f(x)" for the x. The same tokens if there are none.
Range beyond_parentheses(const Tokens& tokens, Range range) {
  const bool within = range.first > 0 && range.second < tokens.size() && is_one_of(tokens[range.first - 1], "([") &&
                      is_one_of(tokens[range.second], ")]");
  return within ? widened(tokens, range.first - 1, range.second + 1) : range;
}

// The statement around some tokens.
Range statement_around(const Tokens& tokens, Range range) {
  while (range.first > 0 && !is_one_of(tokens[range.first - 1], ";{}")) --range.first;
  while (range.second < tokens.size() && !is_one_of(tokens[range.second], ";{}")) ++range.second;
  return range;
}

// "'p.count() - 1', argument 3 of ncclBroadcast()", or "what comes after 'x', where something is missing".
std::string place(const std::string& code, const Difference& d, const Hunk& hunk) {
  const Tokens& mine = d.mine;
  Range range = widened(mine, hunk.first, hunk.last);
  const bool lacks_statement = hunk.is_missing() && (is_one_of(d.solution[hunk.first_in_solution], ";}") ||
                                                     is_one_of(d.solution[hunk.last_in_solution - 1], ";}"));
  if (range.first < range.second && !lacks_statement) {
    std::string argument = which_argument(mine, range);
    while (argument.empty() && occurrences(mine, range) > 1) {
      const Range wider = beyond_parentheses(mine, range);
      if (wider == range) return quoted(code, mine, statement_around(mine, range));
      range = wider;
      argument = which_argument(mine, range);
    }
    return quoted(code, mine, range) + argument;
  }
  const bool begins = hunk.first == 0 || is_one_of(mine[hunk.first - 1], "{}");
  const bool follows = !begins || hunk.first == mine.size();
  std::size_t at = follows ? hunk.first - 1 : hunk.first;
  if (follows && !is_one_of(mine[at], ";{},(") && at + 1 < mine.size()) ++at;  // beyond the delimiter
  range = follows ? widened(mine, at, at) : widened(mine, at, at + 1);
  if (range.first == range.second) range = {at, at + 1};
  return std::string("what comes ") + (follows ? "after " : "before ") + quoted(code, mine, range) +
         ", where something is missing";
}

// Whether the first hunk's tokens are the second's in the other code: a statement that stands elsewhere.
bool is_moved(const Difference& d, const Hunk& a, const Hunk& b) {
  if (!a.is_added() || !b.is_missing()) return false;
  const auto at = [](const Tokens& tokens, std::size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
  return std::equal(at(d.mine, a.first), at(d.mine, a.last), at(d.solution, b.first_in_solution),
                    at(d.solution, b.last_in_solution), same_text);
}

}  // namespace

bool is_solutions_code(const Todo& todo) {
  const Tokens mine = normalized(todo.code, Braces::all_that_count);
  const Tokens solution = normalized(todo.code_in_solution, Braces::all_that_count);
  const auto are_alike = [](const Tokens& a, const Tokens& b) { return std::ranges::equal(a, b, same_text); };
  return todo.first > 0 && !mine.empty() && (are_alike(mine, solution) || are_alike(renamed(mine), renamed(solution)));
}

std::string where_code_differs(const std::string& id, const Todo& todo) {
  constexpr std::size_t kMostCharacters = 20000, kMostHunks = 3;  // comparing takes time and memory
  if (todo.code.size() > kMostCharacters || is_solutions_code(todo)) return "";
  const Difference d = difference(todo);
  if (d.mine.empty() || d.hunks.size() > kMostHunks) return "";
  if (d.hunks.empty()) return "Look again at the braces: the rest of " + called(id) + " is as in the solution.";
  // Otherwise the participant goes another way, which may be as good.
  if (5 * changed(d.hunks) > 2 * std::min(d.mine.size(), d.solution.size())) return "";
  if (d.hunks.size() == 2) {
    for (const auto& [a, b] : {std::pair(d.hunks[0], d.hunks[1]), std::pair(d.hunks[1], d.hunks[0])}) {
      if (is_moved(d, a, b)) {
        return "Look again at the place of " + quoted(todo.code, d.mine, {a.first, a.last}) +
               ": it stands elsewhere in the solution. The rest of " + called(id) + " is the same there.";
      }
    }
  }
  // What is missing in one place is often what stands in another: a variable that is not declared but written out.
  const bool only_missing = std::ranges::all_of(d.hunks, &Hunk::is_missing);
  const bool none_missing = std::ranges::none_of(d.hunks, &Hunk::is_missing);
  const bool same_statements = none_missing && std::ranges::none_of(d.hunks, &Hunk::is_added);
  std::vector<std::string> places;
  for (const Hunk& h : d.hunks) {
    if (h.is_missing() && !only_missing) continue;
    const std::string next = place(todo.code, d, h);
    if (std::ranges::find(places, next) == places.end()) places.push_back(next);
  }
  std::string all;
  for (std::size_t i = 0; i < places.size(); ++i)
    all += (i == 0 ? "" : i + 1 < places.size() ? ", " : " and ") + places[i];
  if (!only_missing && !none_missing) return "Look again at " + all + ".";
  return "Look again at " + all + ": the rest of " + called(id) + " is as in the solution" +
         (same_statements && braces_differ(todo) ? ", except for the braces." : ".");
}

}  // namespace workshop::tools
