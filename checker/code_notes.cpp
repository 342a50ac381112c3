// SPDX-License-Identifier: Apache-2.0
#include "checker/code_notes.h"

#include <cstddef>
#include <iterator>
#include <regex>

namespace workshop::tools {
namespace {

bool has(const std::string& code, const char* pattern) { return std::regex_search(code, std::regex(pattern)); }

std::string without_comments(const std::string& code) { return std::regex_replace(code, std::regex("//[^\n]*"), ""); }

// The solution widens a factor before it multiplies; the participant's code, which has a product too, widens nothing.
// The * of a product, unlike that of a declaration, has a space on both sides or on neither.
bool multiplies_ints(const std::string& mine, const std::string& solution) {
  return has(solution, R"(static_cast<std::size_t>\(\w+\) \* )") && has(mine, R"([\w)\]]( \* |\*)[\w(])") &&
         !has(mine, R"(size_t|ptrdiff_t|int64|\blong\b)");
}

// The participant's code counts the bytes of floats where the solution counts those of Reals.
bool counts_floats(const std::string& mine, const std::string& solution) {
  constexpr const char *kFloats = R"(sizeof\(float\))", *kReals = R"(sizeof\(Real\))";
  return has(solution, kReals) && !has(solution, kFloats) && has(mine, kFloats) && !has(mine, kReals);
}

// The solution launches a kernel once per iteration of a loop; the participant's code has no loop.
bool launches_once(const std::string& mine, const std::string& solution) {
  return has(solution, R"(for \([^\n]*\) \{?\s*launch\()") && has(mine, R"(\blaunch\()") &&
         !has(mine, R"(\b(for|while|do|for_each)\b)");
}

std::ptrdiff_t count(const std::string& code, const std::regex& pattern) {
  return std::distance(std::sregex_iterator(code.begin(), code.end(), pattern), std::sregex_iterator());
}

// The solution puts its NCCL calls into a group; the participant's code opens more groups, or one in each iteration of
// a loop.
bool opens_more_groups(const std::string& mine, const std::string& solution) {
  const std::regex group(R"(\bncclGroupStart\()");
  const auto in_loop = [](const std::string& code) {
    const std::string blocks = std::regex_replace(code, std::regex(R"(\{[^{};]*\})"), "");  // no lists, as in array{1}
    return has(blocks, R"(\b(for|while) \([^\n]*\) \{[^}]*\bncclGroupStart\()");
  };
  const std::ptrdiff_t theirs = count(solution, group);
  return theirs > 0 && (count(mine, group) > theirs || (in_loop(mine) && !in_loop(solution)));
}

}  // namespace

std::string notes_on_code(const Todos& todos) {
  std::string notes;
  const auto note = [&](const std::string& id, const std::string& text) {
    notes += "Note: " + called(id) + " " + text + "\n";
  };
  for (const auto& [id, todo] : todos.all()) {
    const std::string mine = without_comments(todo.code), solution = without_comments(todo.code_in_solution);
    if (todo.says_float) {
      note(id,
           "says ncclFloat, which is right only as long as the numbers are floats. kReal is their type with "
           "--precision bf16 too.");
    }
    if (todo.says_real) {
      note(id,
           "says kReal, which is wrong with --precision bf16: these numbers are floats there too, so the call would "
           "handle only half of their bytes.");
    }
    if (counts_floats(mine, solution)) {
      note(id,
           "counts with sizeof(float), which is right only as long as the numbers are floats. With --precision bf16, a "
           "Real has two bytes.");
    }
    if (multiplies_ints(mine, solution)) {
      note(id,
           "multiplies ints. The result is right here, but a product beyond 2147483647 does not fit into an int. "
           "Convert a factor to std::size_t first.");
    }
    if (launches_once(mine, solution)) {
      note(id,
           "does in one launch what the solution does in several. The iterations of a launch run at the same time on a "
           "GPU: if two of them add to the same place, one addition is lost.");
    }
    if (opens_more_groups(mine, solution)) {
      note(id,
           "opens more groups of NCCL calls than the solution. The groups of a stream run one after another, and each "
           "has the latency of a message.");
    }
  }
  return notes;
}

}  // namespace workshop::tools
