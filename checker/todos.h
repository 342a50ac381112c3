// SPDX-License-Identifier: Apache-2.0
// The TODOs of a program: their texts, and their lines in the participant's files.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace workshop::tools {

// Orders "02.1" by its numbers, so that 02.10 comes after 02.5.
struct TodoOrder {
  bool operator()(const std::string& a, const std::string& b) const;
};
using TodoIds = std::set<std::string, TodoOrder>;

struct Todo {
  std::string text;        // first line of the comment
  std::string whole_text;  // all lines of the comment, joined
  std::string file;        // "02_ddp/ddp.h"
  std::string function;    // the participant's function that contains it; empty if none was recognized
  std::string code;        // the participant's code
  std::string code_in_solution;
  int first = 0, last = 0;  // lines in the participant's file; 0 if the comment is missing there
  int first_in_solution = 0, last_in_solution = 0;
  bool says_float = false, says_real = false;  // the code has ncclFloat instead of kReal, or the reverse
};

// A line of a source; `file` is only the last folder and the file's name, "02_ddp/ddp.h".
struct Place {
  std::string file;
  int line;
};

// Finds the places, FILE:LINE, that a text names, in order.
std::vector<Place> places(std::string_view text);

class Todos {
 public:
  // Reads the TODOs in these sources of the solution, and their code in the participant's files (FOLDER/02_ddp/ddp.h).
  // Without a folder, only their texts are known. Throws std::runtime_error if a source of the solution cannot be read.
  Todos(const std::vector<std::string>& sources, const std::string& folder);

  bool empty() const { return all_.empty(); }
  bool contains(const std::string& id) const { return all_.contains(id); }
  const std::map<std::string, Todo, TodoOrder>& all() const { return all_; }
  // Adds a TODO whose text and places are unknown.
  void add(const std::string& id) { all_.try_emplace(id); }

  // "TODO 02.1 (its text)".
  std::string heading(const std::string& id) const;
  // "  at 02_ddp/ddp.h:17\n"; empty if the place is unknown.
  std::string place_line(const std::string& id) const;
  // The TODO whose lines contain a place in the participant's files, or "".
  std::string at(const Place& place) const;
  // The same for a place in the solution.
  std::string at_in_solution(const Place& place) const;
  // True if the code of TODO `caller` calls the function that contains TODO `callee`.
  bool calls(const std::string& caller, const std::string& callee) const;
  // The TODOs whose solution makes a call such as "f.backward".
  TodoIds that_call(const std::string& function) const;
  // The TODO of the same file that contains a place or is nearest to it; "" if the file has no TODO.
  std::string nearest(const Place& place) const;

 private:
  std::map<std::string, Todo, TodoOrder> all_;
};

}  // namespace workshop::tools
