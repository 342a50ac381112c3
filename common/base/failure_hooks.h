// SPDX-License-Identifier: Apache-2.0
// What layers above have to do where a job ends or an NCCL call fails: the watchdog sets it when it starts.
#pragma once

#include <string>

namespace workshop {

struct FailureHooks {
  void (*job_ends)() = nullptr;  // the first thing that end_job() calls
  // Called with the message of a failed call before it is printed; ends the job itself if it knows the cause.
  void (*nccl_call_failed)(const std::string& message) = nullptr;
};
inline constinit FailureHooks failure_hooks;

}  // namespace workshop
