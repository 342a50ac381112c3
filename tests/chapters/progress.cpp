// SPDX-License-Identifier: Apache-2.0
// The progress line of a long run.
#include <algorithm>
#include <regex>
#include <sstream>

#include "tests/harness/expect.h"

namespace workshop::tests {
namespace {

const std::string kLine = R"(step (\d+) of (\d+)  (loss \d+\.\d+  )?\d+(\.\d)? (\w+)/s  \d+(\.\d)? (s|min|h) left)";

std::vector<std::smatch> lines_of(const std::string& output, std::vector<std::string>& lines) {
  static const std::regex whole(kLine);
  std::istringstream text(output);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  std::vector<std::smatch> found;
  for (const std::string& line : lines) {
    std::smatch match;
    if (std::regex_match(line, match, whole)) found.push_back(match);
  }
  return found;
}

// Registers a test: the run must report its progress out of `steps` steps, in increasing order and in the model's unit,
// and its record must be the same as without progress.
void says(const std::string& name, const Command& command, int steps, const std::string& unit, bool with_loss) {
  test("solution.progress." + name, {.ranks = command.ranks}, [=] {
    const Run quiet = record(command.in("WORKSHOP_PROGRESS=0"));
    const Run run = record(command.in("WORKSHOP_PROGRESS=0.002"));
    expect_same_training(quiet, run, kSameBits);
    EXPECT_EQ(quiet.record.peaks, run.record.peaks) << run.command;
    EXPECT_EQ(quiet.record.host, run.record.host) << "allocations and waits in steps of " << run.command;
    std::vector<std::string> lines;
    int last = 0;
    const auto found = lines_of(run.output, lines);
    EXPECT_FALSE(found.empty()) << report(run, "lines like " + kLine, run.output);
    for (const std::smatch& line : found) {
      EXPECT_GT(std::stoi(line[1]), last) << line.str();
      last = std::stoi(line[1]);
      EXPECT_EQ(std::stoi(line[2]), steps) << line.str();
      EXPECT_EQ(line[5], unit) << line.str();
      EXPECT_TRUE(!with_loss || line[3].matched) << line.str();
    }
    EXPECT_LE(last, steps) << run.command;
  });
}

TESTS(progress) {
  const std::string many = "--layers 64,64,64 --samples 6400 --log-every 0";
  says("ddp", on(2, solution("02_ddp/ddp_overlap"), many, "--epochs 2"), 200, "samples", true);
  says("max_steps", on(1, solution("01_single_gpu/mlp"), many, "--epochs 4 --max-steps 300"), 300, "samples", true);
  says("gpt", on(2, solution("06_fsdp/fsdp"), "--model gpt --words 4000 --epochs 5 --log-every 0"), 20, "tokens", true);
  // The last stage computes the loss; rank 0 only knows the loss of the previous epoch.
  says("pipeline", on(2, solution("04_pipeline/pipeline"), many, "--epochs 2"), 400, "samples", false);
  says("parameter_server", on(3, solution("10_less_communication/parameter_server"), many, "--order turns"), 200,
       "samples", true);

  // On a terminal, the line is overwritten each time, and erased before anything else is printed.
  test("solution.progress.terminal", {.ranks = 2}, [=] {
    const Command command = on(2, solution("02_ddp/ddp_overlap"), many, "--epochs 2");
    const Run quiet = succeed(command);
    const Run run = succeed(command.in("WORKSHOP_TERMINAL=1").in("WORKSHOP_PROGRESS=0.002"));
    const std::regex written("\r" + kLine + "\033\\[K");
    EXPECT_TRUE(std::regex_search(run.output, written)) << report(run, "a line that is written again", run.output);
    const std::string left =
        std::regex_replace(std::regex_replace(run.output, written, ""), std::regex("\r\033\\[K"), "");
    EXPECT_EQ(left, quiet.output) << run.command;
  });
  // No progress line in a run of less than 30 seconds, or on a terminal less than 5.
  test("solution.progress.short", {.ranks = 2}, [=] {
    const Command command = on(2, solution("02_ddp/ddp_overlap"), many, "--epochs 2");
    for (const Run& run : {succeed(command), succeed(command.in("WORKSHOP_TERMINAL=1"))}) {
      EXPECT_EQ(run.output.find("left"), std::string::npos) << run.output;
      EXPECT_EQ(run.output.find('\r'), std::string::npos) << run.output;
    }
  });
}

}  // namespace
}  // namespace workshop::tests
