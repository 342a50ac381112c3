// SPDX-License-Identifier: Apache-2.0
// Makes mutants of the TODOs of a chapter: the code of a region with one small mistake in it.
//
//   make_mutants SOLUTIONS CHAPTER [FOLDER]
//
// Prints one line per mutant: its name, then the changed lines before and after, separated by tabs. With FOLDER, also
// writes each mutant to FOLDER/02.6-m1a2b3c.txt, a wrong filling for make_exercises. The name is a hash of the code, so
// it changes only if the code does. Some mutants do not compile, because this program knows words and brackets, but no
// types.
//
// The solutions are formatted by clang-format, so an operator with spaces around it has two operands.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/shared/arguments.h"

namespace {

namespace fs = std::filesystem;

// Each word may replace any other of its line, which gives a wrong bound, operation, stream, peer, buffer and so on.
constexpr const char* kConfused[] = {
    "< <=",
    "> >=",
    "== !=",
    "+ -",
    "* / %",
    "&& ||",
    "= += -=",
    "= *= /=",
    "ncclSum ncclAvg ncclMax ncclMin",
    "ncclSend ncclRecv",
    "true false",
    "min max",
    "as_is transposed",
    "forward backward",
    "CUBLAS_OP_N CUBLAS_OP_T",
    "value grad",
    "values_ grads_",
    "weight bias weight_grad bias_grad",
    "in out",
    "rows cols columns",
    "first last",
    "begin end",
    "rank size world root",
    "compute_ communication_",
    "ready_ done_",
    "reduced_ updated_ worked_",
    "shard replicate",
    "tensor data pipeline",
    "dp tp pp",
    "parameters gradients optimizer",
    "losses global_losses",
    "q k v p context",
};

struct Token {
  enum Kind { word, number, other } kind;
  std::string text;
  std::size_t begin, end;  // in the code
};

// Splits code into tokens and drops comments. A string literal is one token.
std::vector<Token> tokens_of(const std::string& code) {
  static const std::regex kToken(R"(//[^\n]*|([A-Za-z_]\w*)|((?:\d[\d']*\.?\d*)(?:e[+-]?\d+)?f?)|)"
                                 R"(("[^"]*"|->|::|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/]=|[^\s\w]))");
  std::vector<Token> tokens;
  for (std::sregex_iterator match(code.begin(), code.end(), kToken), end; match != end; ++match) {
    for (int kind = 0; kind < 3; ++kind) {
      if (!(*match)[kind + 1].matched) continue;
      const auto begin = static_cast<std::size_t>(match->position());
      tokens.push_back({static_cast<Token::Kind>(kind), match->str(), begin, begin + match->str().size()});
    }
  }
  return tokens;
}

// Replaces the code between two places.
struct Edit {
  std::size_t begin, end;
  std::string text;
};

// Finds all edits of one region's code.
class Mutator {
 public:
  explicit Mutator(std::string code) : code_(std::move(code)), tokens_(tokens_of(code_)), partner_(tokens_.size(), -1) {
    std::vector<int> open;
    for (int i = 0; i < count(); ++i) {
      if (is_one_of(i, "( [ {")) open.push_back(i);
      if (!is_one_of(i, ") ] }") || open.empty()) continue;
      partner_[i] = open.back();
      partner_[open.back()] = i;
      open.pop_back();
    }
    statements();
    for (int i = 0; i < count(); ++i) {
      confused(i);
      number(i);
      if (is_operator(i) && is_one_of(i, "+ - * / %")) without_operand(i);
      if (is(i, "(") && is_name(i - 1) && !tokens_[i - 1].text.ends_with("_CHECK")) arguments(i);
      if (is(i, "{") && is_one_of(i - 1, "( =")) arguments(i);
      if (is(i, "]") && !is(i - 1, "=") && !is(i - 1, "[")) by_one(i);
    }
  }

  const std::vector<Edit>& edits() const { return edits_; }

 private:
  int count() const { return static_cast<int>(tokens_.size()); }
  bool is(int i, std::string_view text) const { return i >= 0 && i < count() && tokens_[i].text == text; }
  bool is_one_of(int i, const std::string& texts) const {
    return i >= 0 && i < count() && (" " + texts + " ").find(" " + tokens_[i].text + " ") != std::string::npos;
  }
  bool is_name(int i) const {
    return i >= 0 && i < count() && tokens_[i].kind == Token::word &&
           !is_one_of(i, "if else for while return break const int float double auto bool nullptr static_cast sizeof");
  }
  bool is_space(std::size_t at) const {
    return at < code_.size() && std::isspace(static_cast<unsigned char>(code_[at]));
  }
  bool is_operator(int i) const {
    return tokens_[i].kind == Token::other && is_space(tokens_[i].begin - 1) && is_space(tokens_[i].end);
  }
  // True for the use of a variable: neither a member, a function, a type nor a declaration.
  bool is_variable(int i) const {
    if (!is_name(i) || is_one_of(i - 1, ". -> ::") || is_one_of(i + 1, ":: (") || is(i, "ncclFloat")) return false;
    if (i > 0 && tokens_[i - 1].kind == Token::word) return is(i - 1, "return");
    if (i > 0 && is_one_of(i - 1, "* &") && !is_operator(i - 1)) return false;
    return i + 1 == count() || tokens_[i + 1].kind == Token::other;
  }
  bool has_members(int i) const { return is_one_of(i + 1, ". ->"); }
  // True for names to which no number can be added: streams, communicators, constants of the libraries.
  bool is_handle(int i) const {
    return is_one_of(
        i,
        "stream stream_ comm comm_ compute_ communication_ blas blas_ true false ncclFloat ncclSum ncclAvg "
        "ncclMax as_is transposed add_bias add add_scaled sgd }");
  }

