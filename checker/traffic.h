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

TrafficVerdict compare_traffic(const RunRecord& expected, const RunRecord& mine, const Todos& todos);

}  // namespace workshop::tools
