// SPDX-License-Identifier: Apache-2.0
// Reads a schedule of your own from a file that looks like a chart of --print, with a line per stage:
//
//   # Two stages, two micro-batches.
//   stage 0 | F0 F1  . B0 B1
//   stage 1 |  . F0 B0 F1 B1
//
// F1 is the forward of micro-batch 1, B1 its backward. If the file has a W, backwards are split, and W1 stands for the
// gradients of the weights of micro-batch 1. With several chunks, a letter says which one: F1a is chunk 0's. A line
// "parts | 0 1 1 0" gives the stage of each part of the model; without one, part i is on stage i % stages. Dots are
// ignored; only the order counts. The messages are inserted as in the other schedules. Whether the schedule can run is
// for check_schedule() to say.
#pragma once

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "04_pipeline/schedule.h"
#include "common/base/files.h"
#include "common/job/job.h"

namespace workshop {

class ScheduleFile {
 public:
  explicit ScheduleFile(const std::string& path) : path_(path) {}

  // Ends the program with one line that names the place if the text is no schedule. `ahead`: how many inputs of a kind
  // a stage receives before it needs them.
  Schedule read(int ahead) {
    std::istringstream text(contents());
    for (std::string line; std::getline(text, line);) {
      ++line_;
      read_line(line.substr(0, line.find('#')));
    }
    if (orders_.empty()) usage_error("--schedule is '%s', in which no line begins with 'stage 0 |'", path_.c_str());
    Schedule s{path_, static_cast<int>(orders_.size()), micro_batches_, chunks_, {}, {}, splits_backward_, placement_};
    if (!placement_.empty() && (chunks_ != 2 || std::ssize(placement_) != s.parts())) {
      refuse("'parts' has " + std::to_string(placement_.size()) + " parts; expected two for each of the " +
             std::to_string(s.stages) + " stages, and two chunks per stage");
    }
    for (int stage = 0; stage < s.stages; ++stage) s.lists.push_back(connect(s, stage, orders_[stage], ahead));
    return s;
  }

 private:
  static constexpr int kMostMicroBatches = 1 << 12, kMostStages = 1 << 10;

  std::string contents() const {
    try {
      return read_file(path_, /*links=*/true);
    } catch (const std::exception& error) {
      usage_error("--schedule is '%s'; expected gpipe, 1f1b, interleaved, zb-h1, zb-v or a file: %s", path_.c_str(),
                  error.what());
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    usage_error("%s:%d: %s", path_.c_str(), line_, what.c_str());
  }

  void read_line(const std::string& line) {
    std::istringstream cells(line);
    std::string stage, number, bar;
    if (!(cells >> stage)) return;
    if (stage == "parts" && placement_.empty() && cells >> bar && bar == "|") {
      for (int of_part; cells >> of_part;) placement_.push_back(of_part);
      const auto is_stage = [](int number) { return 0 <= number && number < kMostStages; };
      if (cells.eof() && !placement_.empty() && std::ranges::all_of(placement_, is_stage)) return;
      refuse("expected 'parts |' and the number of a stage for each part");
    }
    const std::string expected = std::to_string(orders_.size());
    if (!(cells >> number >> bar) || stage != "stage" || number != expected || bar != "|") {
      refuse("expected 'stage " + expected + " |' and its cells, such as F0 B0");
    }
    if (orders_.size() == kMostStages) refuse("there are too many stages");
    std::vector<Instruction>& order = orders_.emplace_back();
    for (std::string cell; cells >> cell;) {
      if (cell != ".") order.push_back(instruction(cell));
    }
  }

  // Returns what a cell such as "B12" or "F3a" stands for.
  Instruction instruction(const std::string& cell) {
    const std::size_t kind = std::string("FBW").find(cell[0]);
    int micro_batch = -1, chunk = 0;
    const char *begin = cell.data() + 1, *end = cell.data() + cell.size();
    const auto [rest, error] = std::from_chars(begin, end, micro_batch);
    const bool has_chunk = rest + 1 == end && 'a' <= *rest && *rest <= 'z';
    if (kind == std::string::npos || error != std::errc() || micro_batch < 0 || !(rest == end || has_chunk)) {
      refuse("'" + cell + "' is no cell; expected F, B or W and a micro-batch, such as F0, or with a chunk F0a");
    }
    if (micro_batch >= kMostMicroBatches) refuse("'" + cell + "': there are too many micro-batches");
    if (has_chunk) chunk = *rest - 'a';
    if (names_chunks_.value_or(has_chunk) != has_chunk)
      refuse("'" + cell + "': either all cells name a chunk, or none");
    names_chunks_ = has_chunk;
    micro_batches_ = std::max(micro_batches_, micro_batch + 1);
    chunks_ = std::max(chunks_, chunk + 1);
    splits_backward_ = splits_backward_ || cell[0] == 'W';
    return {static_cast<Instruction::Kind>(kind), micro_batch, chunk};
  }

  std::string path_;
  int line_ = 0, micro_batches_ = 1, chunks_ = 1;
  bool splits_backward_ = false;
  std::optional<bool> names_chunks_;
  std::vector<int> placement_;                    // indexed by part
  std::vector<std::vector<Instruction>> orders_;  // what each stage computes
};

}  // namespace workshop
