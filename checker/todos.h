// SPDX-License-Identifier: Apache-2.0
// The regions of a program that a participant fills in: their texts, and their lines in the participant's files. At the
// guided level they are TODOs; at the blank level, WRITE regions around whole functions, and the TODOs outside them.
// "TODO" in the names below means a region of either kind.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace workshop::tools {

// Orders "02.1" by its numbers, so that 02.10 comes after 02.5; WRITE regions, "02.A", come first.
struct TodoOrder {
  bool operator()(const std::string& a, const std::string& b) const;
};
using TodoIds = std::set<std::string, TodoOrder>;

bool is_write(const std::string& id);  // "02.A"
// "TODO 02.1" or "WRITE 02.A".
std::string called(const std::string& id);
// "TODO 02.1, 02.2, WRITE 02.A".
std::string called(const TodoIds& ids);

// Whose regions count. `found`: those of the participant's files, which may differ from one to the next.
enum class Level { found, guided, blank };

struct Todo {
  std::string text;        // first line of the comment
  std::string whole_text;  // all lines of the comment, joined
  std::string file;        // "02_ddp/ddp.h"
  std::string function;    // the participant's function that contains it; empty if none was recognized
  std::string code;        // the participant's code
  std::string code_in_solution;
  int first = 0, last = 0;  // lines in the participant's file; 0 if the comment is missing there
  std::string function_in_solution;
  int first_in_solution = 0, last_in_solution = 0;
  bool has_probe = false;                      // the solution records something of it, in some run
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
  Todos() = default;
  Todos(const std::vector<std::string>& sources, const std::string& folder, Level level = Level::found);

  bool empty() const { return all_.empty(); }
  bool contains(const std::string& id) const { return all_.contains(id); }
  // The region that a TODO of the solution belongs to at this level: itself, or the WRITE region around it. "" for a
  // WRITE region that does not count. A TODO of another program is itself.
  std::string region_of(const std::string& id) const;
  // The same for the probes of a TODO: "" too if they are inside the WRITE region.
  std::string region_of_probe(const std::string& id) const;
  const std::map<std::string, Todo, TodoOrder>& all() const { return all_; }
  // Adds a TODO whose text and places are unknown.
  void add(const std::string& id) { all_.try_emplace(id); }

  // "TODO", or "region" if there are WRITE regions.
  std::string kind() const;
  // "TODO 02.1 (its text)".
  std::string heading(const std::string& id) const;
  // What a program says, "see TODO 02.6, part of WRITE 02.E", with the name that the region has at this level.
  std::string at_this_level(const std::string& text) const;
  // "  at 02_ddp/ddp.h:17\n"; empty if the place is unknown.
  std::string place_line(const std::string& id) const;
  // The TODO whose lines contain a place in the participant's files, or whose result the probe at this place records;
  // or "".
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
  std::map<std::string, std::string> region_;  // of each TODO and WRITE region that is not in all_
  TodoIds probed_inside_;                      // those of region_ whose probes are inside the WRITE region
  std::map<std::pair<std::string, int>, std::string> probes_;  // in the participant's files, by file and line
};

}  // namespace workshop::tools
