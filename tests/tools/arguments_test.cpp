// SPDX-License-Identifier: Apache-2.0
#include "tools/shared/arguments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/harness/run_tool.h"

namespace {

using workshop::tools::Arguments;

class ArgumentsTest : public testing::Test {
 protected:
  // Returns the status of a tool that is called with these words.
  int run(std::vector<std::string> words) {
    Arguments arguments("tool", "A tool.");
    arguments.require("FROM", from_, "where to read from");
    arguments.add("SEED", seed_, "of the images", 0, 9);
    arguments.add("--weak", weak_, "a flag");
    arguments.add("--json", json_, "a text");
    arguments.add("--tolerance", tolerance_, "a number");
    arguments.add("--status", status_, "a whole number");
    arguments.add("--todos", todos_, "a text each time");
    words.insert(words.begin(), "tool");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return arguments.run(static_cast<int>(argv.size()), argv.data(), [&] { return 7; });
  }
  // Returns the error message for these words.
  std::string refusal(const std::vector<std::string>& words) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(run(words), 2);
    return testing::internal::GetCapturedStderr();
  }

  std::string from_, json_;
  std::vector<std::string> todos_;
  int seed_ = 1, status_ = 0;
  double tolerance_ = 0.5;
  bool weak_ = false;
};

TEST_F(ArgumentsTest, AreInAnyOrder) {
  EXPECT_EQ(run({"--todos", "a", "from", "--weak", "--status", "010", "--todos", "b", "--tolerance", "1e-3"}), 7);
  EXPECT_EQ(from_, "from");
  EXPECT_EQ(todos_, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(weak_);
  EXPECT_EQ(status_, 10);
  EXPECT_EQ(tolerance_, 1e-3);
  EXPECT_EQ(seed_, 1);
  EXPECT_EQ(run({"from", "9", "--json", ""}), 7);
  EXPECT_EQ(seed_, 9);
}

TEST_F(ArgumentsTest, BadOnesAreRefusedInOneLine) {
  EXPECT_EQ(refusal({}), "tool: FROM is missing: where to read from\n");
  EXPECT_EQ(refusal({"--strong"}), "tool: there is no option '--strong'; --help lists all options\n");
  EXPECT_EQ(refusal({"from", "--strong"}), "tool: there is no option '--strong'; --help lists all options\n");
  EXPECT_EQ(refusal({"from", "1", "2"}), "tool: '2' is one argument too many\n");
  EXPECT_EQ(refusal({"from", "--json"}), "tool: --json lacks its value\n");
  EXPECT_EQ(refusal({"from", "--tolerance", "1x"}), "tool: --tolerance: '1x' is not a number\n");
  EXPECT_EQ(refusal({"from", "--status", "1.5"}), "tool: --status: '1.5' is not a whole number\n");
  EXPECT_EQ(refusal({"from", "10"}), "tool: SEED: '10' is not a whole number from 0 to 9\n");
}

TEST(Arguments, SoIsWhatGoesWrongAfterwards) {
  Arguments arguments("tool", "A tool.");
  char name[] = "tool";
  char* argv[] = {name};
  testing::internal::CaptureStderr();
  EXPECT_EQ(arguments.run(1, argv, []() -> int { throw std::runtime_error("cannot read x"); }), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tool: cannot read x\n");
}

// Every tool, with the status that its callers rely on.
TEST(Tools, RefuseBadArguments) {
  for (const char* tool : {"bench_report", "compare_runs", "draw_images", "make_exercises", "make_mutants", "report",
                           "scaling", "summarize_runs"}) {
    for (const char* arguments : {"", " --no-such-option x"}) {
      const ToolResult result = run_tool(std::string(tool) + arguments);
      EXPECT_EQ(result.status, 2) << tool << arguments;
      EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
      EXPECT_TRUE(result.output.starts_with(std::string(tool) + ": ")) << result.output;
    }
    EXPECT_EQ(run_tool(std::string(tool) + " --help").status, 0);
  }
}

}  // namespace
