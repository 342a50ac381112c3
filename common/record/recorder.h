// SPDX-License-Identifier: Apache-2.0
// What the parts of the common layer tell each other about a run. Chapters include common/record/record.h instead.
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

using Json = nlohmann::ordered_json;  // "type" first

struct Recorder {
  std::string record_path, timeline_path, run_line;
  std::string lines;  // of this rank
  int step = 0;       // optimizer step that is being enqueued
  int steps_done = 0;
  double seconds_per_step = 0;
  long allocations = 0, synchronizations = 0, events = 0;  // in steps (cpu backend)
};
Recorder& recorder();

// JSON has no NaN: what is not finite is written as a string and so never equals a number. "unwritten" is the NaN that
// the cpu backend fills memory with, and what is computed from it.
Json number(double value);

// Appends the number, as number() writes it, with as few digits as tell it from others of its type; and a comma.
void append_number(std::string& text, float value);
void append_number(std::string& text, double value);

// The line with `count` values, their norm and their sum, as text: to have Json make a value and its text of each
// number would take most of the time of a run that records. The values are "floats" or, of another type, "values".
template <typename T>
std::string with_values(const Json& line, const T* values, std::size_t count) {
  constexpr std::size_t kMaxValues = 4096;  // of a tensor that are written out in full
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

// Ends the job where the files that --record and --timeline name cannot be written. The device is not chosen yet, so
// this creates nothing there.
void start_recording(const Options& options, const Ranks& ranks);

// Takes pinned memory for probes; and turns the probes that have been copied into lines, in order. Waits at most
// `patience` for them.
void make_room_for_probes();
void finish_probes(std::chrono::milliseconds patience);

// Gathers what every rank has recorded and writes the files on rank 0. Collective over `comm`.
void write_record(ncclComm_t comm);

// Adds one line of JSON to the record of this rank.
void record_text(const std::string& line);
inline void record_line(const Json& json) { record_text(json.dump()); }

// Contexts, NCCL's buffers and cuBLAS's workspaces are in no account, so the devices are asked too. What other
// processes hold there counts as well.
void note_memory_on_device();

// From here on NCCL calls are counted; record_ledger() adds a line for each operation and communicator.
void start_ledger();
void record_ledger(int rank);

// A copy from one device of this process to another, which the ledger counts too (common/record/copies.cpp).
void count_copy(int from, int to, std::size_t bytes);

// The same for the timeline. Marks of one stream say where its optimizer steps begin, and with `step` -1 that the last
// one ends: each, as an event, an instant of the timeline. start_clock() is collective over `comm`, and starts its
// clock on all ranks at about the same time. The events of this rank are in Chrome's trace format, each with a comma
// behind it.
void start_timeline();
void mark_step(int step, cudaStream_t stream);
// From now on this rank holds so many bytes of a kind: a counter of the timeline.
void mark_memory(Memory kind, int device, std::size_t bytes);
void start_clock(ncclComm_t comm);
std::string timeline_json(int rank);

}  // namespace workshop
