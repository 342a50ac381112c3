// SPDX-License-Identifier: Apache-2.0
// Makes the exercises from the solutions' .cu and .h files. The code of every region
//
//     // TODO 02.1: What to do.
//     //   More about it, indented by two spaces more.
//     code of the solution
//     // END TODO 02.1
//
// becomes `todo("02.1");`. Around TODOs there may be a larger region, // WRITE 02.A: … to // END WRITE 02.A, a whole
// function or technique. At the guided level, only its code is kept; with --level blank, the region becomes
// `todo("02.A");`, and the TODOs in it disappear. A source without a region of the level makes no exercise.
//
// With --filling 02.1-mistake.txt, all regions keep the solution's code, and TODO 02.1's region also gets the code in
// this file, which runs if WORKSHOP_FILLING is "02.1-mistake" (checker/filling.h). So does a WRITE region with
// --filling 02.A-mistake.txt. The tests use this to make programs with known mistakes.
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

// Wrong code for the regions, by the region's number, "02.1" or "02.A", and the mistake's name, "02.1-sum".
using Fillings = std::map<std::string, std::map<std::string, std::string>>;

enum class Level { guided, blank, with_fillings };

// The region of a TODO, or a WRITE region.
struct Region {
  bool is_open() const { return opened > 0; }
  std::string id, indentation, code;
  int opened = 0;  // line of its first comment; 0 outside the region
};

// Rewrites the source files of one chapter and checks its regions.
class Chapter {
 public:
  // `number` is the chapter's number, "02".
  Chapter(std::string number, Level level, const Fillings& fillings)
      : number_(std::move(number)), level_(level), fillings_(fillings) {}

  // Returns the exercise for a source file of the solution; "" if the level has no region in it. Throws
  // std::runtime_error "file:line: what is wrong".
  std::string rewrite(const fs::path& path);

  const std::set<std::string>& ids() const { return ids_; }

 private:
  void open(const std::string& line, const std::string& kind);
  void close(const std::string& kind, const std::string& id);
  // Where code goes that belongs to no TODO.
  std::string& sink() { return write_.is_open() ? write_.code : out_; }
  // The code of a region with its wrong fillings, if it has some.
  std::string with_fillings(const Region& region);
  // A probe inside a WRITE region is not there at the blank level, so it cannot judge with one that still is.
  void check_probes(const std::string& source) const;
  [[noreturn]] void fail(int line, const std::string& message) const {
    throw std::runtime_error(path_.string() + ":" + std::to_string(line) + ": " + message);
  }

  std::string number_;
  Level level_;
  const Fillings& fillings_;
  std::set<std::string> ids_;  // regions found so far

  fs::path path_;
  int line_ = 0, todos_ = 0, writes_ = 0;
  std::string out_;
  bool has_fillings_ = false;
  Region todo_, write_;  // the regions being read, if any
  struct Inner {
    std::string todo, write;
    int line;
  };
  std::vector<Inner> inner_;                  // the TODOs inside WRITE regions
  std::map<std::string, std::string> whole_;  // the lines of each WRITE region
};

void Chapter::open(const std::string& line, const std::string& kind) {
  static const std::map<std::string, std::regex> kOpen = {
      {"TODO", std::regex(R"((\s*)// TODO ((\d\d)\.\d+): \S.*)")},
      {"WRITE", std::regex(R"((\s*)// WRITE ((\d\d)\.[A-Z]): \S.*)")}};
  std::smatch match;
  Region& region = kind == "TODO" ? todo_ : write_;
  for (const auto& [of, inside] : {std::pair("TODO ", &todo_), {"WRITE ", &region}}) {
    if (inside->is_open())
      fail(line_,
           "a " + kind + " inside " + of + inside->id + ", which began in line " + std::to_string(inside->opened));
  }
  if (!std::regex_match(line, match, kOpen.at(kind)))
    fail(line_, "expected '// " + kind + " " + number_ + (kind == "TODO" ? ".1: text'" : ".A: text'"));
  region = {match[2], match[1], "", line_};
  if (match[3] != number_) fail(line_, kind + " " + region.id + " in chapter " + number_);
  if (!ids_.insert(region.id).second) fail(line_, "a second " + kind + " " + region.id);
  ++(kind == "TODO" ? todos_ : writes_);
  if (kind == "TODO" && write_.is_open()) inner_.push_back({region.id, write_.id, line_});
}

std::string Chapter::with_fillings(const Region& region) {
  const auto mistakes = fillings_.find(region.id);
  if (mistakes == fillings_.end()) return region.code;
  has_fillings_ = true;
  std::string code;
  for (const auto& [name, wrong] : mistakes->second)
    code += "if (workshop::filling(\"" + name + "\")) {\n" + wrong + "} else ";
  return code + "{\n" + region.code + "}\n";
}

void Chapter::close(const std::string& kind, const std::string& id) {
  Region& region = kind == "TODO" ? todo_ : write_;
  if (!region.is_open()) fail(line_, "END " + kind + " " + id + " without its " + kind);
  if (id != region.id) fail(line_, "END " + kind + " " + id + " closes " + kind + " " + region.id);
  if (is_blank(region.code)) fail(region.opened, kind + " " + region.id + " has no code");
  const bool is_emptied = level_ == Level::blank || (level_ == Level::guided && kind == "TODO");
  const std::string code = is_emptied ? region.indentation + "todo(\"" + region.id + "\");\n" : with_fillings(region);
  region.opened = 0;
  sink() += code;
}

