// SPDX-License-Identifier: Apache-2.0
// Makes the exercises from the solutions' .cu and .h files. The code of every region
//
//     // TODO 02.1: What to do.
//     //   More about it, indented by two spaces more.
//     code of the solution
//     // END TODO 02.1
//
// becomes `todo("02.1");`. A source without such a region makes no exercise. With --filling 02.1-mistake.txt, the
// regions keep the solution's code, and TODO 02.1's region also gets the code in this file, which runs if
// WORKSHOP_FILLING is "02.1-mistake" (checker/filling.h). The tests use this to make programs with known mistakes.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/shared/arguments.h"

namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return content.str();
}

void write_file(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << content << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

const std::string kInclude = "#include \"checker/filling.h\"\n";

// True if the code has more than comments.
bool has_statement(const std::string& code) {
  static const std::regex kStatement(R"((^|\n)\s*[^\s/])");
  return std::regex_search(code, kStatement);
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

// Wrong code for the regions, by the TODO's number, "02.1", and the mistake's name, "02.1-sum".
using Fillings = std::map<std::string, std::map<std::string, std::string>>;

// Rewrites the source files of one chapter and checks its regions.
class Chapter {
 public:
  // `number` is the chapter's number, "02".
  Chapter(std::string number, const Fillings& fillings) : number_(std::move(number)), fillings_(fillings) {}

  // Returns the exercise for a source file of the solution. Throws std::runtime_error "file:line: what is wrong".
  std::string rewrite(const fs::path& path);

  const std::set<std::string>& ids() const { return ids_; }

 private:
  void open(const std::string& line);
  void close(const std::string& id, std::string& out);
  [[noreturn]] void fail(int line, const std::string& message) const {
    throw std::runtime_error(path_.string() + ":" + std::to_string(line) + ": " + message);
  }

  std::string number_;
  const Fillings& fillings_;
  std::set<std::string> ids_;  // TODOs found so far

  fs::path path_;
  int line_ = 0;
  // The region being read, if any:
  std::string id_, indentation_, code_;
  int opened_ = 0;  // line of its first comment; 0 outside a region
};

void Chapter::open(const std::string& line) {
  static const std::regex kOpen(R"((\s*)// TODO (\d\d)\.(\d+): \S.*)");
  std::smatch match;
  if (opened_ > 0) fail(line_, "a TODO inside TODO " + id_ + ", which began in line " + std::to_string(opened_));
  if (!std::regex_match(line, match, kOpen)) fail(line_, "expected '// TODO " + number_ + ".1: text'");
  id_ = match[2].str() + "." + match[3].str();
  indentation_ = match[1];
  if (match[2] != number_) fail(line_, "TODO " + id_ + " in chapter " + number_);
  if (!ids_.insert(id_).second) fail(line_, "a second TODO " + id_);
  opened_ = line_;
  code_.clear();
}

void Chapter::close(const std::string& id, std::string& out) {
  if (opened_ == 0) fail(line_, "END TODO " + id + " without its TODO");
  if (id != id_) fail(line_, "END TODO " + id + " closes TODO " + id_);
  if (is_blank(code_)) fail(opened_, "TODO " + id_ + " has no code");
  const auto mistakes = fillings_.find(id_);
  if (fillings_.empty()) {
    out += indentation_ + "todo(\"" + id_ + "\");\n";
  } else if (mistakes == fillings_.end()) {
    out += code_;
  } else {
    for (const auto& [name, code] : mistakes->second)
      out += "if (workshop::filling(\"" + name + "\")) {\n" + code + "} else ";
    out += "{\n" + code_ + "}\n";
    out.insert(0, out.starts_with(kInclude) ? "" : kInclude);
  }
  opened_ = 0;
}

std::string Chapter::rewrite(const fs::path& path) {
  static const std::regex kMarker(R"(\s*//\s*(END )?TODO\b.*)");
  static const std::regex kClose(R"(\s*// END TODO (\S+)\s*)");
  static const std::regex kMoreText(R"(\s*//\s{3,}.*)");
  path_ = path;
  line_ = opened_ = 0;
  std::istringstream in(read_file(path));
  std::string line, out;
  while (std::getline(in, line)) {
    ++line_;
    std::smatch match;
    if (std::regex_match(line, match, kMarker)) {
      if (!match[1].matched) {
        open(line);
      } else if (std::regex_match(line, match, kClose)) {
        close(match[1], out);
      } else {
        fail(line_, "expected '// END TODO " + number_ + ".1'");
      }
    } else if (opened_ > 0 && !(code_.empty() && std::regex_match(line, kMoreText))) {
      // If a wrapped line of the TODO's text lost its indentation, the text after it would be missing in the exercise.
      if (std::regex_match(line, kMoreText) && !has_statement(code_))
        fail(line_, "text of TODO " + id_ + " after a line that is not indented");
      code_ += line + "\n";
      continue;
    }
    out += line + "\n";
  }
  if (opened_ > 0) fail(opened_, "TODO " + id_ + " has no END TODO");
  return out;
}

// Writes the exercises of one chapter: its sources that have a TODO. Programs include all others from the solutions.
// Returns the numbers of the chapter's TODOs.
std::set<std::string> make_chapter(const fs::path& from, const fs::path& to, const Fillings& fillings) {
  if (!fs::is_directory(from)) throw std::runtime_error("no chapter " + from.string());
  Chapter chapter(to.filename().string().substr(0, 2), fillings);
  std::set<fs::path> files;  // sorted, so that messages do not depend on the file system
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    const bool source = entry.path().extension() == ".cu" || entry.path().extension() == ".h";
    if (source && entry.is_regular_file()) files.insert(entry.path());
  }
  for (const fs::path& path : files) {
    const std::size_t before = chapter.ids().size();
    const std::string exercise = chapter.rewrite(path);
    if (chapter.ids().size() > before) write_file(to / fs::relative(path, from), exercise);
  }
  return chapter.ids();
}

Fillings read_fillings(const std::vector<std::string>& files) {
  Fillings fillings;
  for (const fs::path path : files) {
    const std::string mistake = path.stem();
    fillings[mistake.substr(0, mistake.find('-'))][mistake] = read_file(path);
  }
  return fillings;
}

void make_exercises(const fs::path& solutions, const fs::path& out, const std::vector<std::string>& chapters,
                    const Fillings& fillings) {
  std::set<std::string> ids;
  for (const std::string& chapter : chapters) ids.merge(make_chapter(solutions / chapter, out / chapter, fillings));
  for (const auto& [id, mistakes] : fillings) {
    if (!ids.contains(id)) {
      throw std::runtime_error("--filling " + mistakes.begin()->first + ": there is no TODO with this number");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string solutions, out;
  std::vector<std::string> chapters, fillings;
  workshop::tools::Arguments arguments("make_exercises", "Makes the exercises of chapters from their solutions.");
  arguments.require("SOLUTIONS", solutions, "the folder of the solutions");
  arguments.require("OUT", out, "the folder to write the chapters to");
  arguments.require("CHAPTER", chapters, "such as 02_ddp");
  arguments.add("--filling", fillings, "a file 02.1-mistake.txt with wrong code for that TODO");
  return arguments.run(argc, argv, [&] {
    make_exercises(solutions, out, chapters, read_fillings(fillings));
    return 0;
  });
}
