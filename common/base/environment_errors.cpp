// SPDX-License-Identifier: Apache-2.0
#include "common/base/environment_errors.h"

#include <unistd.h>

#include <cstdio>

#include "common/base/check.h"
#include "common/base/roll_call.h"

namespace workshop {

void environment_error(int status, const std::string& message) {
  if (first_of_job()) {
    std::fprintf(stderr, "error: %s\n", message.c_str());
    let_others_pass();
  } else {
    usleep(500'000);
  }
  end_job(status);
}

}  // namespace workshop
