// SPDX-License-Identifier: Apache-2.0
#include "checker/todos.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <utility>

namespace workshop::tools {
namespace {

std::pair<int, int> key(const std::string& id) {
  int chapter = 0, number = 0;
  std::sscanf(id.c_str(), "%d.%d", &chapter, &number);
  return {chapter, is_write(id) ? id.back() - 'Z' - 1 : number};
}

// The last two parts of a path: a chapter's folder and a file name.
std::string last_two(std::string_view path) {
  std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos && slash > 0) slash = path.rfind('/', slash - 1);
  return std::string(path.substr(slash == std::string_view::npos ? 0 : slash + 1));
}

// Returns the rest of a line that begins with `marker`, after any indentation; "" for any other line.
std::string after(const std::string& line, std::string_view marker) {
  const std::size_t start = line.find_first_not_of(" \t");
  if (start == std::string::npos || line.compare(start, marker.size(), marker) != 0) return "";
  return line.substr(start + marker.size());
}

struct Found {
  std::map<std::string, Todo, TodoOrder> regions;
  std::map<std::string, std::string> around;  // the WRITE region around a TODO
  TodoIds probed_inside;                      // TODOs with a probe inside the WRITE region
  TodoIds probed;                             // with a probe anywhere
  std::set<std::string> files;
  std::map<std::pair<std::string, int>, std::string> probes;  // by file and line: whose result a probe records
};

// Tracks which functions contain the current line of a source that clang-format has formatted.
class Functions {
 public:
  void read(const std::string& line) {
    // "void copy(Part& to, …": the words of a type, then a name.
    static const std::regex kBegin(R"(^( *)(?!return|else)[A-Za-z_][\w:<>,*& ]* [*&]?(\w+)\(.*[,({]$)");
    std::smatch match;
    const std::size_t indent = line.find_first_not_of(' ');
    if (std::regex_match(line, match, kBegin)) {
      names_[indent] = match[2];
    } else if (indent != std::string::npos && line[indent] == '}') {
      names_.erase(indent);
    }
  }
  std::string innermost() const { return names_.empty() ? "" : names_.rbegin()->second; }

 private:
  std::map<std::size_t, std::string> names_;  // by indentation
};

// Reads the regions of one kind, "TODO" or "WRITE", from a source.
class Regions {
 public:
  Regions(const std::string& kind, const std::string& file, Found& found)
      : begin_("// " + kind + " "), end_("// END " + kind + " "), file_(file), found_(found) {}

  // The region that is open; "" if none is.
  const std::string& open() const { return open_; }

  // Reads a line; returns true if it is a marker.
  bool read(const std::string& line, int number, const std::string& function) {
    if (const std::string rest = after(line, begin_); !rest.empty()) {
      const std::size_t colon = rest.find(": ");
      if (colon == std::string::npos || !std::isdigit(static_cast<unsigned char>(rest[0]))) return false;
      open_ = rest.substr(0, colon);
      const std::string text = rest.substr(colon + 2);
      Todo& todo = found_.regions[open_] = {};
      todo.text = todo.whole_text = text;
      todo.file = file_;
      todo.function = function;
      todo.first = todo.last = number;
      in_comment_ = true;
      return true;
    }
    if (const std::string id = after(line, end_); !id.empty()) {
      if (found_.regions.contains(id)) found_.regions[id].last = number;
      open_.clear();
      return true;
    }
    if (open_.empty()) return false;
    Todo& todo = found_.regions[open_];
    const std::string text = after(line, "//");
    in_comment_ = in_comment_ && !text.empty();
    if (in_comment_) todo.whole_text += " " + text.substr(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) todo.code += line + '\n';
    todo.last = number;
    return false;
  }

