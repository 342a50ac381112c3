// SPDX-License-Identifier: Apache-2.0
// Compares the NCCL calls of two runs that compute the same numbers.
#pragma once

#include <string>

#include "checker/todos.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

struct TrafficVerdict {
  std::string text;  // empty if the calls are the same
  std::string todo;  // the TODO whose calls differ; empty if unknown
  bool wrong = false;
};

// Different calls are wrong if they send more bytes, or if their number is not the one that the TODO asks for ("one
// NCCL call", "two NCCL calls"). Otherwise they are just another way to do it, worth a note.
// "  Its NCCL calls on rank 0: yours ncclReduce 12 times, 1824 bytes in all; expected …\n", if the calls of this TODO
// differ; else "". Of a run that failed, the calls are not known.
std::string calls_of(const std::string& todo, int rank, const RunRecord& expected, const RunRecord& mine,
                     const Todos& todos);

// The roots that the ranks name in calls of this TODO, if they are not the same on all ranks; else "".
std::string differing_roots(const std::string& todo, const RunRecord& mine, const Todos& todos);

// The reductions of this TODO's calls that none of the solution's has, such as ncclProd. Says nothing of those that the
// solution has, which may be the answer.
std::string other_reductions(const std::string& todo, const RunRecord& expected, const RunRecord& mine,
                             const Todos& todos);

// Notes on the TODOs whose calls use pinned memory of the host, where the solution's use memory of the device; a line
// each.
std::string notes_on_host_memory(const RunRecord& expected, const RunRecord& mine, const Todos& todos);

TrafficVerdict compare_traffic(const RunRecord& expected, const RunRecord& mine, const Todos& todos);

}  // namespace workshop::tools