  std::string text(int first, int last) const {
    return code_.substr(tokens_[first].begin, tokens_[last].end - tokens_[first].begin);
  }
  void replace(int first, int last, const std::string& by) {
    edits_.push_back({tokens_[first].begin, tokens_[last].end, by});
  }
  // Adds 1 to, or subtracts 1 from, the expression that ends before token i.
  void by_one(int i) {
    for (const char* more : {" + 1", " - 1"}) edits_.push_back({tokens_[i].begin, tokens_[i].begin, more});
  }

  void statements() {
    int before = 0, before_end = -2;  // the previous statement
    for (int i = 0; i < count();) {
      if (is_one_of(i, "{ } else")) {
        ++i;
      } else if (is_one_of(i, "if for while")) {
        condition(i);
        i = partner_[i + 1] + 1;
      } else {
        int end = i;
        while (end + 1 < count() && !is(end, ";")) end = std::max(end, partner_[end]) + 1;
        statement(i, end);
        if (before_end == i - 1 && order_matters(before, before_end, end))
          replace(before, end, text(i, end) + "\n" + text(before, before_end));
        before = i;
        before_end = end;
        i = end + 1;
      }
    }
  }

  // False if both statements set a variable that the other one does not mention.
  bool order_matters(int first, int first_end, int second_end) const {
    const int a = target(first, first_end), b = target(first_end + 1, second_end);
    return a < 0 || b < 0 || mentions(first, first_end, tokens_[b].text) ||
           mentions(first_end + 1, second_end, tokens_[a].text);
  }
  // The token of the variable that an assignment sets; -1 for any other statement.
  int target(int first, int end) const {
    for (int i = first + 1; i < end; ++i) {
      if (is(i, "=") && is_operator(i)) return is(i - 1, "]") ? partner_[i - 1] - 1 : i - 1;
    }
    return -1;
  }
  bool mentions(int first, int end, const std::string& name) const {
    for (int i = first; i < end; ++i) {
      if (is(i, name)) return true;
    }
    return false;
  }

  // Removes a statement, repeats it if that can show, or makes its result off by one.
  void statement(int first, int end) {
    replace(first, end, ";");
    if (is_one_of(first, "NCCL_CHECK launch") || mentions(first, end, "push_back"))
      replace(first, end, text(first, end) + "\n" + text(first, end));
    for (int i = first; i < end; ++i) {
      if (is_one_of(i, "= += -=") && is_operator(i)) return by_one(end);
    }
  }

  // Removes the condition of an `if`, inverts it, or drops half of it. In the second part of a `for`, only drops half.
  void condition(int keyword) {
    int first = keyword + 2, last = partner_[keyword + 1] - 1;
    if (is(keyword, "for")) {
      while (first <= last && !is(first, ";")) ++first;
      if (first > last) return;
      last = ++first;
      while (!is(last + 1, ";")) ++last;
    } else {
      replace(first, last, "true");
      replace(first, last, "!(" + text(first, last) + ")");
    }
    for (int i = first; i <= last; ++i) {
      if (!is_one_of(i, "&& ||")) continue;
      replace(first, i, "");
      replace(i, last, "");
    }
  }

  // Replaces a token by a different word or operator of its kind, or by a different variable of the region.
  void confused(int i) {
    if (tokens_[i].kind == Token::number || (tokens_[i].kind == Token::other && !is_operator(i))) return;
    std::set<std::string> others;
    for (const std::string words : kConfused) {
      if (!is_one_of(i, words)) continue;
      std::istringstream each(words);
      for (std::string word; each >> word;) others.insert(word);
    }
    for (int j = 0; is_variable(i) && !is_one_of(i - 1, "++ --") && j < count(); ++j) {
      if (is_variable(j) && has_members(i) == has_members(j)) others.insert(tokens_[j].text);
    }
    others.erase(tokens_[i].text);
    for (const std::string& other : others) replace(i, i, other);
  }

  void number(int i) {
    if (tokens_[i].kind != Token::number) return;
    const std::string& digits = tokens_[i].text;
    if (digits.find_first_not_of("0123456789") != std::string::npos) {
      replace(i, i, "0");
      replace(i, i, "(2 * " + digits + ")");
    } else {
      replace(i, i, std::to_string(std::stoi(digits) + 1));
      replace(i, i, std::to_string(std::stoi(digits) - 1));
    }
  }

