// SPDX-License-Identifier: Apache-2.0
// The command line of a tool. CLI11, which parses it, is hidden behind this header: it takes longer to compile than
// most tools.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace workshop::tools {

class Arguments {
 public:
  Arguments(const std::string& tool, const std::string& description);
  ~Arguments();

  // Declares an option, "--json", or a positional argument, "FILE". Its value is written to `value`, which must outlive
  // this object. A bool is a flag; a std::string, int or double takes one value. A std::vector<std::string> takes one
  // value each time its option is given or, if it is positional, all remaining arguments.
  template <typename T>
  void add(const std::string& name, T& value, const std::string& help);
  // The same for a required option or argument.
  template <typename T>
  void require(const std::string& name, T& value, const std::string& help);
  // The same for a whole number within bounds, both included.
  void add(const std::string& name, int& value, const std::string& help, int at_least, int at_most);

  // Parses the command line, calls `run` and returns its result. If the command line is wrong or `run` throws, prints
  // one line and returns 2.
  int run(int argc, char** argv, const std::function<int()>& run);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace workshop::tools
