// SPDX-License-Identifier: Apache-2.0
// A report on a run, from its record and its timeline.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/report/formulas.h"
#include "tools/report/schedule_chart.h"
#include "tools/report/timeline.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

// A forward, a backward or the weights of a micro-batch in a pipeline; times are the timeline's microseconds.
struct Pass {
  int rank;
  double begin, end;
  int kind;  // as in Slot
  int micro_batch, chunk;
};

struct RunReport {
  std::string title;  // "02_ddp ddp, 2 ranks"
  RunRecord record;   // without a record, only what the timeline says about the run
  std::optional<Timeline> timeline;
  std::map<int, Shares> shares;    // per rank, of a typical step or round of local SGD
  double seconds_per_step = 0;     // 0 if unknown
  std::pair<double, double> view;  // a typical step of the first rank, in the timeline's microseconds
  int stages = 0;                  // of a pipeline; 0 for other programs
  std::vector<Slot> schedule;      // the pipeline's schedule, with slots of equal length
  std::vector<Pass> passes;        // what its ranks really did in the typical step
  std::map<int, Formula> formulas;

  int seen_rank() const;  // the rank that computes least, but not a server; -1 without a timeline
};

// Reads records and timelines in any order and matches each timeline with the record of its run. Throws
// std::runtime_error with one line for a file that is neither, and if there are no files.
std::vector<RunReport> read_runs(const std::vector<std::string>& files);

// The mean loss of all replicas by step, and the validation losses by the last step before them.
using Curve = std::vector<std::pair<int, double>>;
Curve training_curve(const RunRecord& run);
Curve validation_curve(const RunRecord& run);

// The values that rank 0 recorded as "NAME 0", "NAME 1" …
std::vector<double> numbered(const RunRecord& run, const std::string& name);
// The values that rank 0 recorded as "NAME 16", "NAME 32" …, by these numbers, which are steps.
Curve values_by_step(const RunRecord& run, const std::string& name);

// Bytes that a rank sent in each of its steps, from the timeline. Empty without a record, which is needed for the
// number of ranks in each communicator.
std::vector<double> bytes_by_step(const RunReport& run, int rank);

// Where the time goes, and which chapter helps.
struct Headline {
  std::string text, advice;
};
Headline headline(const RunReport& run);

}  // namespace workshop::tools