 private:
  std::string begin_, end_, file_;
  Found& found_;
  std::string open_;
  bool in_comment_ = false;
};

void read_source(std::ifstream& file, const std::string& name, Found& found) {
  found.files.insert(name);
  Functions functions;
  Regions todos("TODO", name, found), writes("WRITE", name, found);
  std::map<std::string, std::string> inner;  // the TODOs inside WRITE regions of this file
  std::string line;
  static const std::regex kProbe(R"re(^(?! *//).*\bprobe(?:_\w+)?\("(\d\d\.\w+)")re");
  for (int number = 1; std::getline(file, line); ++number) {
    if (std::smatch match; line.find("probe") != std::string::npos && std::regex_search(line, match, kProbe))
      found.probed.insert(match[1]);
    const std::string before = writes.open();
    const bool is_marker = writes.read(line, number, functions.innermost());
    if (is_marker && writes.open().empty()) {
      for (const auto& [todo, write] : inner) {
        if (write == before && found.regions[write].code.find('"' + todo + '"') != std::string::npos)
          found.probed_inside.insert(todo);
      }
    }
    if (is_marker || todos.read(line, number, functions.innermost())) {
      if (!writes.open().empty() && !todos.open().empty()) inner[todos.open()] = writes.open();
      continue;
    }
    if (todos.open().empty()) functions.read(line);
    static const std::regex kProbe(R"re(\bprobe\("(\d\d\.\w+)", (?!\{?"given to ))re");
    if (std::smatch match; std::regex_search(line, match, kProbe)) found.probes[{name, number}] = match[1];
  }
  found.around.merge(inner);
}

}  // namespace

bool TodoOrder::operator()(const std::string& a, const std::string& b) const { return key(a) < key(b); }

std::vector<Place> places(std::string_view text) {
  std::vector<Place> found;
  for (std::size_t colon = text.find(':'); colon != std::string_view::npos; colon = text.find(':', colon + 1)) {
    const std::string_view before = text.substr(0, colon);
    if (!before.ends_with(".h") && !before.ends_with(".cu")) continue;
    if (colon + 1 == text.size() || !std::isdigit(static_cast<unsigned char>(text[colon + 1]))) continue;
    const std::size_t start = before.find_last_of(" \t\n(\"'[,");
    const std::string path(before.substr(start == std::string_view::npos ? 0 : start + 1));
    found.push_back({last_two(path), std::atoi(std::string(text.substr(colon + 1, 9)).c_str())});
  }
  return found;
}

bool is_write(const std::string& id) { return !id.empty() && std::isupper(static_cast<unsigned char>(id.back())); }

std::string called(const std::string& id) { return (is_write(id) ? "WRITE " : "TODO ") + id; }

std::string called(const TodoIds& ids) {
  std::string list, before;
  for (const bool write : {false, true}) {
    for (const std::string& id : ids) {
      if (is_write(id) != write) continue;
      const std::string name = called(id), kind = name.substr(0, name.find(' '));
      list += (list.empty() ? "" : ", ") + (kind == before ? id : name);
      before = kind;
    }
  }
  return list;
}

Todos::Todos(const std::vector<std::string>& sources, const std::string& folder, Level level) {
  Found solution, mine;
  for (const std::string& path : sources) {
    const std::string name = last_two(path);
    std::ifstream master(path);
    if (!master) throw std::runtime_error("cannot read " + path);
    read_source(master, name, solution);
    std::ifstream file(folder + "/" + name);
    if (!folder.empty() && file) read_source(file, name, mine);
  }
  probes_ = mine.probes;
  // A WRITE region is the participant's if none of the TODOs in it is.
  std::map<std::string, std::pair<int, int>> inner;  // of each WRITE region: its TODOs, and how many of them are there
  for (const auto& [todo, write] : solution.around) {
    inner[write].first += 1;
    inner[write].second += mine.regions.contains(todo);
  }
  const auto counts = [&](const std::string& write) {
    if (level != Level::found) return level == Level::blank;
    const auto [todos, there] = inner[write];
    if (todos == 0 || !mine.files.contains(solution.regions[write].file)) return mine.regions.contains(write);
    return there == 0;
  };
  for (const auto& [id, todo] : solution.regions) {
    const auto around = solution.around.find(id);
    if (is_write(id) ? counts(id) : around == solution.around.end() || !counts(around->second)) {
      all_[id] = todo;
    } else {
      region_[id] = is_write(id) ? "" : around->second;
      if (solution.probed_inside.contains(id)) probed_inside_.insert(id);
    }
  }
  for (const std::string& id : solution.probed) {
    if (const auto region = all_.find(region_of_probe(id)); region != all_.end()) region->second.has_probe = true;
  }
  for (auto& [id, todo] : all_) {
    const auto found = mine.regions.find(id);
    const bool there = found != mine.regions.end();
    todo.first_in_solution = todo.first;
    todo.last_in_solution = todo.last;
    todo.first = there ? found->second.first : 0;
    todo.last = there ? found->second.last : 0;
    todo.function_in_solution = todo.function;
    todo.function = there ? found->second.function : "";
    todo.code_in_solution = std::exchange(todo.code, there ? found->second.code : "");
    const auto has = [](const std::string& code, const char* word) { return code.find(word) != std::string::npos; };
    todo.says_float =
        has(todo.code_in_solution, "kReal") && !has(todo.code_in_solution, "ncclFloat") && has(todo.code, "ncclFloat");
    todo.says_real =
        has(todo.code_in_solution, "ncclFloat") && !has(todo.code_in_solution, "kReal") && has(todo.code, "kReal");
  }
}

