// SPDX-License-Identifier: Apache-2.0
// Signals that ask a training run to stop in time: SIGTERM, which a scheduler sends at the time limit, and SIGUSR1,
// which Slurm sends earlier if a job asks for it (--signal).
#pragma once

namespace workshop {

// From now on, the first of these signals is only noted. A second one ends the process as if it had not been caught.
// What arrives within a second counts as one signal, because a launcher and the scheduler may both send it.
void catch_stop_signals();

// From now on, these signals end the process again, because the job is ending anyway.
void release_stop_signals();

// Returns the signal that was noted, or 0.
int stop_signal();

// Returns "SIGTERM" or "SIGUSR1".
const char* stop_signal_name(int signal);

}  // namespace workshop
