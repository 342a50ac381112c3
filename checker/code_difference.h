// SPDX-License-Identifier: Apache-2.0
// Compares what a participant wrote in a region with the solution's code, token by token. Spaces, comments, probes,
// `const`, `std::` and the names of local variables do not count.
#pragma once

#include <string>

#include "checker/todos.h"

namespace workshop::tools {

// Whether the code is the solution's, so that it cannot be to blame. False for code that is missing.
bool is_solutions_code(const Todo& todo);

// If most of the code is the solution's, quotes the rest of it, and nothing of the solution: "Look again at
// 'p.count() - 1': the rest of TODO 02.1 is as in the solution." Otherwise "".
std::string where_code_differs(const std::string& id, const Todo& todo);

}  // namespace workshop::tools
