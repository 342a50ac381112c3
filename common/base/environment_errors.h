// SPDX-License-Identifier: Apache-2.0
// What is wrong with the environment of one rank may be right on the others.
#pragma once

#include <stdexcept>
#include <string>

#include "common/base/environment.h"

namespace workshop {

// Ends the job with `status`. The first rank of the job to get here prints "error: message", and the others keep quiet
// until it has.
[[noreturn]] void environment_error(int status, const std::string& message);

// The result of a function that reads the environment and throws where it is wrong: then the job ends with status 2.
template <typename Read>
auto from_environment(Read read) {
  try {
    return read(process_environment);
  } catch (const std::invalid_argument& error) {
    environment_error(2, error.what());
  }
}

}  // namespace workshop