std::string Todos::kind() const { return !all_.empty() && is_write(all_.begin()->first) ? "region" : "TODO"; }

std::string Todos::region_of(const std::string& id) const {
  const auto region = region_.find(id);
  return region == region_.end() ? id : region->second;
}

std::string Todos::region_of_probe(const std::string& id) const {
  return probed_inside_.contains(id) ? "" : region_of(id);
}

std::string Todos::heading(const std::string& id) const {
  const auto todo = all_.find(id);
  return called(id) + (todo == all_.end() || todo->second.text.empty() ? "" : " (" + todo->second.text + ")");
}

std::string Todos::at_this_level(const std::string& text) const {
  static const std::regex kNamed(R"(TODO (\d\d\.\d+)(?:, part of WRITE \d\d\.[A-Z])?)");
  std::string seen;
  auto rest = text.cbegin();
  for (std::sregex_iterator match(text.begin(), text.end(), kNamed), end; match != end; ++match) {
    seen.append(rest, (*match)[0].first).append(called(region_of((*match)[1])));
    rest = (*match)[0].second;
  }
  return seen.append(rest, text.cend());
}

std::string Todos::place_line(const std::string& id) const {
  const auto todo = all_.find(id);
  if (todo == all_.end() || todo->second.first == 0) return "";
  return "  at " + todo->second.file + ":" + std::to_string(todo->second.first) + "\n";
}

std::string Todos::at(const Place& place) const {
  for (const auto& [id, todo] : all_) {
    if (todo.first > 0 && todo.file == place.file && todo.first <= place.line && place.line <= todo.last) return id;
  }
  const auto probe = probes_.find({place.file, place.line});
  const std::string id = probe == probes_.end() ? "" : region_of_probe(probe->second);
  return all_.contains(id) ? id : "";
}

std::string Todos::at_in_solution(const Place& place) const {
  for (const auto& [id, todo] : all_) {
    if (todo.file == place.file && todo.first_in_solution <= place.line && place.line <= todo.last_in_solution)
      return id;
  }
  return "";
}

bool Todos::calls(const std::string& caller, const std::string& callee) const {
  const auto from = all_.find(caller), to = all_.find(callee);
  if (from == all_.end() || to == all_.end() || to->second.function.empty()) return false;
  return std::regex_search(from->second.code, std::regex("\\b" + to->second.function + "\\("));
}

TodoIds Todos::that_call(const std::string& function) const {
  const std::regex call("\\b" + std::regex_replace(function, std::regex("[.]"), "[.]") + "\\(");
  TodoIds ids;
  for (const auto& [id, todo] : all_) {
    if (std::regex_search(todo.code_in_solution, call)) ids.insert(id);
  }
  return ids;
}

std::string Todos::nearest(const Place& place) const {
  std::string best;
  int least = 0;
  for (const auto& [id, todo] : all_) {
    if (todo.first == 0 || todo.file != place.file) continue;
    const int distance = std::max({0, todo.first - place.line, place.line - todo.last});
    if (best.empty() || distance < least) {
      best = id;
      least = distance;
    }
  }
  return best;
}

}  // namespace workshop::tools
