// SPDX-License-Identifier: Apache-2.0
// What a participant's code says, and no short run shows: the numbers are right as long as a model is small, on a
// backend that runs the iterations of a kernel one after the other, or where messages take no time.
#pragma once

#include <string>

#include "checker/todos.h"

namespace workshop::tools {

// Notes on the regions whose code differs from the solution's in such a way, a line each.
std::string notes_on_code(const Todos& todos);

}  // namespace workshop::tools
