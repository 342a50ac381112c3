// SPDX-License-Identifier: Apache-2.0
// Where a kernel is launched: common/launch.h.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "common/run/in_call.h"

namespace workshop {

// The stream of a launch, and the place in the source that asks for it.
struct LaunchStream {
  template <typename S>
  requires std::is_convertible_v<const S&, cudaStream_t>
  constexpr LaunchStream(const S& stream, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : stream(stream), file(file), line(line) {}
  cudaStream_t stream;
  const char* file;
  int line;
};

// The same for the watchdog, which may look at it at any time.
const CallSite& launch_site(const char* file, int line);

}  // namespace workshop
