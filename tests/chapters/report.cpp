// SPDX-License-Identifier: Apache-2.0
// What ./workshop report makes of a run.
#include <cmath>

#include "tests/harness/harness.h"
#include "tools/timeline.h"

namespace workshop::tests {
namespace {

// A timeline says as the program's own clocks do how much of a step each rank computes, and what the others wait for.
TESTS(report) {
  test("solution.report.idle", {.ranks = 2, .cpu_only = "the machine is simulated"}, [] {
    const Run run = record(
        on(2, solution("04_pipeline/pipeline"), "--layers 64,64,64,64,16 --max-steps 12", "--timeline timeline.json")
            .in("WORKSHOP_SIMULATE=compute=100G,link=2us+10G/s"));
    const tools::Timeline timeline = tools::read_timeline("timeline.json");
    for (const int rank : {0, 1}) {
      const double recorded = run.record.values.at({rank, "idle share"});
      const tools::Shares seen =
          tools::typical_shares(tools::shares(tools::activity(timeline, rank), tools::counted_steps(timeline, rank)));
      EXPECT_TRUE(std::fabs(1 - seen.compute - recorded) <= 0.01)
          << tests::report(run, text("rank ", rank, " idles ", recorded), text(1 - seen.compute, " in the timeline"));
      const std::vector<tools::Wait> waits = tools::waits(timeline, rank);
      EXPECT_TRUE(!waits.empty() && waits[0].rank == 1 - rank && waits[0].operation == "ncclRecv")
          << tests::report(run, text("rank ", rank, " waits for the other one"), text(waits.size(), " causes"));
    }
    EXPECT_EQ(timeline.run, run.record.line);
  });
}

}  // namespace
}  // namespace workshop::tests
