// SPDX-License-Identifier: Apache-2.0
// Functions that the watchdog registers at its start. They are called when the job ends or an NCCL call fails.
#pragma once

#include <string>

namespace workshop {

struct FailureHooks {
  void (*job_ends)() = nullptr;  // called first in end_job()
  // Called with the message of a failed call before it is printed. Ends the job itself if it knows the cause.
  void (*nccl_call_failed)(const std::string& message) = nullptr;
};
inline constinit FailureHooks failure_hooks;

}  // namespace workshop
