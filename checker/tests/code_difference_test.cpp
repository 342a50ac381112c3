// SPDX-License-Identifier: Apache-2.0
#include "checker/code_difference.h"

#include <gtest/gtest.h>

namespace {

using workshop::tools::is_solutions_code;
using workshop::tools::Todo;
using workshop::tools::where_code_differs;

const std::string kCall = "NCCL_CHECK(ncclBroadcast(p.value, p.value, p.count(), kReal, 0, comm, stream));\n";
const std::string kLoop = "for (int i = 0; i < count; ++i) {\n  const float* x = from + i * n;\n  add(to, x, n);\n}\n";

Todo todo(const std::string& mine, const std::string& solution) {
  Todo todo;
  todo.code = mine;
  todo.code_in_solution = solution;
  todo.first = 1;
  return todo;
}

std::string replaced(std::string code, const std::string& old, const std::string& by) {
  return code.replace(code.find(old), old.size(), by);
}

std::string where(const std::string& solution, const std::string& old, const std::string& by) {
  return where_code_differs("02.1", todo(replaced(solution, old, by), solution));
}

TEST(CodeDifference, WhatDoesNotCount) {
  EXPECT_TRUE(is_solutions_code(todo(kCall, kCall)));
  EXPECT_TRUE(is_solutions_code(todo("// Why.\n" + replaced(kCall, ", kReal", ",\n      kReal"), kCall)));
  EXPECT_TRUE(is_solutions_code(todo(replaced(kLoop, "const float", "float"), kLoop)));
  EXPECT_TRUE(is_solutions_code(todo("std::array a{1, 2,};", "const array a{1, 2};")));
  EXPECT_TRUE(is_solutions_code(todo(kLoop, kLoop + "probe(\"02.1\", \"sum\", to, {n}, stream);\n")));
  EXPECT_TRUE(is_solutions_code(todo("for (int k = 0; k < count; ++k) {\n  auto row = from + k * n; add(to, row, n); }",
                                     "for (int i = 0; i < count; ++i) {\n  auto x = from + i * n; add(to, x, n); }")));
}

TEST(CodeDifference, Style) {
  const std::string braces = "if (a) {\n  for (int i = 0; i < n; ++i) {\n    f(i);\n  }\n  g();\n}\n";
  EXPECT_TRUE(is_solutions_code(todo("if (a) { for (int i = 0; i < n; i++) f(i); g(); }", braces)));
  EXPECT_FALSE(is_solutions_code(todo("if (a) for (int i = 0; i < n; ++i) f(i); g();", braces)));
  EXPECT_FALSE(is_solutions_code(todo("if (a) if (b) f(); else g();", "if (a) { if (b) f(); } else g();")));
  EXPECT_TRUE(is_solutions_code(todo("if (a) f(); else { g(); }", "if (a) f(); else g();")));
  EXPECT_EQ(where_code_differs("02.1", todo("if (a) for (int i = 0; i < n; ++i) f(i); g();", braces)),
            "Look again at the braces: the rest of TODO 02.1 is as in the solution.");
  EXPECT_EQ(where_code_differs("02.1", todo("if (a) { for (int i = 0; i <= n; i++) f(i); g(); }", braces)),
            "Look again at 'i <= n': the rest of TODO 02.1 is as in the solution.");
}

TEST(CodeDifference, WhatCounts) {
  EXPECT_FALSE(is_solutions_code(todo(replaced(kCall, "0, comm", "1, comm"), kCall)));
  EXPECT_FALSE(is_solutions_code(todo("", kCall)));
  Todo missing = todo(kCall, kCall);
  missing.first = 0;
  EXPECT_FALSE(is_solutions_code(missing));
}

TEST(CodeDifference, QuotesWhatIsNotInTheSolution) {
  EXPECT_EQ(
      where(kCall, "p.count()", "p.count() - 1"),
      "Look again at 'p.count() - 1', argument 3 of ncclBroadcast(): the rest of TODO 02.1 is as in the solution.");
  EXPECT_EQ(
      where(kCall, "p.count()", "f(p.count(), 2)"),
      "Look again at 'f(p.count(), 2)', argument 3 of ncclBroadcast(): the rest of TODO 02.1 is as in the solution.");
  EXPECT_EQ(where(kCall, "0, comm, stream", "stream, comm, 0"),
            "Look again at 'stream', argument 5 of ncclBroadcast() and '0', argument 7 of ncclBroadcast(): the rest of "
            "TODO 02.1 is as in the solution.");
  EXPECT_EQ(where(kLoop, "i * n;", "i;"), "Look again at 'from + i': the rest of TODO 02.1 is as in the solution.");
  EXPECT_EQ(where(kLoop, "++i", "i += 2"), "Look again at 'i += 2': the rest of TODO 02.1 is as in the solution.");
}

TEST(CodeDifference, SaysWhereSomethingIsMissing) {
  const std::string two = kCall + "NCCL_CHECK(ncclGroupEnd());\n";
  EXPECT_EQ(where_code_differs("02.1", todo(kCall, two)),
            "Look again at what comes after 'NCCL_CHECK(ncclBroadcast(p.value, p.value, p.count(), kReal, 0, comm, "
            "stream))', where something is missing: the rest of TODO 02.1 is as in the solution.");
}

TEST(CodeDifference, WhatStandsInSeveralPlacesIsQuotedWithItsStatement) {
  EXPECT_EQ(where("to = (rank + 1) % world;\nfrom = (rank + world - 1) % world;\n", "(rank + world - 1) % world",
                  "(rank + 1) % world"),
            "Look again at 'from = (rank + 1) % world': the rest of TODO 02.1 is as in the solution.");
}

TEST(CodeDifference, WhatStandsInSeveralPlacesIsQuotedWithWhatContainsItsParentheses) {
  EXPECT_EQ(where("launch(add, k, values, picked + r * k, 1.0f / static_cast<float>(ranks), k);\n", "(ranks)", "(k)"),
            "Look again at '1.0f / static_cast<float>(k)', argument 5 of launch(): the rest of TODO 02.1 is as in the "
            "solution.");
}

TEST(CodeDifference, AStatementIsQuotedWhole) {
  EXPECT_EQ(where(kLoop, "  add(", "  wait(x);\n  add("),
            "Look again at 'wait(x);': the rest of TODO 02.1 is as in the solution.");
  EXPECT_EQ(where("begin(a);\n" + kLoop + kCall, "add(to, x, n);", ""),
            "Look again at what comes after 'from + i * n', where something is missing: the rest of TODO 02.1 is as in "
            "the solution.");
  EXPECT_EQ(where(kLoop + kCall + "CHECK(f(a));\n" + kCall, "CHECK(f(a));\n", ""),
            "Look again at what comes after 'NCCL_CHECK(ncclBroadcast(p.value, p.value, p.count(), kReal, 0, comm, "
            "stream))', where something is missing: the rest of TODO 02.1 is as in the solution.");
}

// What is missing is often only written in a different way.
TEST(CodeDifference, WhatIsMissingBesidesIsNotQuoted) {
  EXPECT_EQ(where_code_differs("02.1", todo("send(in + rank * n); receive(out + rank * n); " + kCall,
                                            "const int at = to * n; send(in + at); receive(out + at); " + kCall)),
            "Look again at 'in + rank * n' and 'out + rank * n'.");
}

TEST(CodeDifference, BracesThatDiffer) {
  EXPECT_EQ(where_code_differs("02.1", todo("for (;;) { a(); b(1); }" + kCall, "for (;;) { a(); } b(2); " + kCall)),
            "Look again at '1': the rest of TODO 02.1 is as in the solution, except for the braces.");
}

TEST(CodeDifference, SaysWhatStandsElsewhere) {
  EXPECT_EQ(where_code_differs("02.1", todo("begin(a); wait(b); " + kCall + kLoop + "end(a);",
                                            "begin(a); " + kCall + kLoop + "wait(b); end(a);")),
            "Look again at the place of 'wait(b);': it stands elsewhere in the solution. The rest of TODO 02.1 is the "
            "same there.");
}

TEST(CodeDifference, AnotherWayIsNotQuoted) {
  EXPECT_EQ(where_code_differs("02.1", todo("average_all(model);", kCall)), "");
  EXPECT_EQ(where_code_differs("02.1", todo(kCall, kCall)), "");
}

}  // namespace
