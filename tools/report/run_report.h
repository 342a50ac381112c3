// SPDX-License-Identifier: Apache-2.0
// What there is to say of a run, from its record and its timeline.
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

// A forward or a backward of a pipeline's micro-batch, in the timeline's microseconds.
struct Pass {
  int rank;
  double begin, end;
  bool forward;
  int micro_batch, chunk;
};

struct RunReport {
  std::string title;  // "02_ddp ddp, 2 ranks"
  RunRecord record;   // of a timeline alone only what its first line says
  std::optional<Timeline> timeline;
  std::map<int, Shares> shares;    // of a typical step of each rank, or round of local SGD
  double seconds_per_step = 0;     // 0 where it is not known
  std::pair<double, double> view;  // such a step of the first rank, in the timeline's microseconds
  int stages = 0;                  // of a pipeline, whose schedule is
  std::vector<Slot> schedule;      // with slots of equal length, and
  std::vector<Pass> passes;        // as its ranks came to them in the typical step
  std::map<int, Formula> formulas;

  int seen_rank() const;  // the one with the most time lost, which is no server; -1 without a timeline
};

// Records and timelines in any order: each timeline goes with the record of its run. Throws std::runtime_error with one
// line for a file that is neither, and where there is none.
std::vector<RunReport> read_runs(const std::vector<std::string>& files);

// The mean loss of all replicas, step by step, and the validation losses by the step that they come after.
using Curve = std::vector<std::pair<int, double>>;
Curve training_curve(const RunRecord& run);
Curve validation_curve(const RunRecord& run);

// The values that a rank has recorded as "NAME 0", "NAME 1" …
std::vector<double> numbered(const RunRecord& run, const std::string& name);
// Those of rank 0 as "NAME 16", "NAME 32" …, by these numbers: steps, say.
Curve values_by_step(const RunRecord& run, const std::string& name);

// Bytes that a rank has sent in each of its steps, by the timeline; empty without the record, which knows how many
// ranks a communicator has.
std::vector<double> bytes_by_step(const RunReport& run, int rank);

// What the picture means, and which chapter deals with it.
struct Headline {
  std::string text, advice;
};
Headline headline(const RunReport& run);

}  // namespace workshop::tools
