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
  return {chapter, number};
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

using Found = std::map<std::string, Todo, TodoOrder>;

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

void read_source(std::ifstream& file, const std::string& name, Found& found) {
  Functions functions;
  std::string line, open;
  bool in_comment = false;
  for (int number = 1; std::getline(file, line); ++number) {
    if (const std::string rest = after(line, "// TODO "); !rest.empty()) {
      const std::size_t colon = rest.find(": ");
      if (colon == std::string::npos || !std::isdigit(static_cast<unsigned char>(rest[0]))) continue;
      open = rest.substr(0, colon);
      found[open] = {
          rest.substr(colon + 2), rest.substr(colon + 2), name, functions.innermost(), "", "", number, number};
      in_comment = true;
    } else if (const std::string id = after(line, "// END TODO "); !id.empty()) {
      if (found.contains(id)) found[id].last = number;
      open.clear();
    } else if (!open.empty()) {
      const std::string text = after(line, "//");
      in_comment = in_comment && !text.empty();
      if (in_comment) found[open].whole_text += " " + text.substr(std::min(text.find_first_not_of(' '), text.size()));
      if (text.empty()) found[open].code += line + '\n';
      found[open].last = number;
    } else {
      functions.read(line);
    }
  }
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

Todos::Todos(const std::vector<std::string>& sources, const std::string& folder) {
  Found mine;
  for (const std::string& path : sources) {
    const std::string name = last_two(path);
    std::ifstream master(path);
    if (!master) throw std::runtime_error("cannot read " + path);
    read_source(master, name, all_);
    std::ifstream file(folder + "/" + name);
    if (!folder.empty() && file) read_source(file, name, mine);
  }
  for (auto& [id, todo] : all_) {
    const auto found = mine.find(id);
    todo.first_in_solution = todo.first;
    todo.last_in_solution = todo.last;
    todo.first = found == mine.end() ? 0 : found->second.first;
    todo.last = found == mine.end() ? 0 : found->second.last;
    todo.function = found == mine.end() ? "" : found->second.function;
    todo.code_in_solution = std::exchange(todo.code, found == mine.end() ? "" : found->second.code);
    const auto has = [](const std::string& code, const char* word) { return code.find(word) != std::string::npos; };
    todo.says_float =
        has(todo.code_in_solution, "kReal") && !has(todo.code_in_solution, "ncclFloat") && has(todo.code, "ncclFloat");
    todo.says_real =
        has(todo.code_in_solution, "ncclFloat") && !has(todo.code_in_solution, "kReal") && has(todo.code, "kReal");
  }
}

std::string Todos::heading(const std::string& id) const {
  const auto todo = all_.find(id);
  return "TODO " + id + (todo == all_.end() || todo->second.text.empty() ? "" : " (" + todo->second.text + ")");
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
  return "";
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
