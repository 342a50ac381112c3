// SPDX-License-Identifier: Apache-2.0
#include "common/base/environment_errors.h"

#include <unistd.h>

#include "common/base/check.h"
#include "common/base/format.h"
#include "common/base/roll_call.h"

namespace workshop {

void environment_error(int status, const std::string& message) {
  if (first_of_job()) {
    print_error("error: " + message + "\n");
    let_others_pass();
  } else {
    usleep(500'000);
  }
  end_job(status);
}

}  // namespace workshop
