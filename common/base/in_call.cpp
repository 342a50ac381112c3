// SPDX-License-Identifier: Apache-2.0
#include "common/base/in_call.h"

#include <unistd.h>

#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {

void InCall::wait_for_the_end() {
  for (;;) pause();
}

#ifdef WORKSHOP_BACKEND_CPU
namespace {

// Registered before main(), so that the backend can name the current call in all its messages.
const bool backend_can_ask = [] {
  cpu::find_source_calls([] {
    const CallSite* site = InCall::current();
    return site != nullptr ? cpu::SourceCall{site->text, site->file, site->line} : cpu::SourceCall{};
  });
  return true;
}();

}  // namespace
#endif

}  // namespace workshop
