// SPDX-License-Identifier: Apache-2.0
// Tests of programs: run a command on several ranks, then check its status, its output and its record.
//
//   TESTS(ddp) {
//     for (int ranks : {2, 4}) {
//       test("solution.02.losses." + text(ranks), {.ranks = ranks}, [=] {
//         const Run run = record(on(ranks, solution("02_ddp/ddp"), "--epochs", 2));
//         EXPECT_EQ(run.record.steps, 64 / ranks) << run.command;
//       });
//     }
//   }
//
// Every test runs in a process and a folder of its own, tests/run/NAME, and has the first word of its name as a label.
// CTest runs a test with `chapter_tests NAME`; use the same command to repeat it.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <functional>
#include <source_location>
#include <sstream>
#include <string>
#include <vector>

#include "tools/shared/run_record.h"

namespace workshop::tests {

inline const bool kCuda = std::string(WORKSHOP_BACKEND) == "cuda";
// Bound for results that are bitwise equal on the cpu backend. On GPUs they may differ, because cuBLAS chooses a kernel
// by the alignment of a matrix and nvcc fuses multiplications and additions where g++ does not.
inline const double kSameBits = kCuda ? 1e-4 : 0;

// Returns the number of the current attempt, 1 to 3. Only tests with `measures` have more than one.
int attempt();

// ---- commands ------------------------------------------------------------------------------------------------------

// The path of a program or a file. It stays one word even if it contains spaces.
struct Path {
  std::string path;
};
Path solution(const std::string& name);  // "02_ddp/ddp"
Path source(const std::string& name);    // a file of the repository: "tests/golden/ddp2_default.json"

// A program with its options, and the number of ranks that run it.
struct Command {
  int ranks = 1;
  std::vector<std::string> words;
  std::vector<std::string> environment;  // NAME=VALUE

  Command in(const std::string& variable) const;  // adds a variable
};

// Appends options to a command line. Text is split at spaces; a number is one word.
void append(std::vector<std::string>& words, const Path& path);
void append(std::vector<std::string>& words, const std::string& text);
template <typename Number>
requires std::integral<Number> || std::floating_point<Number>
void append(std::vector<std::string>& words, Number number) {
  std::ostringstream out;
  out << number;
  words.push_back(out.str());
}
// Returns the command with further options.
template <typename... Options>
Command with(Command command, const Options&... options) {
  (append(command.words, options), ...);
  return command;
}
template <typename... Options>
Command on(int ranks, const Path& program, const Options&... options) {
  return with(Command{ranks, {program.path}, {}}, options...);
}

// Concatenates: text("--batch-size ", 12) is "--batch-size 12", text(3, "x", 2) is "3x2".
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// ---- runs ----------------------------------------------------------------------------------------------------------

struct Run {
  std::string command;  // shell command that repeats the run
  int status = 0;
  std::string output;       // stdout and stderr of all ranks
  tools::RunRecord record;  // only from record()
};

// A command ends before the test's time is up, and with the test's process: tools/launch sees to that.
Run run(const Command& command);                                   // with any status
Run succeed(const Command& command);                               // ends the test if the command fails
Run record(const Command& command, const std::string& file = "");  // also reads the run record
Run script(const Path& program,
           const std::vector<std::string>& arguments);  // without ranks; if it fails, the test fails with its output

// Ends the test with this message.
[[noreturn]] void fail(const std::string& message);
// Formats a failure: the command, what was expected and what was found.
std::string report(const Run& run, const std::string& expected, const std::string& found);

// ---- tests ---------------------------------------------------------------------------------------------------------

struct Properties {
  int ranks = 1;          // most ranks that it starts at once
  int timeout = 300;      // seconds; idle machines need only a few; GPUs get four times as long
  bool measures = false;  // compares times with simulated ones: runs by itself, with three attempts
  bool soak = false;      // adds the label "soak"
  int processors = 1;     // cores that it keeps busy; ranks mostly wait for each other
  std::string cpu_only;   // why it needs the cpu backend; empty if it does not
};

using Where = std::source_location;  // a failure is reported at the line of the test

void test(const std::string& name, const Properties& properties, std::function<void()> body,
          const Where& where = Where::current());
// Registers a test that runs the command and passes the run, with its record, to `check`.
void test(const std::string& name, const Command& command, std::function<void(const Run&)> check,
          const Where& where = Where::current());

// Registers the tests of a source file; use TESTS.
struct Registration {
  Registration(const char* file, void (*function)());
};
#define TESTS(name)                                                                       \
  static void name##_tests();                                                             \
  static const ::workshop::tests::Registration name##_registered(__FILE__, name##_tests); \
  static void name##_tests()

}  // namespace workshop::tests
