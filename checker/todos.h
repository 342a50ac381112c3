// SPDX-License-Identifier: Apache-2.0
// The TODOs of a program: their texts and where they stand in the participant's files.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace workshop::tools {

// "02.1" as numbers, so that 10.1 comes after 02.5.
struct TodoOrder {
  bool operator()(const std::string& a, const std::string& b) const;
};
using TodoIds = std::set<std::string, TodoOrder>;

struct Todo {
  std::string text;         // its first line
  std::string whole_text;   // all of its lines, in one
  std::string file;         // "02_ddp/ddp.h"
  std::string function;     // in which it stands in the participant's file; empty where that is not seen
  std::string code;         // between its comments, there
  std::string code_in_solution;
  int first = 0, last = 0;  // its lines in the participant's file; 0 where its comment is gone
  int first_in_solution = 0, last_in_solution = 0;
  bool says_float = false, says_real = false;  // in a call of NCCL's, where the solution has kReal, or ncclFloat
};

// file:line, with the folder and the name of the file alone.
struct Place {
  std::string file;
  int line;
};

// The places of source code that a text names, in order.
std::vector<Place> places(std::string_view text);

class Todos {
 public:
  // Those of the solution's sources given, as the participant has them in FOLDER/02_ddp/ddp.h; with no folder only
  // their texts are known. Throws std::runtime_error where one cannot be read.
  Todos(const std::vector<std::string>& sources, const std::string& folder);

  bool empty() const { return all_.empty(); }
  bool contains(const std::string& id) const { return all_.contains(id); }
  const std::map<std::string, Todo, TodoOrder>& all() const { return all_; }
  // One more of which just the number is known.
  void add(const std::string& id) { all_.try_emplace(id); }

  // "TODO 02.1 (its text)".
  std::string heading(const std::string& id) const;
  // "  at 02_ddp/ddp.h:17" and a line end; empty where that is not known.
  std::string place_line(const std::string& id) const;
  // The TODO whose lines a place is in; empty where there is none.
  std::string at(const Place& place) const;
  // The same of a place in the solution.
  std::string at_in_solution(const Place& place) const;
  // Does the code of one TODO call the function in which another stands?
  bool calls(const std::string& caller, const std::string& callee) const;
  // The TODOs whose solution makes a call such as "f.backward".
  TodoIds that_call(const std::string& function) const;
  // The TODO whose lines a place is in or, of the file's, the nearest.
  std::string nearest(const Place& place) const;

 private:
  std::map<std::string, Todo, TodoOrder> all_;
};

}  // namespace workshop::tools