void Chapter::check_probes(const std::string& source) const {
  const auto count = [](const std::string& text, const std::string& word) {
    int found = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  for (const auto& [todo, write, line] : inner_) {
    const int inside = count(whole_.at(write), "\"" + todo + "\"");
    if (inside > 0 && inside < count(source, "\"" + todo + "\""))
      fail(line, "TODO " + todo + " has probes inside and outside of WRITE " + write);
  }
}

std::string Chapter::rewrite(const fs::path& path) {
  static const std::regex kMarker(R"(\s*//\s*(END )?(TODO|WRITE)\b.*)");
  static const std::regex kClose(R"(\s*// END (?:TODO|WRITE) (\S+)\s*)");
  static const std::regex kMoreText(R"(\s*//\s{3,}.*)");
  path_ = path;
  line_ = todos_ = writes_ = 0;
  todo_ = write_ = {};
  out_.clear();
  inner_.clear();
  whole_.clear();
  has_fillings_ = false;
  const std::string source = read_file(path);
  std::istringstream in(source);
  std::string line;
  while (std::getline(in, line)) {
    ++line_;
    if (write_.is_open()) whole_[write_.id] += line + "\n";
    std::smatch match;
    if (std::regex_match(line, match, kMarker)) {
      const std::string kind = match[2];
      const bool opens = !match[1].matched;
      if (opens) {
        open(line, kind);
      } else if (std::regex_match(line, match, kClose)) {
        if (kind == "WRITE" && todo_.is_open()) fail(todo_.opened, "TODO " + todo_.id + " has no END TODO");
        close(kind, match[1]);
      } else {
        fail(line_, "expected '// END " + kind + " " + number_ + (kind == "TODO" ? ".1'" : ".A'"));
      }
      if (kind == "WRITE") {
        if (level_ != Level::guided) out_ += line + "\n";
        continue;
      }
    } else if (todo_.is_open() && !(todo_.code.empty() && std::regex_match(line, kMoreText))) {
      // If a wrapped line of the TODO's text lost its indentation, the text after it would be missing in the exercise.
      if (std::regex_match(line, kMoreText) && !has_statement(todo_.code))
        fail(line_, "text of TODO " + todo_.id + " after a line that is not indented");
      todo_.code += line + "\n";
      continue;
    } else if (write_.is_open() && !todo_.is_open() && std::regex_match(line, kMoreText) &&
               !has_statement(write_.code)) {
      if (!write_.code.empty()) fail(line_, "text of WRITE " + write_.id + " after a line that is not indented");
      if (level_ != Level::guided) out_ += line + "\n";
      continue;
    }
    sink() += line + "\n";
  }
  if (todo_.is_open()) fail(todo_.opened, "TODO " + todo_.id + " has no END TODO");
  if (write_.is_open()) fail(write_.opened, "WRITE " + write_.id + " has no END WRITE");
  check_probes(source);
  // Programs look for a header among the participant's files only if the guided level has it, too.
  if (writes_ > 0 && todos_ == 0 && path.extension() == ".h") fail(1, "a header with a WRITE needs a TODO");
  if (todos_ == 0 && (writes_ == 0 || level_ == Level::guided)) return "";
  return (has_fillings_ ? kInclude : "") + out_;
}

// Writes the exercises of one chapter: its sources that have a region. Programs include all others from the solutions.
// Returns the numbers of the chapter's regions.
std::set<std::string> make_chapter(const fs::path& from, const fs::path& to, Level level, const Fillings& fillings) {
  if (!fs::is_directory(from)) throw std::runtime_error("no chapter " + from.string());
  Chapter chapter(to.filename().string().substr(0, 2), level, fillings);
  std::set<fs::path> files;  // sorted, so that messages do not depend on the file system
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    const bool source = entry.path().extension() == ".cu" || entry.path().extension() == ".h";
    if (source && entry.is_regular_file()) files.insert(entry.path());
  }
  for (const fs::path& path : files) {
    const std::string exercise = chapter.rewrite(path);
    if (!exercise.empty()) write_file(to / fs::relative(path, from), exercise);
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
                    Level level, const Fillings& fillings) {
  std::set<std::string> ids;
  for (const std::string& chapter : chapters)
    ids.merge(make_chapter(solutions / chapter, out / chapter, level, fillings));
  for (const auto& [id, mistakes] : fillings) {
    if (!ids.contains(id)) {
      throw std::runtime_error("--filling " + mistakes.begin()->first + ": there is no region with this number");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string solutions, out, level = "guided";
  std::vector<std::string> chapters, fillings;
  workshop::tools::Arguments arguments("make_exercises", "Makes the exercises of chapters from their solutions.");
  arguments.require("SOLUTIONS", solutions, "the folder of the solutions");
  arguments.require("OUT", out, "the folder to write the chapters to");
  arguments.require("CHAPTER", chapters, "such as 02_ddp");
  arguments.add("--level", level, "guided: one TODO per decision; blank: whole functions are empty");
  arguments.add("--filling", fillings, "a file 02.1-mistake.txt with wrong code for that TODO, or 02.A-mistake.txt");
  return arguments.run(argc, argv, [&] {
    if (level != "guided" && level != "blank")
      throw std::runtime_error("--level is '" + level + "'; expected guided or blank");
    make_exercises(solutions, out, chapters,
                   !fillings.empty()  ? Level::with_fillings
                   : level == "blank" ? Level::blank
                                      : Level::guided,
                   read_fillings(fillings));
    return 0;
  });
}
