// SPDX-License-Identifier: Apache-2.0
// The options of long_run.
#pragma once

#include <csignal>
#include <string>
#include <utility>

#include "common/base/ranks.h"
#include "common/base/stop_signal.h"
#include "common/options/options.h"

namespace workshop {

// The options of a checkpoint as in the other programs, and those that make things go wrong.
struct LongRunOptions {
  std::string folder;  // of the checkpoints; empty: nothing is saved
  int save_every = 0, check_every = 0;
  int slow_disk = 0;                    // milliseconds
  int warned_ranks = 0, warned_at = 0;  // ranks 1, 2, …, and 0 last, get a signal before this step
  int damaged_rank = -1;

  void add_to(Options& options) {
    options.with_checkpoints("full");
    options.without({"--resume", "--keep", "--checkpoint-format", "--optimizer", "--weight-decay"});
    options.add("--slow-disk", slow_disk,
                "milliseconds that rank 1 or, after even steps, the last rank takes longer to write a file", 0, 10000);
    options.add("--warned-ranks", warned_ranks, "number of ranks, from rank 1 on, that are told to stop", 0);
    options.add("--warned-at", warned_at, "number of steps before that", 0);
    options.add("--damaged-rank", damaged_rank, "rank on which a bit flips in the first step; -1: none", -1);
  }

  // Call it after creating the job, which compares the options of the ranks. The program saves and checks by itself;
  // Training must not do it too.
  void take_from(Options& options) {
    folder = std::exchange(options.checkpoints, "");
    save_every = std::exchange(options.save_every, 0);
    check_every = std::exchange(options.check_replicas, 0);
  }

  // Returns the signal that this rank has got by now, after `step` steps, or 0.
  int signal(const Ranks& ranks, int step) const {
    // Neither rank 0 nor the last one may be the first: their flags are the easiest ones to send to all.
    const int place = (ranks.rank + ranks.world - 1) % ranks.world;
    return place < warned_ranks && step >= warned_at ? SIGTERM : stop_signal();
  }
  // Milliseconds that this rank takes longer to write its file after `step` steps.
  int slow_disk_of(int rank, int ranks, int step) const {
    return rank == (step % 2 == 0 ? ranks - 1 : 1) ? slow_disk : 0;
  }
  bool saves_after(int step) const { return !folder.empty() && save_every > 0 && step % save_every == 0; }
  bool saves_at_the_end(int step) const { return !folder.empty() && !saves_after(step); }
  bool checks_after(int step) const { return check_every > 0 && step % check_every == 0; }
  bool damages(int rank, int step) const { return rank == damaged_rank && step == 1; }
};

}  // namespace workshop
