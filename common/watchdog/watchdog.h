// SPDX-License-Identifier: Apache-2.0
// The watchdog: a thread of each rank that looks whether its NCCL calls, and the calls that the program is in, come to
// an end. Where one does not, the ranks tell each other where they are, say what is wrong, and the job ends. The thread
// asks nothing of the device, so whatever the program is stuck in, the thread is not: a second thread asks which calls
// have completed, and where that gets no answer, none has.
#pragma once

#include <nccl.h>

#include <string>

#include "common/base/ranks.h"

namespace workshop {

// Starts the thread, if there are several ranks and WORKSHOP_TIMEOUT is not 0.
void start_watchdog(const Ranks& ranks);

// Lets the ranks know how to reach each other. Collective over `world`, the communicator of all.
void connect_watchdogs(ncclComm_t world);

// Ends the thread. No rank may be waiting for this one any more.
void stop_watchdog();

// Lets the thread be, because the process ends.
void dismiss_watchdog();

// While one lives, this rank waits ten times as long for the others: they are reading or writing files.
class SlowFiles {
 public:
  SlowFiles();
  ~SlowFiles();
  SlowFiles(const SlowFiles&) = delete;
  SlowFiles& operator=(const SlowFiles&) = delete;
};

// Ends the job as if a call had not come to its end, if a communicator has failed meanwhile: another rank made a call
// that does not fit, or has ended. Otherwise returns.
void report_failed_communicators(const std::string& error);

}  // namespace workshop
