// SPDX-License-Identifier: Apache-2.0
// How a run failed, from its exit status and its output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checker/fingerprints.h"
#include "checker/todos.h"

namespace workshop::tools {

class Ending {
 public:
  // The exit status of the launcher, and what the ranks printed.
  // `bf16`: in this run, weights, activations and gradients have two bytes.
  Ending(int status, const std::string& output, bool bf16);

  // True if the order checker found two accesses in no defined order. That is the verdict, even if more went wrong.
  bool has_verdict() const { return !order_.empty(); }
  // True if both accesses are in one call, or in one group of calls. The mistake is then in that call or group, and not
  // in an earlier TODO.
  bool uses_memory_twice() const;
  // True if a kernel went beyond its memory: the line names the kernel's launch.
  bool names_a_kernel() const {
    return bounds_.starts_with("bounds: a kernel") || bounds_.starts_with("bounds: the kernel");
  }
  // True if ranks waited, or kept running, until they were stopped.
  bool waits() const;
  // Whether a signal ended it.
  bool crashed() const { return !signal_.empty(); }
  // The rank that ended first; -1 if unknown.
  int rank() const { return rank_; }

  // The TODO that the output names, or that contains a call named there. Prefers `next` if the output names several;
  // returns "" if it names none.
  std::string todo(const Todos& todos, const std::string& next) const;
  // The TODO whose call the order checker found on the default stream, or "". No call belongs there.
  std::string on_default_stream(const Todos& todos) const;
  // All TODOs with a line that the output names.
  std::vector<std::string> todos(const Todos& todos) const;
  // Completes "Your program": "did not finish on 3 ranks."; after a TODO: "is where your program did not …".
  std::string headline(int world, bool after_todo) const;
  // What the failure looks like, to find a known mistake; empty if the output gives no reason.
  const std::optional<Sighting>& sighting() const { return sighting_; }
  // The lines of the output that tell more, under a line that says where they come from. They name the regions of this
  // level.
  std::string quote(const Todos& todos) const { return todos.at_this_level(quote()); }

 private:
  std::string quote() const;

  int status_;
  bool bf16_;
  int rank_ = -1;
  std::string signal_;
  std::optional<Sighting> sighting_;
  std::string order_, bounds_, memory_;            // first message of each of the cpu backend's checkers
  std::vector<std::string> lines_;                 // the output without Open MPI's lines
  std::vector<std::string> verdict_, rank_lines_;  // from the watchdog
};

}  // namespace workshop::tools
