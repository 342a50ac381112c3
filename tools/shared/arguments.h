// SPDX-License-Identifier: Apache-2.0
// The command line of a tool. CLI11 parses it, behind this header: it takes longer to compile than most tools.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace workshop::tools {

class Arguments {
 public:
  Arguments(const std::string& tool, const std::string& description);
  ~Arguments();

  // Declares an option, "--json", or a positional argument, "FILE". It is written to `value`, which must outlive this:
  // a bool is a flag, a std::string, int or double takes one text. A std::vector<std::string> takes one text each time
  // its option is given, or all that is left over if it is positional.
  template <typename T>
  void add(const std::string& name, T& value, const std::string& help);
  // The same for what must be given.
  template <typename T>
  void require(const std::string& name, T& value, const std::string& help);
  // A whole number within these bounds.
  void add(const std::string& name, int& value, const std::string& help, int at_least, int at_most);

  // Parses the command line and returns what `run` returns. If either fails, prints one line and returns 2.
  int run(int argc, char** argv, const std::function<int()>& run);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace workshop::tools
