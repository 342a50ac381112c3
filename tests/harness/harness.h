// SPDX-License-Identifier: Apache-2.0
// Tests of programs: a command on several ranks, and what it must print, record and end with.
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
// Every test has a process and a folder of its own, tests/run/NAME, in which its commands run, and the first word of
// its name for a label. `chapter_tests NAME` is how CTest runs one, and how you repeat it.
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
// cuBLAS picks a kernel by where a matrix lies in memory, and nvcc contracts products and sums where g++ does not: what
// is equal to the last bit on the cpu backend differs by at most so much there.
inline const double kSameBits = kCuda ? 1e-4 : 0;

// Which of the attempts this is that a test with `measures` has: 1, 2 or 3.
int attempt();

// ---- commands ------------------------------------------------------------------------------------------------------

// The path of a program or a file: one word, whatever is in it.
struct Path {
  std::string path;
};
Path solution(const std::string& name);  // "02_ddp/ddp"
Path source(const std::string& name);    // a file of the repository: "tests/golden/ddp2_default.json"

// A program with its options, and the ranks that it is started on.
struct Command {
  int ranks = 1;
  std::vector<std::string> words;
  std::vector<std::string> environment;  // NAME=VALUE

  Command in(const std::string& variable) const;  // with one more variable
};

// Text is divided at its spaces; numbers are words.
void append(std::vector<std::string>& words, const Path& path);
void append(std::vector<std::string>& words, const std::string& text);
template <typename Number>
requires std::integral<Number> || std::floating_point<Number>
void append(std::vector<std::string>& words, Number number) {
  std::ostringstream out;
  out << number;
  words.push_back(out.str());
}
// Like that, with options after it.
template <typename... Options>
Command with(Command command, const Options&... options) {
  (append(command.words, options), ...);
  return command;
}
template <typename... Options>
Command on(int ranks, const Path& program, const Options&... options) {
  return with(Command{ranks, {program.path}, {}}, options...);
}

// "--batch-size 12" of "--batch-size" and 12; "3x2" of 3, "x" and 2.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// ---- runs ----------------------------------------------------------------------------------------------------------

struct Run {
  std::string command;  // that repeats it
  int status = 0;
  std::string output;       // of all ranks, standard output and errors
  tools::RunRecord record;  // where it was asked for
};

// Each is over before the test's time is: tools/launch ends it, and with the test's process.
Run run(const Command& command);                                   // however it ends
Run succeed(const Command& command);                               // ends the test if it fails
Run record(const Command& command, const std::string& file = "");  // likewise; with its record
Run script(const Path& program,
           const std::vector<std::string>& arguments);  // without ranks; fails the test with its output

// Ends the test with that message.
[[noreturn]] void fail(const std::string& message);
// What a test says of a run that is not as expected.
std::string report(const Run& run, const std::string& expected, const std::string& found);

// ---- tests ---------------------------------------------------------------------------------------------------------

struct Properties {
  int ranks = 1;          // the most that it starts at a time
  int timeout = 300;      // seconds; a few are enough on a machine that is not busy, and GPUs get four times as many
  bool measures = false;  // holds times against those that the cpu backend simulates: runs alone, in three attempts
  bool soak = false;      // also labeled so
  int processors = 1;     // cores that it keeps busy; ranks mostly wait for each other
  std::string cpu_only;   // why only the cpu backend can run it
};

using Where = std::source_location;  // a failure names the line that the test is in

void test(const std::string& name, const Properties& properties, std::function<void()> body,
          const Where& where = Where::current());
// A run whose record is looked at.
void test(const std::string& name, const Command& command, std::function<void(const Run&)> check,
          const Where& where = Where::current());

// Registers the tests of a file.
struct Registration {
  Registration(const char* file, void (*function)());
};
#define TESTS(name)                                                                       \
  static void name##_tests();                                                             \
  static const ::workshop::tests::Registration name##_registered(__FILE__, name##_tests); \
  static void name##_tests()

}  // namespace workshop::tests
