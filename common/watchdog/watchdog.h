// SPDX-License-Identifier: Apache-2.0
// The watchdog: a thread on each rank that checks whether the rank's NCCL calls complete, and whether the call that the
// program is in returns. If one does not, the ranks exchange notes, print what is wrong, and end the job. The thread
// never queries the device, so it cannot get stuck like the program. A second thread asks the device which calls have
// completed; if the device does not answer, they count as not completed.
#pragma once

#include <nccl.h>

#include <string>

#include "common/base/ranks.h"

namespace workshop {

// Starts the watchdog if there are several ranks and WORKSHOP_TIMEOUT is not 0.
void start_watchdog(const Ranks& ranks);

// Tells all ranks how to reach each other. Collective over `world`, the communicator of all ranks.
void connect_watchdogs(ncclComm_t world);

// Stops the watchdog. No rank may still be waiting for this one.
void stop_watchdog();

// Makes the watchdog do nothing more, without waiting for its threads, because the process is about to end.
void dismiss_watchdog();

// While an object of this class exists, the rank's timeout is ten times as long, because the other ranks may be reading
// or writing files.
class SlowFiles {
 public:
  SlowFiles();
  ~SlowFiles();
  SlowFiles(const SlowFiles&) = delete;
  SlowFiles& operator=(const SlowFiles&) = delete;
};

// Returns unless a communicator failed, as happens if another rank ended or made a call that does not match. If one
// failed, ends the job as if a call had not completed, and reports `error` or, if it is empty, the communicator's
// error.
void report_failed_communicators(const std::string& error);

}  // namespace workshop
