// SPDX-License-Identifier: Apache-2.0
// Checks of a run: against another run, against PyTorch's numbers, against formulas for traffic and memory, and on a
// timeline.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/harness/harness.h"

namespace workshop::tests {

// ---- two trainings -------------------------------------------------------------------------------------------------

// Returns the first difference between what two runs have learned, or "". Compares the mean loss of every step, the
// validation losses and all final parameters; each may differ by `bound` · max(1, |expected value|). In either run, all
// replicas must end with the same bits. A resumed run may lack the losses before it resumed.
std::string compare_training(const tools::RunRecord& expected, const tools::RunRecord& found, double bound,
                             bool resumed = false);
void expect_same_training(const Run& expected, const Run& found, double bound, bool resumed = false);
// Registers a test that compares two runs in this way.
void same_training(const std::string& name, double bound, const Command& expected, const Command& found,
                   Properties properties = {}, const Where& where = Where::current());
// The same for runs of the language model. Also compares the norms of the gradients and the test loss.
void same_gpt(const std::string& name, double bound, const Command& expected, const Command& found,
              const Where& where = Where::current());

// Compares losses, parameters and (if the file has them) gradients with a file written by PyTorch. The relative error
// must not exceed 10⁻⁵, or with bfloat16 2⁻¹⁰ for losses and 2⁻⁶ for the rest.
void expect_golden(const Run& run, const Path& file);
struct Golden {
  Path file;
  std::string program, options;
  int ranks;
  bool gradients;  // of the first step; recorded only with probes
};
Golden golden(const std::string& path);  // "tests/golden/ddp2_default.json"
void golden_test(const std::string& name, const Golden& golden, const Command& command,
                 const Where& where = Where::current());

// ---- what is sent and held -----------------------------------------------------------------------------------------

constexpr int kAll = -1;  // all ranks
struct Traffic {
  int rank;  // or kAll
  std::string op;
  long calls, bytes;
};
// Expects that the ledger, summed over all communicators, has exactly these lines on all ranks or on one. Lines without
// calls do not count.
void expect_ledger(const Run& run, const std::vector<Traffic>& expected, int rank = kAll);
void ledger(const std::string& name, const Command& command, const std::vector<Traffic>& expected,
            const Where& where = Where::current());

using Bytes = std::map<std::string, long>;  // by kind of memory
// Expects these peaks, on one rank or on all.
void expect_memory(const Run& run, int rank, const Bytes& expected);
// On the cpu backend: between the first and the last step of an epoch no rank may allocate device memory, or wait
// for the device more often than `waits` times; each rank must use only its own device and at most one cuBLAS handle
// per stream; and the accounts must cover all memory in use on the device.
void expect_clean_steps(const Run& run, long waits = 0);
// Registers a test of both: clean steps, and these peaks on all ranks.
void step(const std::string& name, const Command& command, const Bytes& memory, const Where& where = Where::current(),
          long waits = 0);

// ---- refusals ------------------------------------------------------------------------------------------------------

// Expects that the job ends with this status and prints exactly one line, which matches. Lines that only report shared
// or idle GPUs do not count.
void expect_one_line(const Run& run, int status, const std::string& regex);
// Expects that the job ends with this status and that each regex matches some line.
void expect_output(const Run& run, int status, const std::vector<std::string>& regexes);
// Registers a test of bad input: the job must end with status 2 and one line, and must not hang.
void refused(const std::string& name, const std::string& regex, const Command& command, Properties properties = {},
             const Where& where = Where::current());

// Registers one test per line of `table`: NAME | further OPTIONS | REGEX. A # in the name makes two tests, on 1 and on
// 4 ranks; # in the name and the regex then stands for this number.
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
// Runs a program that trains blocks on a simulated machine with `operations` per second and links of `bytes` per
// second. Returns the milliseconds from the first block's forward pass to the end of its backward pass in the last
// step, on the rank that takes longest.
double simulated_step(const Command& command, double operations, double bytes);
// Registers a test: on every rank, some span whose name contains `communication` must run at the same time as a
// forward, backward or weights span on another stream.
void overlaps(const std::string& name, const Command& command, const std::string& communication = "ncclAllReduce",
              const Where& where = Where::current());

}  // namespace workshop::tests
