// SPDX-License-Identifier: Apache-2.0
// Runs a command line and collects its status and its output.
#pragma once

#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

struct ToolResult {
  int status;
  std::string output;  // stdout and stderr
};

inline ToolResult run_tool(const std::string& command_line) {
  std::FILE* pipe = popen((std::string(TOOLS) + "/" + command_line + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  for (std::size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), count);
  }
  return {WEXITSTATUS(pclose(pipe)), output};
}

// A temporary folder, removed at the end of its scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "workshop-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << content;
    return *this / name;
  }
  std::string read(const std::string& name) const {
    std::ostringstream content;
    content << std::ifstream(path_ / name).rdbuf();
    return content.str();
  }

 private:
  std::filesystem::path path_;
};
