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
  // A full disk, say. To go on in silence, and to end with status 0, would hide it.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    const int error = errno;
    std::clearerr(stdout);
    fail(kFailed, "standard output cannot be written: %s", std::strerror(error));
  }
}

}  // namespace workshop
