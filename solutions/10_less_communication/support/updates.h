// SPDX-License-Identifier: Apache-2.0
// The updates that a parameter server has made or will make: whose gradients they use, and how stale those are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/job/job.h"
#include "common/record/record.h"

namespace workshop {

struct Update {
  int worker;              // 1, 2, …: the rank whose gradient it uses
  std::int64_t staleness;  // updates by other workers since this one got its parameters
};
inline constexpr int kAnyWorker = 0;  // in an update that is still to be made
inline constexpr std::int64_t kAnyStaleness = -1;

// Records each update, and prints how many each worker made and how stale they were.
inline void report(const std::vector<Update>& updates, int workers) {
  std::vector<std::int64_t> count(workers + 1), sum(workers + 1), most(workers + 1);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const auto& [worker, staleness] = updates[i];
    ++count[worker];
    sum[worker] += staleness;
    most[worker] = std::max(most[worker], staleness);
    record_value("worker of update " + std::to_string(i), worker);
    record_value("staleness of update " + std::to_string(i), static_cast<double>(staleness));
  }
  for (int w = 1; w <= workers; ++w) {
    const double mean = count[w] > 0 ? static_cast<double>(sum[w]) / static_cast<double>(count[w]) : 0;
    print0("worker %d: %lld updates, staleness %.2f on average, %lld at most\n", w, static_cast<long long>(count[w]),
           mean, static_cast<long long>(most[w]));
  }
}

}  // namespace workshop
