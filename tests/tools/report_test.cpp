// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/format.h"
#include "tests/harness/run_tool.h"

namespace {

using nlohmann::json;
using workshop::formatted;

const std::string kRun =
    R"({"type":"run","chapter":"03_model_parallel","program":"model_parallel","world":2,"options":{"epochs":1}})";

std::string span(const std::string& name, int rank, int stream, double begin, double end,
                 const std::string& call = "") {
  return formatted(R"({"name":"%s","ph":"X","pid":%d,"tid":%d,"ts":%g,"dur":%g%s})", name.c_str(), rank, stream, begin,
                   end - begin, call.empty() ? "" : (",\"args\":{\"calls\":[" + call + "]}").c_str());
}
std::string call(const std::string& op, int rank, int peer, int number) {
  return formatted(R"({"op":"%s","communicator":"world","id":"00000000000000ab","rank":%d,"peer":%d,"number":%d,)"
                   R"("bytes":64})",
                   op.c_str(), rank, peer, number);
}
std::string step(int rank, int step, double at) {
  return formatted(R"({"name":"step","ph":"i","s":"t","pid":%d,"tid":0,"ts":%g,"args":{"step":%d}})", rank, at, step);
}
std::string end(int rank, double at) {
  return formatted(R"({"name":"end of the epoch","ph":"i","s":"t","pid":%d,"tid":0,"ts":%g})", rank, at);
}

std::string timeline(const std::vector<std::string>& events, const std::string& run = kRun) {
  std::string text = "{\"otherData\": " + run + ",\n\"traceEvents\": [";
  for (std::size_t i = 0; i < events.size(); ++i) text += (i == 0 ? "\n" : ",\n") + events[i];
  return text + "\n]}\n";
}

// One step of 1,000 microseconds. Rank 1 waits from the start for a message that rank 0 sends after computing for 300.
// Rank 0 then waits for the reply, which is sent at 800. A message takes 50.
std::string two_stages() {
  return timeline({step(0, 0, 0), end(0, 1000), step(1, 0, 0), end(1, 1000),  //
                   span("forward 0", 0, 0, 0, 300), span("ncclSend", 0, 0, 300, 350, call("ncclSend", 0, 1, 1)),
                   span("idle", 0, 0, 350, 850), span("ncclRecv", 0, 0, 350, 850, call("ncclRecv", 0, 1, 1)),
                   span("backward 0", 0, 0, 850, 950),  //
                   span("ncclRecv", 1, 0, 0, 350, call("ncclRecv", 1, 0, 1)), span("forward 1", 1, 0, 350, 500),
                   span("backward 1", 1, 0, 500, 800), span("ncclSend", 1, 0, 800, 850, call("ncclSend", 1, 0, 1))});
}

std::string record() {
  const std::string peak = R"({"parameters":1048576,"gradients":1048576,"data":99999})";
  return kRun + "\n" + R"({"type":"step","replica":0,"step":0,"epoch":0,"loss":1.5,"global_loss":1.5})" + "\n" +
         R"({"type":"value","rank":0,"name":"validation loss of epoch 0","value":1.25})" + "\n" +
         R"({"type":"collective","rank":0,"op":"ncclSend","communicator":"world","ranks":2,"calls":1,"elements":16,)" +
         R"("bytes":64})" + "\n" + R"({"type":"memory","rank":0,"peak":)" + peak + R"(,"current":)" + peak + "}\n" +
         R"({"type":"end","status":"complete","steps":1,"seconds_per_step":0.001})" + "\n";
}

json report(const std::string& files) {
  const ToolResult result = run_tool("report --json " + files);
  EXPECT_EQ(result.status, 0) << result.output;
  return json::parse(result.output);
}

void expect_shares(const json& shares, double compute, double communication, double waiting, double idle) {
  EXPECT_DOUBLE_EQ(shares.at("compute"), compute);
  EXPECT_DOUBLE_EQ(shares.at("communication"), communication);
  EXPECT_DOUBLE_EQ(shares.at("waiting"), waiting);
  EXPECT_NEAR(shares.at("idle"), idle, 1e-12);
}

TEST(Report, WhatTheRanksWaitFor) {
  const TemporaryFolder folder;
  const json run = report(folder.write("t.json", two_stages()) + " " + folder.write("r.jsonl", record()))["runs"].at(0);
  expect_shares(run["shares"].at(0), 0.4, 0.1, 0.45, 0.05);
  expect_shares(run["shares"].at(1), 0.45, 0.1, 0.3, 0.15);
  EXPECT_EQ(run["headline"], "Rank 0 does not compute for 60 % of a step: for 45 % it waits for rank 1's gradients.");
  EXPECT_EQ(run["advice"], "Chapter 04 fills this time with other parts of the batch: micro-batches.");
  EXPECT_EQ(run["training"], json::parse("[[0, 1.5]]"));
  EXPECT_EQ(run["validation"], json::parse("[[0, 1.25]]"));
  EXPECT_EQ(run["memory"][0]["peak"]["gradients"], 1048576);
  EXPECT_EQ(run["ledger"][0]["sent"], 64);
  EXPECT_EQ(run["timeline"]["lane"].size(), 9);
}

TEST(Report, InCharacters) {
  const TemporaryFolder folder;
  const ToolResult result = run_tool("report " + folder.write("t.json", two_stages()));
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(
      result.output.find("   1   45.0 %         10.0 %   30.0 % 15.0 %   ##################====~~~~~~~~~~~~......"),
      std::string::npos)
      << result.output;
}

// As in tensor parallelism, where a layer's all-reduce lies in its forward pass.
TEST(Report, AnAllReduceInAForwardPassIsNoComputation) {
  const TemporaryFolder folder;
  const json run = report(folder.write("t.json", timeline({step(0, 0, 0), end(0, 100), span("forward 0", 0, 0, 0, 100),
                                                           span("ncclAllReduce", 0, 0, 25, 75)})))["runs"]
                       .at(0);
  expect_shares(run["shares"].at(0), 0.5, 0.5, 0, 0);
}

TEST(Report, RunsAreToldApartAndCompared) {
  const TemporaryFolder folder;
  const std::string gpipe =
      R"({"type":"run","chapter":"04_pipeline","program":"pipeline","world":4,"options":{"schedule":"gpipe",)"
      R"("micro-batches":8,"chunks":1}})";
  std::string other = gpipe;
  other.replace(other.find("gpipe"), 5, "1f1b");
  const std::vector<std::string> events{step(0, 0, 0), end(0, 100), span("forward 0", 0, 0, 0, 100)};
  const json all =
      report(folder.write("a", timeline(events, gpipe)) + " " + folder.write("b", timeline(events, other)));
  EXPECT_EQ(all["runs"][0]["title"], "04_pipeline pipeline gpipe, 4 ranks");
  EXPECT_EQ(all["runs"][1]["title"], "04_pipeline pipeline 1f1b, 4 ranks");
  // Chapter 04's chart: the last stage begins in slot 3, and all stages are done after 22 slots.
  const json& schedule = all["runs"][1]["schedule"];
  EXPECT_EQ(schedule.size(), 4 * 16);
  EXPECT_NE(std::ranges::find(schedule, json::parse("[3, 3, 0, 0, 0]")), schedule.end());
  EXPECT_NE(std::ranges::find(schedule, json::parse("[0, 21, 1, 7, 0]")), schedule.end());
}

// In a round of two steps, one step communicates, for a sixth of the round's time. The first three steps do not count.
TEST(Report, ARoundOfLocalSgdIsOneStep) {
  const TemporaryFolder folder;
  const std::string run =
      R"({"type":"run","chapter":"10_less_communication","program":"local_sgd","world":2,"options":{"sync-every":2}})";
  std::vector<std::string> events;
  for (int i = 0; i < 7; ++i) {
    const double at = 150.0 * i;
    events.push_back(step(0, i, at));
    events.push_back(span("forward 0", 0, 0, at, at + 100));
    if (i % 2 == 0) events.push_back(span("ncclAllReduce", 0, 0, at + 100, at + 150));
  }
  events.push_back(end(0, 7 * 150));
  const json all = report(folder.write("t.json", timeline(events, run)))["runs"].at(0);
  expect_shares(all["shares"].at(0), 2.0 / 3, 1.0 / 6, 0, 1.0 / 6);
  EXPECT_TRUE(all["headline"].get<std::string>().starts_with("The rank does not compute for 33 %")) << all["headline"];
}

// Nothing is reported about the server, because it does not compute.
TEST(Report, AWorkerOfAParameterServerIsSeen) {
  const TemporaryFolder folder;
  const std::string run =
      R"({"type":"run","chapter":"10_less_communication","program":"parameter_server","world":2,"options":{}})";
  const std::vector<std::string> events{step(0, 0, 0),
                                        end(0, 100),
                                        step(1, 0, 0),
                                        end(1, 100),
                                        span("ncclRecv", 0, 0, 0, 100),
                                        span("forward 0", 1, 0, 0, 40),
                                        span("ncclSend", 1, 0, 40, 100)};
  const json all = report(folder.write("t.json", timeline(events, run)))["runs"].at(0);
  EXPECT_TRUE(all["headline"].get<std::string>().starts_with("Rank 1 does not compute for 60 % of a step"))
      << all["headline"];
  EXPECT_TRUE(all["advice"].get<std::string>().starts_with("All messages pass through one rank")) << all["advice"];
}

// Changes at the same time are kept apart, so that each of them can be drawn.
TEST(Report, MemoryOverTime) {
  const TemporaryFolder folder;
  const auto held = [](double at, int bytes) {
    return formatted(R"({"name":"memory","ph":"C","pid":0,"id":2,"ts":%g,"args":{"parameters":%d,"data":1}})", at,
                     bytes);
  };
  const json all = report(folder.write("t.json", timeline({step(0, 0, 0), end(0, 100), held(-5, 8), held(-5, 16),
                                                           held(120, 0), span("forward 0", 0, 0, 0, 100)})))["runs"]
                       .at(0)["memory_over_time"]
                       .at(0);
  EXPECT_EQ(all, json::parse(R"({"rank":0,"device":2,"steps":[0.0,100.0],"at":[-5.0,-4.999,120.0],)"
                             R"("bytes":{"parameters":[8.0,16.0,0.0],"data":[1.0,1.0,1.0]}})"));
}

// Options that no run can have must cause neither a formula nor an error.
TEST(Report, FormulasOfImpossibleRuns) {
  const TemporaryFolder folder;
  for (
      const char* run :
      {R"("chapter":"07_3d","program":"train_3d","world":2,"options":{"pp":0,"layers":[4,4],"batch-size":8})",
       R"("chapter":"07_3d","program":"train_3d","world":2,"options":{"pp":2,"tp":65536,"layers":[4,4],"batch-size":8})",
       R"("chapter":"04_pipeline","program":"pipeline","world":2,"options":{"micro-batches":0,"layers":[4,4,4]})",
       R"("chapter":"04_pipeline","program":"pipeline","world":5,"options":{"layers":[4,4,4],"batch-size":8})",
       R"("chapter":"06_fsdp","program":"zero","world":2,"options":{"stage":9,"layers":[4,4],"batch-size":8})",
       R"("chapter":"02_ddp","program":"ddp","world":0,"options":{"layers":[4,4],"batch-size":8})",
       R"("chapter":"02_ddp","program":"ddp","world":2,"options":{"layers":[99999999999,4],"batch-size":8})",
       R"("chapter":"02_ddp","program":"ddp","world":2,"options":{"layers":[4],"batch-size":8})",
       R"("chapter":"02_ddp","program":"ddp","world":2,"options":{"layers":"4,4","batch-size":8})",
       R"("chapter":"02_ddp","program":"ddp","world":65536,"options":{"layers":[4,4],"batch-size":65536})"}) {
    const json all = report(folder.write(
        "r.jsonl", formatted("{\"type\":\"run\",%s}\n{\"type\":\"end\",\"status\":\"complete\",\"steps\":1,"
                             "\"seconds_per_step\":1}\n",
                             run)));
    EXPECT_EQ(all["runs"][0]["formulas"], json::array()) << run;
  }
}

TEST(Report, ErrorsAreOneLine) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_tool("report").output, "report: FILE is missing: the records and timelines of the runs\n");
  EXPECT_EQ(run_tool("report /no/a").output, "report: cannot read /no/a\n");
  const auto refused = [&](const std::string& content) {
    const ToolResult result = run_tool("report " + folder.write("bad", content));
    EXPECT_EQ(result.status, 2) << content;
    EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
    EXPECT_TRUE(result.output.starts_with("report: ")) << result.output;
  };
  refused("");
  refused("loss 1.5\n");
  refused(kRun + "\n");
  refused(R"({"traceEvents": [{"ph": "X"}]})");
  refused(R"({"traceEvents": [)");
  refused(R"({"traceEvents": [{"name": "memory", "ph": "C", "pid": 0, "ts": 0}]})");
  refused(R"({"traceEvents": [{"name": "memory", "ph": "C", "pid": 0, "ts": 0, "args": {"data": "much"}}]})");
  refused(R"({"otherData": {"type": "run"}, "traceEvents": []})");
}

}  // namespace
