// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/harness/run_tool.h"

namespace {

const char* const kSolution = R"(int main() {
  // TODO 02.1: Average the gradient.
  //   One call a parameter.
  // An ordinary comment of the solution.
  average();
  // END TODO 02.1
  check();
    // TODO 02.10: Return.
    return 0;
    // END TODO 02.10
}
)";

class MakeExercises : public testing::Test {
 protected:
  ToolResult make(const std::string& options = "") {
    return run_tool("make_exercises " + options + " " + (folder_ / "solutions") + " " + (folder_ / "out") + " 02_ddp");
  }
  void solution(const std::string& source) { folder_.write("solutions/02_ddp/ddp.cu", source); }
  // Returns the error message for a solution, without the folder's path.
  std::string refusal(const std::string& source) {
    solution(source);
    const ToolResult result = make();
    EXPECT_EQ(result.status, 2) << result.output;
    const std::size_t name = result.output.find("ddp.cu");
    return name == std::string::npos ? result.output : result.output.substr(name);
  }

  TemporaryFolder folder_;
};

TEST_F(MakeExercises, ReplacesTheCodeAndKeepsTheText) {
  solution(kSolution);
  const ToolResult result = make();
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(folder_.read("out/02_ddp/ddp.cu"), R"(int main() {
  // TODO 02.1: Average the gradient.
  //   One call a parameter.
  todo("02.1");
  // END TODO 02.1
  check();
    // TODO 02.10: Return.
    todo("02.10");
    // END TODO 02.10
}
)");
}

TEST_F(MakeExercises, LeavesOtherFilesAlone) {
  solution(kSolution);
  folder_.write("solutions/02_ddp/.ddp.cu.swp", "// TODO\n");
  folder_.write("solutions/02_ddp/README.md", "of the solution");
  folder_.write("out/02_ddp/README.md", "of the chapter");
  folder_.write("out/02_ddp/ddp.cu.mine", "of the participant");
  EXPECT_EQ(make().status, 0);
  EXPECT_NE(folder_.read("out/02_ddp/ddp.cu"), "");
  EXPECT_EQ(folder_.read("out/02_ddp/.ddp.cu.swp"), "");
  EXPECT_EQ(folder_.read("out/02_ddp/README.md"), "of the chapter");
  EXPECT_EQ(folder_.read("out/02_ddp/ddp.cu.mine"), "of the participant");
}

TEST_F(MakeExercises, LeavesOutSourcesWithoutATodo) {
  solution(kSolution);
  folder_.write("solutions/02_ddp/options.h", "int options();\n");
  folder_.write("solutions/02_ddp/support/chart.h", "int chart();\n");
  EXPECT_EQ(make().status, 0);
  EXPECT_NE(folder_.read("out/02_ddp/ddp.cu"), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/02_ddp/options.h"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/02_ddp/support"));
}

TEST_F(MakeExercises, PutsWrongFillingsBesideTheSolution) {
  solution(kSolution);
  const std::string sum = folder_.write("02.1-sum.txt", "  sum();\n"), none = folder_.write("02.1-none.txt", "\n");
  const ToolResult result = make("--filling " + sum + " --filling " + none);
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(folder_.read("out/02_ddp/ddp.cu"), R"(#include "checker/filling.h"
int main() {
  // TODO 02.1: Average the gradient.
  //   One call a parameter.
if (workshop::filling("02.1-none")) {

} else if (workshop::filling("02.1-sum")) {
  sum();
} else {
  // An ordinary comment of the solution.
  average();
}
  // END TODO 02.1
  check();
    // TODO 02.10: Return.
    return 0;
    // END TODO 02.10
}
)");
  EXPECT_EQ(make("--filling " + folder_.write("02.2-sum.txt", "  sum();\n")).output,
            "make_exercises: --filling 02.2-sum: there is no region with this number\n");
  EXPECT_EQ(make("--filling /no/such/02.1-file.txt").status, 2);
}

