// SPDX-License-Identifier: Apache-2.0
// Errors in the environment. They may concern only one rank of the job.
#pragma once

#include <stdexcept>
#include <string>

#include "common/base/environment.h"

namespace workshop {

// Ends the job with `status`. The first rank of the job to call this prints "error: message"; the others stay silent.
[[noreturn]] void environment_error(int status, const std::string& message);

// Calls a function that reads the environment. If it throws, the job ends with status 2.
template <typename Read>
auto from_environment(Read read) {
  try {
    return read(process_environment);
  } catch (const std::invalid_argument& error) {
    environment_error(2, error.what());
  }
}

}  // namespace workshop
