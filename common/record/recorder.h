// SPDX-License-Identifier: Apache-2.0
// What the folders of common/ share about a run. Chapters include common/record/record.h instead.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include "common/base/ranks.h"
#include "common/device/device.h"

namespace workshop {

class Options;

using Json = nlohmann::ordered_json;  // keeps "type" first

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

// Converts a number to JSON. JSON has neither NaN nor infinity, so these become strings, which never equal a number.
// "unwritten" is the NaN that new memory is filled with (always on the cpu backend, in checks on GPUs), and any NaN
// computed from it.
Json number(double value);

// Appends a number as number() writes it, and a comma. Uses the fewest digits that tell the value from all others of
// its type.
void append_number(std::string& text, float value);
void append_number(std::string& text, double value);

// Returns `line` as text, with `count` values, their L2 norm and their sum added. Writes the text directly: converting
// each number through Json would take most of the time of a recorded run. The key is "floats" for floats and "values"
// for other types.
template <typename T>
std::string with_values(const Json& line, const T* values, std::size_t count) {
  constexpr std::size_t kMaxValues = 4096;  // of a tensor are written out; the norm and the sum are of all values
  using Written = std::conditional_t<std::is_same_v<T, float>, float, double>;
  std::string text = line.dump();
  text.back() = ',';
  text += std::is_same_v<T, float> ? "\"floats\":[" : "\"values\":[";
  double squares = 0, sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    squares += static_cast<double>(values[i]) * values[i];
    sum += values[i];
    if (i < kMaxValues) append_number(text, static_cast<Written>(values[i]));
  }
  if (count > 0) text.pop_back();  // the last comma
  text += "],\"l2\":";
  append_number(text, std::sqrt(squares));
  text += "\"sum\":";
  append_number(text, sum);
  text.back() = '}';
  return text;
}

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
inline void record_line(const Json& json) { record_text(json.dump()); }

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
