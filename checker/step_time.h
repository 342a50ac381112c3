// SPDX-License-Identifier: Apache-2.0
// Compares how long a step takes on a simulated machine, and how often the host waits in it, and finds what makes it
// longer.
#pragma once

#include <string>

#include "checker/todos.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

struct TimeVerdict {
  std::string headline;             // "a step takes longer than it needs to."
  std::string text;                 // what waits for what, in indented lines; empty if nothing is wrong
  std::string todo;                 // the one that makes it longer; empty if it is not known
  std::string where;                // the same for every run with the same cause
  bool host_waits_in_todo = false;  // the host waits in the code of `todo`, where the solution's never does
};
// The record of both runs must be of the same simulated machine; else nothing is compared. Times there do not depend on
// the real machine, so a step may be only slightly longer than the solution's.
TimeVerdict compare_time(const RunRecord& expected, const RunRecord& mine, const Todos& todos);

// Notes on the TODOs whose code lets the host wait more often than the solution's, a line each. The numbers are right,
// and without a simulated machine nothing tells how long it waits. On a GPU, nothing tells that it does.
std::string notes_on_waits(const RunRecord& expected, const RunRecord& mine, const Todos& todos);

}  // namespace workshop::tools