TEST_F(MakeExercises, NamesWhatIsWrongWithARegion) {
  EXPECT_EQ(refusal("\n// TODO 02.1: a\nf();\n"), "ddp.cu:2: TODO 02.1 has no END TODO\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\nf();\n// TODO 02.2: b\n"),
            "ddp.cu:3: a TODO inside TODO 02.1, which began in line 1\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\nf();\n// END TODO 02.1\n// TODO 02.1: b\n"), "ddp.cu:4: a second TODO 02.1\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\nf();\n// END TODO 02.2\n"), "ddp.cu:3: END TODO 02.2 closes TODO 02.1\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\n//   more\n\n// END TODO 02.1\n"), "ddp.cu:1: TODO 02.1 has no code\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\n// b\n//   more\nf();\n// END TODO 02.1\n"),
            "ddp.cu:3: text of TODO 02.1 after a line that is not indented\n");
  EXPECT_EQ(refusal("// TODO 03.1: a\nf();\n// END TODO 03.1\n"), "ddp.cu:1: TODO 03.1 in chapter 02\n");
  EXPECT_EQ(refusal("// END TODO 02.1\n"), "ddp.cu:1: END TODO 02.1 without its TODO\n");
  EXPECT_EQ(refusal("// TODO 02.1\n"), "ddp.cu:1: expected '// TODO 02.1: text'\n");
  EXPECT_EQ(refusal("// TODO 02.1: \n"), "ddp.cu:1: expected '// TODO 02.1: text'\n");
  EXPECT_EQ(refusal("// TODO: later\n"), "ddp.cu:1: expected '// TODO 02.1: text'\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\nf();\n// END TODO\n"), "ddp.cu:3: expected '// END TODO 02.1'\n");
}

const char* const kBlank = R"(void average() {
  // WRITE 02.A: Average the gradients.
  //   In place.
  begin();
  for (;;) {
    // TODO 02.1: Average one.
    //   One call.
    all_reduce();
    // END TODO 02.1
    probe("02.1");
  }
  // END WRITE 02.A
  probe("02.A");
  // TODO 02.2: Return.
  return;
  // END TODO 02.2
  probe("02.2");
}
)";

TEST_F(MakeExercises, KeepsTheCodeOfLargeRegionsAtTheGuidedLevel) {
  solution(kBlank);
  EXPECT_EQ(make().status, 0);
  EXPECT_EQ(folder_.read("out/02_ddp/ddp.cu"), R"(void average() {
  begin();
  for (;;) {
    // TODO 02.1: Average one.
    //   One call.
    todo("02.1");
    // END TODO 02.1
    probe("02.1");
  }
  probe("02.A");
  // TODO 02.2: Return.
  todo("02.2");
  // END TODO 02.2
  probe("02.2");
}
)");
}

TEST_F(MakeExercises, EmptiesLargeRegionsAtTheBlankLevel) {
  solution(kBlank);
  EXPECT_EQ(make("--level blank").status, 0);
  EXPECT_EQ(folder_.read("out/02_ddp/ddp.cu"), R"(void average() {
  // WRITE 02.A: Average the gradients.
  //   In place.
  todo("02.A");
  // END WRITE 02.A
  probe("02.A");
  // TODO 02.2: Return.
  todo("02.2");
  // END TODO 02.2
  probe("02.2");
}
)");
  EXPECT_EQ(make("--level hard").output, "make_exercises: --level is 'hard'; expected guided or blank\n");
}

