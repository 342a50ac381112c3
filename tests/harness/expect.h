// SPDX-License-Identifier: Apache-2.0
// What runs are held against: another run, PyTorch's numbers, formulas for what they send and hold, a timeline.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/harness/harness.h"

namespace workshop::tests {

// ---- two trainings -------------------------------------------------------------------------------------------------

// The first difference of what two runs have learned; "" if there is none. The mean loss of every step, validation
// losses and all final parameters may differ by `bound`, or by `bound` of their size where that is above 1. In both,
// all replicas must end with the same bits. A resumed run has the last steps alone.
std::string compare_training(const tools::RunRecord& expected, const tools::RunRecord& found, double bound,
                             bool resumed = false);
void expect_same_training(const Run& expected, const Run& found, double bound, bool resumed = false);
// A test of that.
void same_training(const std::string& name, double bound, const Command& expected, const Command& found,
                   Properties properties = {}, const Where& where = Where::current());

// Losses, parameters and, if it has them, gradients of a file that PyTorch wrote, to a relative 10⁻⁵.
void expect_golden(const Run& run, const Path& file);
struct Golden {
  Path file;
  std::string program, options;
  int ranks;
  bool gradients;  // of the first step: probes have them
};
Golden golden(const std::string& path);  // "tests/golden/ddp2_default.json"
void golden_test(const std::string& name, const Golden& golden, const Command& command,
                 const Where& where = Where::current());

// ---- what is sent and held -----------------------------------------------------------------------------------------

constexpr int kAll = -1;  // ranks
struct Traffic {
  int rank;  // or kAll
  std::string op;
  long calls, bytes;
};
// The ledger of all communicators together has these lines, and no others but such of no calls, on all ranks or on one.
void expect_ledger(const Run& run, const std::vector<Traffic>& expected, int rank = kAll);
void ledger(const std::string& name, const Command& command, const std::vector<Traffic>& expected,
            const Where& where = Where::current());

using Bytes = std::map<std::string, long>;  // by kind of memory
// The peaks of these kinds, on one rank or on all.
void expect_memory(const Run& run, int rank, const Bytes& expected);
// On the cpu backend no rank allocates device memory or waits for the device between the first and the last step of an
// epoch, or uses another device than its own, or has two cuBLAS handles on a stream, and the accounts have all that the
// device holds.
void expect_clean_steps(const Run& run);
// A test of both.
void step(const std::string& name, const Command& command, const Bytes& memory, const Where& where = Where::current());

// ---- refusals ------------------------------------------------------------------------------------------------------

// The job ends with that status and prints exactly one line, which matches. (That ranks share a GPU, or GPUs stay idle,
// is said in a line of its own.)
void expect_one_line(const Run& run, int status, const std::string& regex);
// It ends with that status and prints what matches each of them.
void expect_output(const Run& run, int status, const std::vector<std::string>& regexes);
// A test of bad input: status 2 and one line, not a job that hangs.
void refused(const std::string& name, const std::string& regex, const Command& command, Properties properties = {},
             const Where& where = Where::current());

// A line each: NAME | further OPTIONS | REGEX. Where a name has a #, it stands for 1 and for 4 ranks, as in the regex.
void refusals(const std::string& prefix, const Command& command, const std::string& table,
              const Where& where = Where::current());

// ---- timelines -----------------------------------------------------------------------------------------------------

struct Span {
  std::string name;
  int stream;
  double begin, duration;  // milliseconds
  double end() const { return begin + duration; }
};
std::map<int, std::vector<Span>> read_timeline(const std::string& path);  // by rank
// A test: on every rank some span whose name contains `communication` runs at the same time as a backward or forward
// span on another stream.
void overlaps(const std::string& name, const Command& command, const std::string& communication = "ncclAllReduce",
              const Where& where = Where::current());

}  // namespace workshop::tests
