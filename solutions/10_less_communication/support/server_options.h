// SPDX-License-Identifier: Apache-2.0
// The options of the parameter server, and the order of updates that follows from them.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "10_less_communication/support/updates.h"
#include "common/job/job.h"
#include "common/options/options.h"
#include "common/record/record.h"

namespace workshop {

struct ServerOptions {
  int staleness = 1 << 30;
  std::string order = "arrival", replay, straggler;
  int slow_rank = 0, slowness = 1;  // --straggler

  void add_to(Options& options) {
    options.add("--staleness", staleness, "updates a worker may be ahead of the slowest (default: no limit)", 0);
    options.add("--order", order, "of the updates: as gradients arrive, or one worker after the other",
                {"arrival", "turns"});
    options.add("--replay", replay, "run record (--record) whose order of updates to repeat", {});
    options.add("--straggler", straggler, "RANK:FACTOR, a worker that takes FACTOR times as long for a gradient", {});
  }

  // Parses --straggler and reads --replay. Ends the program if options contradict each other.
  void complete() {
    const int world = process_ranks().world;
    if (world < 2) {
      usage_error("parameter_server needs a server and a worker; it was started on 1 rank, expected at least 2");
    }
    if (!straggler.empty()) read_straggler(world - 1);
    if (!replay.empty() && order != "arrival") usage_error("--order and --replay are two orders; expected one of them");
    if (!replay.empty()) read_replay(world - 1);
  }

  // Returns the order in which to make the updates; empty if gradients are used as they arrive.
  std::vector<Update> order_of(std::int64_t updates, int workers) const {
    const auto recorded = static_cast<std::int64_t>(recorded_.size());
    if (recorded > 0 && recorded != updates) {
      usage_error("--replay is '%s', which has %" PRId64 " updates; expected the run's number, %" PRId64,
                  replay.c_str(), recorded, updates);
    }
    if (order != "turns") return recorded_;
    std::vector<Update> turns;
    for (std::int64_t i = 0; i < updates; ++i) turns.push_back({static_cast<int>(i % workers) + 1, kAnyStaleness});
    return turns;
  }

 private:
  void read_straggler(int workers) {
    std::istringstream text(straggler);
    char colon = 0;
    const bool read = text >> slow_rank >> colon >> slowness && colon == ':' && text.peek() == EOF;
    if (read && slow_rank >= 1 && slow_rank <= workers && slowness >= 1 && slowness <= 1000) return;
    usage_error("--straggler is '%s'; expected RANK:FACTOR, a worker from 1 to %d and a whole number from 1 to 1000",
                straggler.c_str(), workers);
  }

  void read_replay(int workers) {
    try {
      const std::vector<double> of = read_values(replay, "worker of update");
      const std::vector<double> staleness_of = read_values(replay, "staleness of update");
      if (of.empty() || of.size() != staleness_of.size()) throw std::runtime_error(replay + ": no record of updates");
      for (std::size_t i = 0; i < of.size(); ++i) {
        if (!(of[i] >= 1 && of[i] <= workers) || !(staleness_of[i] >= 0 && staleness_of[i] <= 1e9)) {
          throw std::runtime_error(replay + ": update " + std::to_string(i) + " is by no worker of this run");
        }
        recorded_.push_back({static_cast<int>(of[i]), static_cast<std::int64_t>(staleness_of[i])});
      }
    } catch (const std::runtime_error& failed) {
      usage_error("--replay: " + std::string(failed.what()) + "; expected the --record of a run of parameter_server");
    }
  }

  std::vector<Update> recorded_;
};

}  // namespace workshop
