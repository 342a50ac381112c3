// SPDX-License-Identifier: Apache-2.0
// What the folders of common/ share about a run. Chapters include common/record/record.h instead.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "common/base/ranks.h"
#include "common/device/device.h"

namespace workshop {

class Options;

struct Recorder {
  std::string record_path, timeline_path, run_line;
  std::string lines;  // of this rank
  int step = 0;       // the optimizer step being enqueued
  int steps_done = 0;
  double seconds_per_step = 0;
  long allocations = 0, synchronizations = 0, events = 0;  // in steps (cpu backend)
  long first_synchronizations = 0, first_events = 0;       // before the program began
};
Recorder& recorder();

// Starts recording. Ends the job if the files of --record and --timeline cannot be written, or another run is going to
// write them. Runs before the device is chosen, so it must not create anything there.
void start_recording(const Options& options, const Ranks& ranks);

// Allocates pinned memory for probes.
void make_room_for_probes();
// Waits at most `patience` for the probes' copies and turns them into lines, in order.
void finish_probes(std::chrono::milliseconds patience);

// Notes how often the host of a program without steps has waited. Call it before the job's own work at the end.
void note_host_without_steps();

// Gathers the lines and events of all ranks and writes the files on rank 0. Collective over `comm`.
void write_record(ncclComm_t comm);

// Adds one line of JSON to this rank's record.
void record_text(const std::string& line);

// Asks the devices how much memory is in use, because buffers' accounts do not include contexts, NCCL's buffers and
// cuBLAS's workspaces. Memory of other processes on the device counts too.
void note_memory_on_device();

// start_ledger() starts counting NCCL calls. record_ledger() records a line per operation and communicator.
void start_ledger();
void record_ledger(int rank);

// Enters a copy from one device of this process to another in the ledger (common/record/copies.cpp).
void count_copy(int from, int to, std::size_t bytes);

// Starts the timeline.
void start_timeline();
// Marks an instant on `stream`: an optimizer step begins or, if `step` is -1, the last one ends.
void mark_step(int step, cudaStream_t stream);
// Sets a counter of the timeline: from now on, this rank holds `bytes` of this kind.
void mark_memory(Memory kind, int device, std::size_t bytes);
// Starts the timeline's clock at about the same time on all ranks. Collective over `comm`.
void start_clock(ncclComm_t comm);
// Returns this rank's events in Chrome's trace format, each followed by a comma.
std::string timeline_json(int rank);

}  // namespace workshop
