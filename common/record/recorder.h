// What the parts of the common layer tell each other about a run. Chapters include common/record.h instead.
#pragma once

#include <nccl.h>

#include <string>

#include "common/job.h"
#include "common/options.h"

namespace workshop {

// Ends the job where the files that --record and --timeline name cannot be written. The device is not chosen yet, so this
// creates nothing there.
void start_recording(const Options& options, const Ranks& ranks);

// Takes what recording needs on the device, and pinned memory for probes.
void record_on_device();

// Gathers what every rank has recorded and writes the files on rank 0. Collective over `comm`.
void write_record(ncclComm_t comm);

// Adds one JSON line to the record of this rank.
void record_line(std::string json);

// ---- ledger and timeline (ledger.cpp) ------------------------------------------------------------------------------

// Every line of the ledger as JSON, one line an operation and communicator.
std::string ledger_json(int rank);

// As long as it lives, NCCL calls enter neither ledger nor timeline: they are not the program's.
class OffTheRecord {
 public:
  OffTheRecord();
  ~OffTheRecord();
  OffTheRecord(const OffTheRecord&) = delete;
  OffTheRecord& operator=(const OffTheRecord&) = delete;
};

// Starts the timeline's clock on all ranks at about the same time. Collective over `comm`.
void start_clock(ncclComm_t comm);
void enable_timeline();
bool timeline_enabled();

// The timeline's events of this rank in Chrome's trace format, each with a comma in front but the first.
std::string timeline_json(int rank);

// A span of work on a stream: from begin_span to end_span, measured with events.
int begin_span(const std::string& name, cudaStream_t stream);
void end_span(int span, cudaStream_t stream);

}  // namespace workshop
