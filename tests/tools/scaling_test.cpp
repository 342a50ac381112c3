// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/harness/run_tool.h"

namespace {

// Returns the record of a run of one epoch: 8 steps on one rank or 4 on two, with 32 samples per rank and step.
std::string record(int world, double seconds_per_step, const std::string& options = "") {
  std::string text = R"({"type":"run","chapter":"02_ddp","program":"ddp","world":)" + std::to_string(world) +
                     R"(,"options":{"batch-size":32,"epochs":1)" + options + "}}\n";
  for (int replica = 0; replica < world; ++replica)
    text += R"({"type":"step","replica":)" + std::to_string(replica) +
            R"(,"step":0,"epoch":0,"loss":1,"global_loss":1})" + "\n";
  const std::string peak = R"({"parameters":1048576,"gradients":1048576,"data":99999})";
  text += R"({"type":"memory","rank":0,"peak":)" + peak + R"(,"current":)" + peak + "}\n";
  return text + R"({"type":"end","status":"complete","steps":)" + std::to_string(8 / world) +
         R"(,"seconds_per_step":)" + std::to_string(seconds_per_step) + "}\n";
}

std::string span(const std::string& name, int rank, int stream, int begin, int end) {
  return R"({"name":")" + name + R"(","ph":"X","pid":)" + std::to_string(rank) + R"(,"tid":)" + std::to_string(stream) +
         R"(,"ts":)" + std::to_string(begin) + R"(,"dur":)" + std::to_string(end - begin) + "}";
}

// Returns the event for the start of a step, or, for step -1, for the end of the last step.
std::string begin_of(int step, int rank, int at) {
  const std::string arguments = step < 0 ? "" : R"(,"args":{"step":)" + std::to_string(step) + "}";
  return R"({"name":"step","ph":"i","s":"t","pid":)" + std::to_string(rank) + R"(,"tid":0,"ts":)" + std::to_string(at) +
         arguments + "}";
}

// Returns a timeline of two steps after a broadcast. On each rank 1,000 of the all-reduces' 3,000 microseconds are
// hidden.
std::string timeline(int ranks) {
  std::string text = R"({"traceEvents": [{"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"stream 0"}})";
  for (int rank = 0; rank < ranks; ++rank) {
    for (const std::string& one :
         {begin_of(0, rank, 1000), begin_of(1, rank, 4500), begin_of(-1, rank, 6000),
          span("ncclBroadcast", rank, 0, 0, 500), span("forward 0", rank, 0, 1000, 2000),
          span("backward 0", rank, 0, 2000, 4000), span("average gradients", rank, 0, 3000, 6000),
          span("ncclAllReduce", rank, 1, 3000, 5500), span("ncclAllReduce", rank, 2, 5000, 6000)})
      text += ",\n" + one;
  }
  return text + "]}\n";
}

TEST(Scaling, SpeedUpEfficiencyAndExposedCommunication) {
  const TemporaryFolder folder;
  const std::string files = folder.write("1.jsonl", record(1, 0.010)) + " " +
                            folder.write("1.json", R"({"traceEvents": []})") + " " +
                            folder.write("2.jsonl", record(2, 0.0125)) + " " + folder.write("2.json", timeline(2));
  const ToolResult result = run_tool("scaling --json " + (folder / "out") + " " + files);
  EXPECT_EQ(result.status, 0) << result.output;
  const nlohmann::json rows = nlohmann::json::parse(folder.read("out"));
  ASSERT_EQ(rows.size(), 2);
  EXPECT_DOUBLE_EQ(rows[0].at("samples_per_second"), 3200);
  EXPECT_DOUBLE_EQ(rows[0].at("seconds_per_epoch"), 0.08);
  EXPECT_DOUBLE_EQ(rows[0].at("exposed_seconds_per_step"), 0);
  EXPECT_DOUBLE_EQ(rows[1].at("samples_per_second"), 5120);
  EXPECT_DOUBLE_EQ(rows[1].at("seconds_per_epoch"), 0.05);
  EXPECT_DOUBLE_EQ(rows[1].at("speedup"), 1.6);
  EXPECT_DOUBLE_EQ(rows[1].at("efficiency"), 0.8);
  EXPECT_DOUBLE_EQ(rows[1].at("exposed_seconds_per_step"), 0.002 / 2);
  EXPECT_DOUBLE_EQ(rows[1].at("peak_memory"), 2 << 20);

  // An epoch with twice as many samples: two ranks need as many steps for it as one rank for half of them.
  EXPECT_EQ(run_tool("scaling --weak --json " + (folder / "weak") + " " + files).status, 0);
  EXPECT_DOUBLE_EQ(nlohmann::json::parse(folder.read("weak"))[1].at("seconds_per_epoch"), 0.1);
}

TEST(Scaling, PartOfAnEpochHasNoTimeOfAnEpoch) {
  const TemporaryFolder folder;
  const std::string files = folder.write("1.jsonl", record(1, 0.010, R"(,"max-steps":5)")) + " " +
                            folder.write("1.json", R"({"traceEvents": []})");
  EXPECT_EQ(run_tool("scaling --json " + (folder / "out") + " " + files).status, 0);
  EXPECT_FALSE(nlohmann::json::parse(folder.read("out"))[0].contains("seconds_per_epoch"));
}

TEST(Scaling, ErrorsAreOneLine) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_tool("scaling").output, "scaling: FILE is missing: the record and the timeline of each run\n");
  EXPECT_EQ(run_tool("scaling /no/a").output, "scaling: expects pairs of a record and a timeline\n");
  EXPECT_EQ(run_tool("scaling /no/a /no/b").output, "scaling: cannot read /no/a\n");
  const std::string one = folder.write("1.jsonl", record(1, 0));
  EXPECT_EQ(run_tool("scaling " + one + " x").output, "scaling: " + one + " has no time per step: too few steps?\n");
}

}  // namespace
