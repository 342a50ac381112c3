// SPDX-License-Identifier: Apache-2.0
#include "common/base/print.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "common/base/check.h"
#include "common/base/ranks.h"

namespace workshop {

void print0(const char* format, ...) {
  if (process_ranks().rank != 0) return;
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  // The disk may be full, for example. Ignoring that would hide the lost output behind exit status 0.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    const int error = errno;
    std::clearerr(stdout);
    fail(kFailed, "standard output cannot be written: %s", std::strerror(error));
  }
}

}  // namespace workshop
