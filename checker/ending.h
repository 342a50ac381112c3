// SPDX-License-Identifier: Apache-2.0
// How a run ended that did not come to its end: what its exit status and its output say.
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
  Ending(int status, const std::string& output);

  // Did the order checker find an access that nothing orders? That is the verdict, whatever else went wrong.
  bool has_verdict() const { return !order_.empty(); }
  // Within one call, or one group of calls? That is a mistake of where these stand, and of no TODO before.
  bool uses_memory_twice() const;
  // Did ranks wait, or run on, until they were ended?
  bool waits() const;
  // The rank that ended first, where that is known; -1.
  int rank() const { return rank_; }

  // The TODO that the output names, or in whose lines a call stands that it names; of several the one that is `next`.
  // Empty where it names none.
  std::string todo(const Todos& todos, const std::string& next) const;
  // "did not finish on 3 ranks: …", behind "TODO 03.3 (…)" or "Your program".
  std::string headline(int world, bool behind_todo) const;
  // What a known mistake of this kind is known by.
  const std::optional<Sighting>& sighting() const { return sighting_; }
  // The lines of the output that tell more, with one that says where they are from.
  std::string quote() const;

 private:
  int status_;
  int rank_ = -1;
  std::string signal_;
  std::optional<Sighting> sighting_;
  std::string order_, bounds_;                     // what the cpu backend's checkers say first
  std::vector<std::string> lines_;                 // without what Open MPI says
  std::vector<std::string> verdict_, rank_lines_;  // of the watchdog
};

}  // namespace workshop::tools