  // Turns a * b into a, and into b.
  void without_operand(int i) {
    int last = i + 1;
    if (partner_[last] > last) last = partner_[last];
    while (is_one_of(last + 1, ". -> ( [")) last = partner_[last + 1] > last ? partner_[last + 1] : last + 2;
    edits_.push_back({tokens_[i - 1].end, tokens_[last].end, ""});
    int first = i - 1;
    while (true) {
      if (partner_[first] >= 0) first = partner_[first];
      if (is_one_of(first, "( [") && is_name(first - 1)) --first;
      if (!is_one_of(first - 1, ". ->")) break;
      first -= 2;
    }
    edits_.push_back({tokens_[first].begin, tokens_[i + 1].begin, ""});
  }

  // Swaps two arguments, or makes one off by one.
  void arguments(int open) {
    std::vector<std::pair<int, int>> each;
    int first = open + 1;
    for (int i = first; i <= partner_[open]; ++i) {
      if ((is(i, ",") || i == partner_[open]) && first < i) {
        each.emplace_back(first, i - 1);
        first = i + 1;
      } else if (partner_[i] > i) {
        i = partner_[i];
      }
    }
    for (std::size_t a = 0; a < each.size(); ++a) {
      if (!is_handle(each[a].second)) by_one(each[a].second + 1);
      for (std::size_t b = a + 1; b < each.size(); ++b) {
        const std::string between = text(each[a].second + 1, each[b].first - 1);
        replace(each[a].first, each[b].second,
                text(each[b].first, each[b].second) + between + " " + text(each[a].first, each[a].second));
      }
    }
  }

  std::string code_;
  std::vector<Token> tokens_;
  std::vector<int> partner_;  // the matching bracket's token; -1 if this token is no bracket
  std::vector<Edit> edits_;
};

std::string one_line(const std::string& code) {
  static const std::regex kSpace(R"(\s+)");
  const std::string line = std::regex_replace(code, kSpace, " ");
  const std::size_t first = line.find_first_not_of(' ');
  return first == std::string::npos ? "" : line.substr(first, line.find_last_not_of(' ') + 1 - first);
}

// "m1a2b3c", from 24 bits of FNV-1a.
std::string name_of(const std::string& code) {
  std::uint32_t hash = 2166136261;
  for (const char c : code) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  char name[16];
  std::snprintf(name, sizeof name, "m%06x", hash >> 8);
  return name;
}

void mutate(const std::string& todo, const std::string& code, const std::string& folder) {
  std::set<std::string> seen = {one_line(code)};
  const Mutator mutator(code);
  for (const Edit& edit : mutator.edits()) {
    const std::string mutant = code.substr(0, edit.begin) + edit.text + code.substr(edit.end);
    if (!seen.insert(one_line(mutant)).second) continue;
    const std::string name = todo + "-" + name_of(todo + one_line(mutant));
    const std::size_t first = edit.begin == 0 ? 0 : code.rfind('\n', edit.begin - 1) + 1;
    const std::size_t behind = code.size() - code.find('\n', edit.end);  // from the end, where both agree
    std::printf("%s\t%s\t%s\n", name.c_str(), one_line(code.substr(first, code.size() - behind - first)).c_str(),
                one_line(mutant.substr(first, mutant.size() - behind - first)).c_str());
    if (folder.empty()) continue;
    std::ofstream file(fs::path(folder) / (name + ".txt"));
    file << mutant << std::flush;
    if (!file) throw std::runtime_error("cannot write to " + folder);
  }
}

void mutate_all(const fs::path& path, const std::string& folder) {
  static const std::regex kOpen(R"(\s*// TODO (\d\d\.\d+): .*)"), kComment(R"(\s*//.*)"),
      kClose(R"(\s*// END TODO .*)");
  std::ifstream file(path);
  std::string line, todo, code;
  for (std::smatch match; std::getline(file, line);) {
    if (std::regex_match(line, kClose)) {
      mutate(todo, code, folder);
      todo.clear();
    } else if (std::regex_match(line, match, kOpen)) {
      todo = match[1];
      code.clear();
    } else if (!todo.empty() && !std::regex_match(line, kComment)) {
      code += line + "\n";
    }
  }
}

void mutate_chapter(const fs::path& chapter, const std::string& folder) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(chapter)) files.insert(entry.path());
  for (const fs::path& path : files) {
    if (path.extension() == ".cu" || path.extension() == ".h") mutate_all(path, folder);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string solutions, chapter, folder;
  workshop::tools::Arguments arguments("make_mutants", "Makes mutants of the TODOs of a chapter.");
  arguments.require("SOLUTIONS", solutions, "the folder of the solutions");
  arguments.require("CHAPTER", chapter, "such as 02_ddp");
  arguments.add("FOLDER", folder, "where to write them as wrong fillings");
  return arguments.run(argc, argv, [&] {
    mutate_chapter(fs::path(solutions) / chapter, folder);
    return 0;
  });
}
