// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/harness/run_tool.h"

namespace {

std::string record(const std::string& program, int world, double loss, double weight, const std::string& ledger) {
  const std::string peak = R"({"parameters":1536,"gradients":512,"data":99999})";
  return R"({"type":"run","chapter":"02_ddp","program":")" + program + R"(","world":)" + std::to_string(world) + "}\n" +
         R"({"type":"step","replica":0,"step":0,"epoch":0,"loss":7,"global_loss":)" + std::to_string(loss) + "}\n" +
         R"({"type":"parameter","name":"w","shape":[2],"l2":5,"sum":7,"values":[3,)" + std::to_string(weight) + "]}\n" +
         ledger + R"({"type":"memory","rank":0,"peak":)" + peak + R"(,"current":)" + peak + "}\n" +
         R"({"type":"end","status":"complete","steps":1,"seconds_per_step":1.25e-05})" + "\n";
}

std::string collective(int rank, const std::string& op, int ranks, int bytes) {
  return R"({"type":"collective","rank":)" + std::to_string(rank) + R"(,"op":")" + op +
         R"(","communicator":"world","ranks":)" + std::to_string(ranks) + R"(,"calls":1,"elements":1,"bytes":)" +
         std::to_string(bytes) + "}\n";
}

TEST(SummarizeRuns, OneLineARun) {
  const TemporaryFolder folder;
  const std::string one = folder.write("1", record("mlp", 1, 0.5, 4, ""));
  // 2 * 3/4 * 400 + 3/4 * 400 + 3 * 100 + 3 * 100 + 24 = 1524 bytes on rank 0, and less on rank 1.
  const std::string four =
      folder.write("4", record("ddp", 4, 0.5, 4.004,
                               collective(0, "ncclAllReduce", 4, 400) + collective(0, "ncclBroadcast", 4, 400) +
                                   collective(0, "ncclReduceScatter", 4, 100) + collective(0, "ncclAllGather", 4, 100) +
                                   collective(0, "ncclSend", 4, 24) + collective(1, "ncclRecv", 4, 999999)));
  const ToolResult result = run_tool("summarize_runs " + one + " " + four);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output,
            "strategy    ranks  final loss  largest difference  time/step  peak memory/rank  sent/rank\n"
            "02_ddp mlp      1    0.500000                   -    12.5 us          2.00 KiB          0\n"
            "02_ddp ddp      4    0.500000             1.0e-03    12.5 us          2.00 KiB   1.49 KiB\n");
}

TEST(SummarizeRuns, ErrorsAreOneLine) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_tool("summarize_runs").status, 2);
  EXPECT_EQ(run_tool("summarize_runs /no/such/file").output, "summarize_runs: cannot read /no/such/file\n");
  const std::string odd = folder.write("odd", record("ddp", 2, 1, 1, collective(0, "ncclSomething", 2, 8)));
  EXPECT_EQ(run_tool("summarize_runs " + odd).output, "summarize_runs: no formula for what ncclSomething sends\n");
}

}  // namespace
