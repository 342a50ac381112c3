// SPDX-License-Identifier: Apache-2.0
// Compares what two runs with the same numbers send.
#pragma once

#include <string>

#include "checker/todos.h"
#include "tools/shared/run_record.h"

namespace workshop::tools {

struct TrafficVerdict {
  std::string text;  // empty where the calls are the same
  std::string todo;  // that makes other calls; empty where that is not known
  bool wrong = false;
};

// Other calls are wrong where they send more, or where there are more of them and the TODO asks for one; else they are
// just another way, which deserves a note.
TrafficVerdict compare_traffic(const RunRecord& expected, const RunRecord& mine, const Todos& todos);

}  // namespace workshop::tools
