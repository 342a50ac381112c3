// SPDX-License-Identifier: Apache-2.0
// The golf tasks that are code: the times that their pages promise, and what the judge refuses.
#include <fstream>
#include <regex>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

Path golf(const std::string& program) { return {WORKSHOP_BUILD "/golf/golf_" + program}; }

// Returns the microseconds in a row of the page's table of scores.
double on_page(const std::string& task, const std::string& row) {
  std::ifstream page(source("golf/" + task + "/README.md").path);
  const std::regex wanted("\\| " + row + " \\| ([0-9.]+) us \\|.*");
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (std::regex_match(line, match, wanted)) return std::stod(match[1]);
  }
  fail("golf/" + task + "/README.md has no row '" + row + "'");
}

TESTS(times) {
  const std::map<std::string, int> tasks = {{"all_reduce", 8}, {"all_to_all", 8}, {"tensor_overlap", 4}};
  for (const auto& [task, ranks] : tasks) {
    const std::map<std::string, std::string> rows = {{"start", "start"}, {"par", "par"}, {"best", "best known"}};
    for (const auto& [solution, row] : rows) {
      test("golf." + task + "." + solution, {.ranks = ranks, .cpu_only = "simulates a machine"},
           [task = task, ranks = ranks, solution = solution, row = row] {
             const Run run = record(on(ranks, golf(task + "_" + solution)));
             const double seconds = run.record.values.at({0, "seconds"});
             EXPECT_NEAR(seconds * 1e6, on_page(task, row), 1e-6) << run.command;
             EXPECT_GT(seconds * 1e6, on_page(task, "bound")) << run.command;
           });
    }
  }
}

TESTS(judge) {
  const auto add = [](const std::string& name, int status, const std::string& regex) {
    test("golf.judge." + name, {.ranks = 8, .cpu_only = "simulates a machine"},
         [=] { expect_output(run(on(8, golf("judged_" + name))), status, {regex}); });
  };
  add("overlap", 1, "REFUSED, operations of several streams use the outgoing link between nodes at the same time");
  add("many_messages", 1,
      "REFUSED, operations of several streams use the outgoing link between nodes at the same time");
  add("unordered", 1, "^order: .*unordered.cu:8 .* and .*unordered.cu:9 .*use the same memory");
  add("on_host", 1, "^rank 0: WRONG, 262[0-9]+ of 262144 elements");
  add("one_communicator", 0, "^all_reduce: right in 3 calls, 2157.152 us");
  add("smaller_communicator", 1, "REFUSED, the function has changed a communicator");
  add("copied_communicator", 1, "not a communicator");
  add("other_memory", 1, "REFUSED, golf::add gets an array that is not in the memory of the device");
  add("open_group", 1, "REFUSED, the function has left a group open");
  add("too_many", 1, "REFUSED, the function has not returned after 10 s");
  test("golf.judge.ranks", {.ranks = 2, .cpu_only = "simulates a machine"},
       [] { expect_output(run(on(2, golf("all_reduce_start"))), 2, {"the task is for 8 ranks, and there are 2"}); });
  test("golf.judge.options", {.ranks = 8, .cpu_only = "simulates a machine"},
       [] { expect_output(run(on(8, golf("all_reduce_start"), "--lr 0.1")), 2, {"--lr"}); });
}

}  // namespace
}  // namespace workshop::tests