TEST_F(MakeExercises, PutsWrongFillingsInLargeRegionsAndInTheirTodos) {
  solution(kBlank);
  const std::string none = folder_.write("02.A-none.txt", "  none();\n"),
                    sum = folder_.write("02.1-sum.txt", "    sum();\n");
  EXPECT_EQ(make("--filling " + none + " --filling " + sum).status, 0);
  EXPECT_EQ(folder_.read("out/02_ddp/ddp.cu"), R"(#include "checker/filling.h"
void average() {
  // WRITE 02.A: Average the gradients.
  //   In place.
if (workshop::filling("02.A-none")) {
  none();
} else {
  begin();
  for (;;) {
    // TODO 02.1: Average one.
    //   One call.
if (workshop::filling("02.1-sum")) {
    sum();
} else {
    all_reduce();
}
    // END TODO 02.1
    probe("02.1");
  }
}
  // END WRITE 02.A
  probe("02.A");
  // TODO 02.2: Return.
  return;
  // END TODO 02.2
  probe("02.2");
}
)");
}

TEST_F(MakeExercises, HandsOutSourcesWithNothingButLargeRegionsAtTheBlankLevelOnly) {
  solution("int main() {\n// WRITE 02.A: Train.\ntrain();\n// END WRITE 02.A\n}\n");
  EXPECT_EQ(make().status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/02_ddp/ddp.cu"));
  EXPECT_EQ(make("--level blank").status, 0);
  EXPECT_NE(folder_.read("out/02_ddp/ddp.cu").find("todo(\"02.A\");"), std::string::npos);
  folder_.write("solutions/02_ddp/ddp.h", "// WRITE 02.B: a\nf();\n// END WRITE 02.B\n");
  EXPECT_NE(make().output.find("ddp.h:1: a header with a WRITE needs a TODO"), std::string::npos);
}

TEST_F(MakeExercises, NamesWhatIsWrongWithALargeRegion) {
  EXPECT_EQ(refusal("// WRITE 02.A: a\nf();\n"), "ddp.cu:1: WRITE 02.A has no END WRITE\n");
  EXPECT_EQ(refusal("// WRITE 02.A: a\n//   more\n// END WRITE 02.A\n"), "ddp.cu:1: WRITE 02.A has no code\n");
  EXPECT_EQ(refusal("// WRITE 02.A: a\n// b\n//   more\nf();\n// END WRITE 02.A\n"),
            "ddp.cu:3: text of WRITE 02.A after a line that is not indented\n");
  EXPECT_EQ(refusal("// WRITE 02.A: a\n// WRITE 02.B: b\n"),
            "ddp.cu:2: a WRITE inside WRITE 02.A, which began in line 1\n");
  EXPECT_EQ(refusal("// TODO 02.1: a\n// WRITE 02.B: b\n"),
            "ddp.cu:2: a WRITE inside TODO 02.1, which began in line 1\n");
  EXPECT_EQ(refusal("// WRITE 02.A: a\n// TODO 02.1: b\nf();\n// END WRITE 02.A\n"),
            "ddp.cu:2: TODO 02.1 has no END TODO\n");
  EXPECT_EQ(refusal("// WRITE 02.1: a\n"), "ddp.cu:1: expected '// WRITE 02.A: text'\n");
  EXPECT_EQ(refusal("// TODO 02.A: a\n"), "ddp.cu:1: expected '// TODO 02.1: text'\n");
  EXPECT_EQ(refusal("// WRITE 02.A: a\n// TODO 02.1: b\nf();\n// END TODO 02.1\nprobe(\"02.1\");\n"
                    "// END WRITE 02.A\nprobe(\"02.1\");\n"),
            "ddp.cu:2: TODO 02.1 has probes inside and outside of WRITE 02.A\n");
}

TEST_F(MakeExercises, FindsTheSameNumberInTwoFiles) {
  solution("// TODO 02.1: a\nf();\n// END TODO 02.1\n");
  folder_.write("solutions/02_ddp/ddp_overlap.h", "// TODO 02.1: a\nf();\n// END TODO 02.1\n");
  EXPECT_EQ(make().status, 2);
}

TEST_F(MakeExercises, RefusesAChapterThatIsNotThere) {
  const ToolResult result = make();
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.output, "make_exercises: no chapter " + (folder_ / "solutions") + "/02_ddp\n");
  EXPECT_EQ(run_tool("make_exercises").status, 2);
}

}  // namespace
