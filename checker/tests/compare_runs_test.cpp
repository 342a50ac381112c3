// SPDX-License-Identifier: Apache-2.0
// Every verdict of compare_runs, on handmade records.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/harness/run_tool.h"

namespace {

using Json = nlohmann::json;
using Values = std::vector<double>;

Json tensor(Json line, std::vector<int> shape, const Values& values) {
  double squares = 0, sum = 0;
  line["values"] = Json::array();
  for (double v : values) {
    squares += v * v;
    sum += v;
    line["values"].push_back(std::isfinite(v) ? Json(v) : Json("nan"));
  }
  line["shape"] = shape;
  line["l2"] = std::isfinite(squares) ? Json(std::sqrt(squares)) : Json("nan");
  line["sum"] = std::isfinite(sum) ? Json(sum) : Json("nan");
  return line;
}

const Values kGradient = {1, -2, 3, 4, 5, 6};  // [2, 3]
const Values kOther = {9, 8, 7, -6, 5, 1};

// A run of two ranks and two steps: TODO 02.1 broadcasts a bias, 02.2 averages a gradient.
class Record {
 public:
  Record() {
    for (int rank = 0; rank < 2; ++rank) probe(rank, "02.1", "bias", 0, {3}, {0.5, 0.25, double(rank + 1)});
    for (int step = 0; step < 2; ++step) {
      for (int rank = 0; rank < 2; ++rank) probe(rank, "02.2", "grad", step, {2, 3}, step == 0 ? kGradient : kOther);
      for (int replica = 0; replica < 2; ++replica) {
        lines.push_back({{"type", "step"},
                         {"replica", replica},
                         {"step", step},
                         {"epoch", 0},
                         {"loss", 1.5 - replica},
                         {"global_loss", 1.0}});
      }
    }
    lines.push_back(tensor({{"type", "parameter"}, {"name", "weight"}}, {2, 3}, kGradient));
    for (int rank = 0; rank < 2; ++rank) {
      lines.push_back({{"type", "collective"},
                       {"rank", rank},
                       {"op", "ncclAllReduce"},
                       {"communicator", "world"},
                       {"ranks", 2},
                       {"calls", 8},
                       {"elements", 48},
                       {"bytes", 192}});
      lines.push_back({{"type", "memory"},
                       {"rank", rank},
                       {"peak", {{"parameters", 100}, {"data", 5}}},
                       {"current", {{"parameters", 100}, {"data", 5}}}});
      lines.push_back({{"type", "host"}, {"rank", rank}, {"allocations", 0}, {"synchronizations", 2}, {"events", 8}});
    }
  }

  void probe(int rank, const char* id, const char* name, int step, std::vector<int> shape, const Values& values) {
    lines.push_back(tensor({{"type", "probe"},
                            {"rank", rank},
                            {"id", id},
                            {"name", name},
                            {"step", step},
                            {"sequence", sequence_[rank]++}},
                           shape, values));
  }

  // The n-th line of a type.
  Json& line(const char* type, int n = 0) {
    for (Json& line : lines) {
      if (line["type"] == type && n-- == 0) return line;
    }
    throw std::out_of_range(type);
  }
  void set_values(const char* type, int n, const Values& values) {
    Json& old = line(type, n);
    old = tensor(old, old["shape"], values);
  }
  void set_shape(const char* type, int n, std::vector<int> shape, const Values& values) {
    Json& old = line(type, n);
    old = tensor(old, std::move(shape), values);
  }
  void scale_gradient(double factor) {  // on every rank in step 0
    Values scaled = kGradient;
    for (double& v : scaled) v *= factor;
    set_values("probe", 2, scaled);
    set_values("probe", 3, scaled);
  }
  void stop_at(const char* todo) {
    std::erase_if(
        lines, [todo](const Json& line) { return line["type"] != "probe" || line["rank"] != 0 || line["id"] >= todo; });
    end = {{"type", "end"}, {"status", "todo"}, {"todo", todo}};
  }

  std::string text() const {
    Json run{{"type", "run"},    {"chapter", "02_ddp"}, {"program", "ddp"},
             {"backend", "cpu"}, {"world", world},      {"options", options}};
    if (!machine.empty()) run["simulated"] = machine;
    std::string text = run.dump() + "\n";
    for (const Json& line : lines) text += line.dump() + "\n";
    return text + end.dump() + "\n";
  }

  int world = 2;
  std::string machine;  // that is simulated
  Json options = Json::object();
  std::vector<Json> lines;
  Json end = {{"type", "end"}, {"status", "complete"}, {"steps", 2}, {"seconds_per_step", 1e-5}};

 private:
  int sequence_[2] = {0, 0};
};

class CompareRuns : public testing::Test {
 protected:
  ToolResult compare(const std::string& options = "") {
    return run_tool("compare_runs " + folder_.write("expected", expected.text()) + " " +
                    folder_.write("mine", mine.text()) + " " + options);
  }
  // Runs and expects the verdict to contain each of the texts.
  void verdict(int status, const std::vector<std::string>& texts, const std::string& options = "") {
    const ToolResult result = compare(options);
    EXPECT_EQ(result.status, status) << result.output;
    for (const std::string& text : texts) {
      EXPECT_NE(result.output.find(text), std::string::npos) << "'" << text << "' is not in:\n" << result.output;
    }
  }
  std::string todos() {
    return "--todos " + folder_.write("ddp.cu",
                                      "  // TODO 02.1: Broadcast.\n  // END TODO 02.1\n"
                                      "  // TODO 02.2: Average the gradient.\n  // END TODO 02.2\n");
  }

  TemporaryFolder folder_;
  Record expected, mine;
};

TEST_F(CompareRuns, EqualRuns) {
  verdict(0, {"all 2 TODOs right: tensors (6), losses (4), parameters (1), NCCL calls (16) agree"});
}

TEST_F(CompareRuns, ToleranceIsRelativeToTheTensor) {
  Values close = kGradient;
  close[0] += 3e-5;  // of an rms of about 3.9
  mine.set_values("probe", 2, close);
  verdict(0, {});
  verdict(1, {"TODO 02.2 is the first that differs"}, "--tolerance 1e-6");
}

TEST_F(CompareRuns, ToleranceIsRelativeToTheTensorOnAllRanks) {
  expected.set_values("probe", 3, {0, 0, 1e-3, 0, 0, 0});
  mine.set_values("probe", 3, {0, 0, 1e-3 + 2.4e-8, 0, 0, 0});
  verdict(0, {});
  mine.set_values("probe", 3, {0, 0, 1.1e-3, 0, 0, 0});
  verdict(1, {"TODO 02.2 is the first that differs"});
}

// A probe named "given to copy: …" records what copy() was called with.
TEST_F(CompareRuns, AWrongArgumentIsTheCallersMistake) {
  for (Record* run : {&expected, &mine}) {
    for (int rank = 0; rank < 2; ++rank) {
      run->probe(rank, "02.1", "given to copy: x", 1, {3}, {1, 2, 3});
      run->probe(rank, "02.2", "after the copy", 1, {3}, {4, 5, 6});
    }
  }
  const std::string copy = "void copy(int i) {\n  // TODO 02.1: Broadcast.\n  // END TODO 02.1\n}\n";
  const std::string average = "  // TODO 02.2: Average the gradient.\n  copy(1);\n  // END TODO 02.2\n";
  const std::string calls = "--todos " + folder_.write("calls.cu", copy + average);
  verdict(0, {"all 2 TODOs right"}, calls);

  mine.set_values("probe", 6, {7, 8, 9});
  verdict(1,
          {"TODO 02.2 (Average the gradient.) calls copy() with something other than expected.",
           "tensor 'given to copy: x' on rank 0, step 1, shape [3]", "Right so far: TODO 02.1"},
          calls);
  verdict(0, {}, todos());  // no TODO makes the call: what comes of it shows elsewhere
  std::erase_if(mine.lines, [](const Json& line) { return line.value("name", "") == "given to copy: x"; });
  verdict(1, {"TODO 02.2 (Average the gradient.) does not call copy() as often as expected."}, calls);
}

// The next call then stands in the place of the one that is missing.
TEST_F(CompareRuns, TellsAMissingCallFromAWrongArgument) {
  const auto given = [](Record& run, int x) { run.probe(0, "02.1", "given to copy: x", 0, {1}, {1.0 * x}); };
  const std::string copy = "void copy(int i) {\n  // TODO 02.1: Broadcast.\n  // END TODO 02.1\n}\n";
  const std::string average = "  // TODO 02.2: Average the gradient.\n  copy(1);\n  // END TODO 02.2\n";
  const std::string calls = "--todos " + folder_.write("calls.cu", copy + average);
  for (Record* run : {&expected, &mine}) run->lines.clear();
  for (int x : {1, 2, 3}) given(expected, x);
  for (int x : {1, 3}) given(mine, x);
  for (Record* run : {&expected, &mine}) run->probe(0, "02.2", "after the copy", 0, {1}, {4});
  verdict(1,
          {"TODO 02.2 (Average the gradient.) does not call copy() as often as expected.",
           "tensor 'given to copy: x' on rank 0, step 0: 2 calls, expected 3", "The first that differs is call 2"},
          calls);
  for (int x : {3, 3}) given(mine, x);
  verdict(1,
          {"TODO 02.2 (Average the gradient.) calls copy() more often than expected.",
           "tensor 'given to copy: x' on rank 0, step 0: 4 calls, expected 3"},
          calls);
}

// What a function was given may show what an earlier TODO did, as any other tensor may.
TEST_F(CompareRuns, AWrongArgumentMayHaveAnEarlierCause) {
  for (Record* run : {&expected, &mine}) {
    run->lines.clear();
    run->probe(0, "02.1", "flag (one way)", 0, {1}, {run == &mine ? 1.0 : 0.0});
    run->probe(0, "02.1", "bias", 0, {3}, {0.5, 0.25, run == &mine ? 2 + 8e-6 : 2.0});
    run->probe(0, "02.2", "given to copy: x", 0, {3}, {1, 2, run == &mine ? 3 + 5e-5 : 3.0});
    run->probe(0, "02.3", "after the copy", 0, {1}, {4});
  }
  const std::string code =
      "  // TODO 02.1: Set it.\n  // END TODO 02.1\n  // TODO 02.3: Copy.\n  copy(1);\n"
      "  // END TODO 02.3\nvoid copy(int i) {\n  // TODO 02.2: Send.\n  // END TODO 02.2\n}\n";
  const std::string calls = "--todos " + folder_.write("calls.cu", code);
  verdict(1, {"TODO 02.1 (Set it.) is done in a different way than in the solution", "'given to copy: x'"}, calls);
  for (Record* run : {&expected, &mine}) run->lines.erase(run->lines.begin());
  verdict(1, {"TODO 02.1 (Set it.) is the first that is off by more than rounding", "'given to copy: x'"}, calls);
}

TEST_F(CompareRuns, WhatIsLeftOutIsJudgedByWhatThereWas) {
  for (Record* run : {&expected, &mine}) {
    const Values left = run == &mine ? Values{1e-3, -1e-3 + 2e-6, 0, 0, 0, 0} : Values{1e-3, -1e-3, 0, 0, 0, 0};
    for (int rank = 0; rank < 2; ++rank) run->probe(rank, "02.2", "left out of the bucket", 0, {6}, left);
  }
  verdict(0, {});
  for (int n : {6, 7}) mine.set_values("probe", n, {1e-3, -1.1e-3, 0, 0, 0, 0});
  verdict(1, {"TODO 02.2 is the first that differs", "'left out of the bucket'"});
}

TEST_F(CompareRuns, AProgramWithoutStepsHasRanks) {
  for (Record* run : {&expected, &mine}) run->end["steps"] = 0;
  mine.set_values("probe", 3, {1, 2, 3, 4, 5, 7});
  verdict(1, {" on rank 1, shape ["});
}

TEST_F(CompareRuns, APlanHasNoRanksAndSteps) {
  for (Record* run : {&expected, &mine}) {
    run->world = 1;
    run->end["steps"] = 0;
    std::erase_if(run->lines, [](const Json& line) { return line["type"] != "probe" || line["rank"] != 0; });
    run->probe(0, "02.2", "bytes", 0, {3}, {1, 2, 3});
    run->probe(0, "02.2", "bytes", 0, {3}, run == &mine ? Values{1, 2, 3} : Values{4, 5, 7});
  }
  verdict(1, {"  tensor 'bytes', shape [3]\n", "These are the values of 'bytes', recording 1 of the run.\n"});
}

TEST_F(CompareRuns, NamesTodoTensorRankStepAndPlace) {
  Values wrong = kGradient;
  wrong[4] = 7;
  mine.set_values("probe", 3, wrong);
  verdict(1,
          {"TODO 02.2 (Average the gradient.) is the first that differs.\n  tensor 'grad' on rank 1, step 0, shape "
           "[2, 3]\n  largest difference at [1, 1]: yours 7, expected 5\n",
           "Right so far: TODO 02.1\n"},
          todos());
}

TEST_F(CompareRuns, TheFirstInTheOrderOfTheProgramCounts) {
  mine.set_values("probe", 4, {0, 0, 0, 0, 0, 1});  // 02.2 in step 1
  mine.set_values("probe", 1, {3, 1, 4});           // 02.1 in step 0
  verdict(1, {"TODO 02.1 is the first that differs"});
}

TEST_F(CompareRuns, ASmallErrorThatGrowsBeganEarlier) {
  mine.set_values("probe", 1, {0.5, 0.25, 2 + 8e-6});  // of an rms of 1.2
  Values off = kGradient;
  off[5] += 1e-4;  // of 6: four times the relative error of the bias
  mine.set_values("probe", 2, off);
  verdict(1, {"TODO 02.1 is the first that is off by more than rounding.\n  tensor 'bias' on rank 1, step 0\n",
              "The error grows from there until tensor 'grad' on rank 0, step 0, of TODO 02.2, is too far off",
              "such as an epsilon, wrong or in the wrong place?"});
  off[5] = kGradient[5] + 5e-4;  // more than an error grows within one TODO
  mine.set_values("probe", 2, off);
  verdict(1, {"TODO 02.2 is the first that differs"});
  mine.line("probe", 2)["shape"] = {3, 2};
  verdict(1, {"TODO 02.2 is the first that differs"});
  mine.set_shape("probe", 2, {2, 3}, off);
  mine.set_values("probe", 1, {0.5, 0.25, 2 + 8e-7});
  off[5] = kGradient[5] + 1e-4;
  mine.set_values("probe", 2, off);
  verdict(1, {"TODO 02.2 is the first that differs"});
}

TEST_F(CompareRuns, NotANumber) {
  mine.set_values("probe", 2, Values(6, NAN));
  verdict(1, {"TODO 02.2", "Every value is NaN or infinite: that comes from arithmetic"});
  mine.set_values("probe", 2, {1, -2, NAN, 4, NAN, 6});
  verdict(1, {"TODO 02.2", "yours not a number", "2 of 6 values are NaN or infinite, the first at [0, 2]"});
  mine.line("probe", 2)["values"][2] = "unwritten";
  verdict(1, {"2 of 6 values are NaN", "memory that was never written"});
}

TEST_F(CompareRuns, NotANumberNeverAgrees) {
  for (Record* run : {&expected, &mine}) run->set_values("probe", 2, Values(6, NAN));
  verdict(1, {"TODO 02.2", "solution's own values are not finite"});
}

TEST_F(CompareRuns, Zeros) {
  mine.set_values("probe", 2, Values(6, 0));
  verdict(1, {"Every value is zero"});
}

TEST_F(CompareRuns, ConstantFactors) {
  mine.scale_gradient(2);
  verdict(1, {"2 times what is expected: summed over the 2 ranks, not averaged"});
  mine.scale_gradient(0.5);
  verdict(1, {"1/2 of what is expected: divided by the number of ranks once too often"});
  mine.scale_gradient(-1);
  verdict(1, {"wrong sign"});
  mine.scale_gradient(1.0 / 32);
  verdict(1, {"32 times smaller than what is expected"});
  mine.scale_gradient(6);
  verdict(1, {"6 times what is expected"});
  expected.world = mine.world = 1;
  mine.scale_gradient(2);
  verdict(1, {"twice what is expected"});
  mine.scale_gradient(0.5);
  verdict(1, {"half of what is expected"});
}

TEST_F(CompareRuns, NearlyRight) {
  mine.scale_gradient(1.00003);
  verdict(1, {"TODO 02.2", "All values are nearly right, but off by more than rounding"});
}

TEST_F(CompareRuns, OneElementWasLeftOut) {
  Values first = kGradient, second = kGradient;
  first[5] += 3;
  second[5] -= 3;
  mine.set_values("probe", 2, first);
  mine.set_values("probe", 3, second);
  verdict(1, {"Element 5 still has each rank's own value; the others were combined."});
}

TEST_F(CompareRuns, NamesTheCallsThatDiffer) {
  const std::string source = "  // TODO 02.2: Average the gradient.\n  sum();\n  // END TODO 02.2\n";
  folder_.write("participant/02_ddp/ddp.cu", source);
  const std::string sources =
      "--todos " + folder_.write("solutions/02_ddp/ddp.cu", source) + " --sources " + (folder_ / "participant");
  expected.line("collective")["places"] = {{"02_ddp/ddp.cu:2", {8, 192}}};
  mine.line("collective")["places"] = {{"02_ddp/ddp.cu:2", {1, 96}}};
  mine.line("collective")["op"] = "ncclReduce";
  mine.set_values("probe", 2, kOther);
  verdict(1,
          {"  Its NCCL calls on rank 0: yours ncclReduce 1 time, 96 bytes in all; expected ncclAllReduce 8 times, 192 "
           "bytes "
           "in all\n"},
          sources);
  mine.line("collective") = expected.line("collective");
  EXPECT_EQ(compare(sources).output.find("Its NCCL calls"), std::string::npos);
}

TEST_F(CompareRuns, TheTypeOfACallCountsEvenIfTheBitsAreTheSame) {
  const std::string source = "  // TODO 02.1: Broadcast.\n  send();\n  // END TODO 02.1\n";
  folder_.write("participant/02_ddp/ddp.cu", source);
  const std::string sources =
      "--todos " + folder_.write("solutions/02_ddp/ddp.cu", source) + " --sources " + (folder_ / "participant");
  for (Record* run : {&expected, &mine}) run->line("collective")["types"] = {{"02_ddp/ddp.cu:2", "ncclFloat32"}};
  verdict(0, {"the TODO is right"}, sources);
  mine.line("collective")["types"] = {{"02_ddp/ddp.cu:2", "ncclInt32"}};
  verdict(1,
          {"TODO 02.1 (Broadcast.): The numbers are right, but their type is not:\n  at 02_ddp/ddp.cu:1\n"
           "  your ncclAllReduce at 02_ddp/ddp.cu:2 has ncclInt32, expected ncclFloat32."},
          sources);
  mine.line("collective")["types"] = {{"02_ddp/ddp.cu:2", "ncclInt8"}};  // who counts in bytes says so
  verdict(0, {"the TODO is right"}, sources);
}

TEST_F(CompareRuns, EachRankKeepsItsOwn) {
  Values rest = kGradient;
  for (std::size_t i = 0; i < rest.size(); ++i) rest[i] = 2 * kGradient[i] - kOther[i];
  mine.set_values("probe", 2, kOther);
  mine.set_values("probe", 3, rest);
  verdict(1, {"The mean over your ranks would be right", "were not combined"});
  for (double& v : rest) v -= kGradient[&v - rest.data()];
  mine.set_values("probe", 3, rest);
  verdict(1, {"The sum over your ranks would be right"});
}

TEST_F(CompareRuns, ValuesOfAnotherRank) {
  mine.set_values("probe", 1, {0.5, 0.25, 1});
  verdict(1, {"TODO 02.1", "on rank 1", "values that rank 0 should have"});
}

TEST_F(CompareRuns, ValuesOfTheStepBefore) {
  mine.set_values("probe", 4, kGradient);
  mine.set_values("probe", 5, kGradient);
  verdict(1, {"step 1", "right values of the step before"});
}

TEST_F(CompareRuns, Transpose) {
  mine.set_values("probe", 2, {1, 4, -2, 5, 3, 6});
  verdict(1, {"the transpose of what is expected"});
  expected.set_shape("probe", 2, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  mine.set_shape("probe", 2, {2, 2, 2}, {1, 3, 2, 4, 5, 7, 6, 8});
  verdict(1, {"the transpose of what is expected"});
}

TEST_F(CompareRuns, OnlyThePartThatTheCountCovers) {
  mine.set_values("probe", 2, {1, -2, 7, 7, 7, 7});
  verdict(1, {"The first 2 of 6 values are right"});
}

// 200/203, 201/204 and 202/205 are nearly equal.
TEST_F(CompareRuns, TheSameDifferenceEverywhere) {
  for (Record* run : {&expected, &mine}) run->set_values("probe", 2, {203, 204, 205});
  mine.set_values("probe", 2, {200, 201, 202});
  verdict(1, {"Every value is too small by 3:"});
}

TEST_F(CompareRuns, AnotherOrder) {
  mine.set_values("probe", 2, {4, 5, 6, 1, -2, 3});
  verdict(1, {"right values in a different order"});
}

TEST_F(CompareRuns, AnOffset) {
  for (Record* run : {&expected, &mine}) run->set_shape("probe", 2, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  mine.set_values("probe", 2, {9, 9, 1, 2, 3, 4, 5, 6});
  verdict(1, {"right but 1 row too far back: an offset is wrong"});
  mine.set_values("probe", 2, {2, 3, 4, 5, 6, 7, 8, 9});
  verdict(1, {"right but 1 element too far ahead"});
}

// bfloat16 has eight bits: the same arithmetic in a different order may give the next number.
TEST_F(CompareRuns, ARoundingOfBfloat16) {
  const Values rounded = {1, -2, 3, 4.03125, 5, 6}, wrong = {1, -2, 3, 4.125, 5, 6};
  mine.set_values("probe", 2, rounded);
  verdict(1, {"TODO 02.2 is the first that differs"});
  for (Record* run : {&expected, &mine}) run->options["precision"] = "bf16";
  verdict(0, {"right: TODO 02.1, 02.2\nNote: with --precision bf16, tensor 'grad' on rank 0, step 0 (TODO 02.2) is one "
              "rounding away from the solution's"});
  mine.set_values("probe", 2, wrong);
  verdict(1, {"TODO 02.2 is the first that differs"});
}

TEST_F(CompareRuns, PartsOfATensor) {
  for (Record* run : {&expected, &mine}) run->set_shape("probe", 2, {2, 3}, kGradient);
  mine.set_values("probe", 2, {1, -2, 8, 4, 5, 9});
  verdict(1, {"Only column 2 (of 0 to 2) is wrong."});
  for (Record* run : {&expected, &mine}) run->line("probe", 2)["name"] = "queries, keys and values";
  verdict(1, {"Only column 2 (of 0 to 2) is wrong, of the values.\n"});
  // The wrong part is diagnosed on its own.
  mine.set_values("probe", 2, {1, -2, 0, 4, 5, 0});
  verdict(1, {"Only column 2 (of 0 to 2) is wrong, of the values. There: every value is zero: "});
  mine.set_values("probe", 2, {1, -2, 1.5, 4, 5, 3});
  verdict(1, {"Only column 2 (of 0 to 2) is wrong, of the values. There: every value is 1/2 of what is expected: "});
}

TEST_F(CompareRuns, ABiasTooMuch) {
  for (Record* run : {&expected, &mine}) run->set_shape("probe", 2, {3, 2}, kGradient);
  mine.set_values("probe", 2, {1.5, 1, 3.5, 7, 5.5, 9});
  verdict(1, {"Every row is off by the same values"});
}

TEST_F(CompareRuns, AddedToWhatWasThere) {
  Values both = kOther;
  for (std::size_t i = 0; i < both.size(); ++i) both[i] += kGradient[i];
  mine.set_values("probe", 4, both);
  verdict(1, {"step 1", "added to what was there before"});
}

TEST_F(CompareRuns, ValuesOfAnotherTensor) {
  for (Record* run : {&expected, &mine}) run->probe(0, "02.2", "other", 1, {2, 3}, {3, 1, 4, 1, 5, 9});
  mine.set_values("probe", 2, {3, 1, 4, 1, 5, 9});
  verdict(1, {"These are the values of 'other' on rank 0, step 1."});
}

TEST_F(CompareRuns, FactorsOfTheRunsOptions) {
  for (Record* run : {&expected, &mine}) run->options = {{"micro-batches", 8}, {"width", 40}, {"heads", 4}};
  mine.scale_gradient(0.125);
  verdict(1, {"8 times smaller than what is expected. 8 is --micro-batches here."});
  mine.scale_gradient(4);
  for (Record* run : {&expected, &mine}) run->options["context"] = 16;
  verdict(1, {"4 times what is expected. 4 is --heads, √16 is the root of --context here."});
  mine.scale_gradient(std::sqrt(10));
  verdict(1, {"3.16228 times what is expected. √10 is the root of the features of a head here."});
}

TEST_F(CompareRuns, NumbersOfTheHost) {
  const auto both = [this](const char* name, const Values& values) {
    expected = mine = Record();
    for (Record* run : {&expected, &mine}) {
      run->set_shape("probe", 2, {int(values.size())}, values);
      run->line("probe", 2)["name"] = name;
      run->line("probe", 2)["integers"] = true;
    }
  };
  both("unit, backward and gather of each pass", {0, 0, 1, 1, 0, 0});
  mine.set_values("probe", 2, {0, 0, 1, 1, 0, 1});
  verdict(1, {"first difference at [5], gather of pass 1: yours 1, expected 0\n"});
  mine.set_shape("probe", 2, {3}, {0, 0, 1});
  mine.line("probe", 2)["integers"] = true;
  verdict(1, {"the whole list: yours [0, 0, 1], expected [0, 0, 1, 1, 0, 0]\n", "Your list has 1 pass too few."});
  both("first layer of each rank, and the number of layers", {0, 3, 5});
  mine.set_values("probe", 2, {0, 2, 5});
  verdict(1,
          {"[1], first layer of rank 1: yours 2, expected 3\n  the whole list: yours [0, 2, 5], expected [0, 3, 5]\n"});
  mine.set_values("probe", 2, {0, 3, 4});
  verdict(1, {"[2], the number of layers: yours 4, expected 5\n"});
  both("part of the unit: offset, count", {4, 8});
  mine.set_values("probe", 2, {5, 9});
  verdict(1, {"first difference at [0], offset: yours 5, expected 4",
              "Every entry is 1 too large: does a count begin at 1, or is one too many?"});
  mine.set_values("probe", 2, {8, 16});
  verdict(1, {"Every entry is 2 times too large, the number of ranks"});
  mine.set_values("probe", 2, {16, 32});
  verdict(1, {"Every entry is 4 times too large: bytes where elements are counted"});
  both("gather", {0, 1, 1});
  mine.set_values("probe", 2, {1, 0, 0});
  verdict(1, {"Every entry is the opposite"});
  // A single wrong flag does not show that all would be inverted.
  both("accumulate", {0});
  mine.set_values("probe", 2, {1});
  verdict(1, {"yours 1, expected 0"});
  EXPECT_EQ(compare("").output.find("the opposite"), std::string::npos);
  both("gather", {0, 1, 1});
  mine.set_shape("probe", 2, {2}, {0, 1});
  mine.line("probe", 2)["integers"] = true;
  verdict(1, {"shape: yours [2], expected [3]", "Your list has 1 number too few. It lacks 1."});
  both("samples", {1, 3, 5, 7});
  mine.set_shape("probe", 2, {5}, {0, 2, 4, 6, 8});
  mine.line("probe", 2)["integers"] = true;
  verdict(1, {"Your list has 1 number too many. It lacks 1, 3, 5, …. It has 0, 2, 4, …, which are not expected."});
  both("1 if it is called", {0});
  mine.set_values("probe", 2, {1});
  EXPECT_EQ(compare("").output.find("too large"), std::string::npos);
  both("gather", {0, 1, 1});
  mine.set_shape("probe", 2, {0}, {});
  mine.line("probe", 2)["integers"] = true;
  verdict(1, {"shape: yours nothing, expected [3]\n  the whole list: yours nothing, expected [0, 1, 1]\n",
              "Your list has 3 numbers too few."});
  both("next token", {107});
  mine.set_values("probe", 2, {109});
  verdict(1, {"yours 109, expected 107"});
  EXPECT_EQ(compare("").output.find("times"), std::string::npos);
}

// Values that may be computed in several ways are judged by their result.
TEST_F(CompareRuns, AnotherWay) {
  expected.lines.clear();
  mine.lines.clear();
  const auto both = [&](const char* id, const char* name, std::vector<int> shape, const Values& values) {
    for (Record* run : {&expected, &mine}) run->probe(0, id, name, 0, shape, values);
  };
  both("02.1", "adds (one way)", {1}, {0});
  both("01.3", "grad", {2, 3}, kGradient);
  for (Record* run : {&expected, &mine}) run->line("probe")["integers"] = true;
  const std::string own = folder_.write("own.h", "// TODO 02.1: Clear or add.\n");
  verdict(0, {"the TODO is right"}, "--todos " + own);
  mine.set_values("probe", 0, {1});
  verdict(0, {"the TODO is right", "Note: TODO 02.1 does it in a different way than the solution"}, "--todos " + own);
  mine.set_values("probe", 1, kOther);
  verdict(1,
          {"TODO 02.1 (Clear or add.) is done in a different way than in the solution, with a different result.\n",
           "tensor 'adds (one way)' on rank 0, step 0, shape [1]", "yours 1, expected 0",
           "The result: tensor 'grad' on rank 0, step 0, of TODO 01.3:", "5 of 6 values differ."},
          "--todos " + own);
}

TEST_F(CompareRuns, NoKnownMistake) {
  mine.set_values("probe", 2, {1, -2, 3.3, -4, 5, 6.1});
  verdict(1, {"TODO 02.2 is the first that differs", "3 of 6 values differ."});
}

TEST_F(CompareRuns, AnotherShape) {
  mine.line("probe", 2)["shape"] = {3, 2};
  verdict(1, {"shape: yours [3, 2], expected [2, 3]"});
}

TEST_F(CompareRuns, ValuesBeyondThoseWrittenOut) {
  for (Record* run : {&expected, &mine}) run->line("probe", 2)["shape"] = {2000, 3};
  mine.line("probe", 2)["l2"] = 100;
  verdict(1, {"the first 6 values agree, later ones do not"});
  EXPECT_EQ(compare("").output.find("6 of 6"), std::string::npos);
  EXPECT_EQ(compare("").output.find("0 of 6"), std::string::npos);
  EXPECT_EQ(compare("").output.find("another order"), std::string::npos);
}

TEST_F(CompareRuns, MissingAndExtraTensors) {
  mine.lines.erase(mine.lines.begin() + 3);  // 02.2 on rank 1 in step 0
  verdict(1, {"TODO 02.2 was not reached as often as expected", "tensor 'grad' on rank 1, step 0: never recorded"});
  mine = Record();
  mine.probe(1, "02.2", "grad", 1, {2, 3}, kOther);
  verdict(1, {"TODO 02.2 is reached more often than expected", "on rank 1, step 1: recorded 2 times"});
}

TEST_F(CompareRuns, Losses) {
  mine.line("step", 3)["loss"] = 0.75;
  verdict(1, {"The loss of step 1 on replica 1 differs: yours 0.75, expected 0.5."});
  mine = Record();
  mine.line("step", 0)["global_loss"] = "nan";
  verdict(1, {"The global loss of step 0 on replica 0 differs: yours not a number, expected 1."});
  mine = Record();
  mine.lines.erase(std::find(mine.lines.begin(), mine.lines.end(), mine.line("step", 3)));
  verdict(1, {"Your run recorded 3 losses, expected 4"});
}

TEST_F(CompareRuns, LossesAccuseTheTodoWithoutTensors) {
  mine.line("step", 0)["global_loss"] = 2;
  verdict(1, {"The global loss of step 0", "none belongs to TODO 02.3: look there first"},
          todos() + " --todos " + folder_.write("other.cu", "// TODO 02.3: Average the loss.\n"));
  // Prefers the TODO with NCCL calls in the solution's run.
  expected.line("collective", 0)["places"] = {{"02_ddp/other.cu:2", {8, 192}}};
  verdict(1, {"TODO 02.4 (Mean.) is the one to look at.", "none belongs to TODO 02.4: look there first"},
          todos() + " --todos " +
              folder_.write("02_ddp/other.cu", "// TODO 02.4: Mean.\n\n// END TODO 02.4\n// TODO 02.5: Never.\n"));
}

TEST_F(CompareRuns, TodoOfAnEarlierChapter) {
  const std::string own = "--todos " + folder_.write("ddp.cu", "// TODO 02.2: Average the gradient.\n");
  verdict(0, {"the TODO is right"}, own);
  mine.set_values("probe", 1, {3, 1, 4});
  verdict(1,
          {"TODO 02.2 (Average the gradient.) is the one to look at", "result of TODO 02.1, here the solution's code"},
          own);
}

TEST_F(CompareRuns, TheTodoBeforeThatRecordedTheRightResultIsNotToBlame) {
  const std::string own = "--todos " + folder_.write("ddp.cu", "// TODO 02.2: Gather.\n\n// TODO 02.3: Compute.\n");
  for (Record* run : {&expected, &mine}) {
    run->probe(1, "01.1", "output", 1, {1}, {run == &expected ? 1.0 : 2.0});
    run->probe(1, "02.2", "grad", 1, {2, 3}, kOther);  // once more, before the one that has called it
    run->probe(1, "02.3", "output", 1, {1}, {3});
  }
  verdict(1, {"TODO 02.3 (Compute.) is the one to look at", "result of TODO 01.1, here the solution's code"}, own);
}

// A WRITE region around TODOs: at the blank level, the TODOs inside are not the participant's.
class Levels : public CompareRuns {
 protected:
  static constexpr const char* kSolution =
      "void average(int n) {\n"
      "  // WRITE 02.A: Average all.\n  //   In place.\n"
      "  for (;;) {\n    // TODO 02.1: Send.\n    send();\n    // END TODO 02.1\n    probe(\"02.1\");\n"
      "    // TODO 02.2: Add.\n    add();\n    // END TODO 02.2\n  }\n"
      "  // END WRITE 02.A\n  probe(\"02.2\");\n}\n"
      "int main() {\n"
      "  // WRITE 02.B: Train.\n  average(1);\n  // END WRITE 02.B\n"
      "  // TODO 02.3: Stop.\n  stop();\n  // END TODO 02.3\n  probe(\"02.3\");\n}\n";
  static constexpr const char* kGuided =
      "void average(int n) {\n"
      "  for (;;) {\n    // TODO 02.1: Send.\n    send();\n    // END TODO 02.1\n    probe(\"02.1\");\n"
      "    // TODO 02.2: Add.\n    add();\n    // END TODO 02.2\n  }\n"
      "  probe(\"02.2\");\n}\n"
      "int main() {\n"
      "  average(1);\n"
      "  // TODO 02.3: Stop.\n  stop();\n  // END TODO 02.3\n  probe(\"02.3\");\n}\n";
  static constexpr const char* kBlank =
      "void average(int n) {\n"
      "  // WRITE 02.A: Average all.\n  //   In place.\n  mine();\n  // END WRITE 02.A\n  probe(\"02.2\");\n}\n"
      "int main() {\n"
      "  // WRITE 02.B: Train.\n  average(1);\n  // END WRITE 02.B\n"
      "  // TODO 02.3: Stop.\n  stop();\n  // END TODO 02.3\n  probe(\"02.3\");\n}\n";

  // Both runs: what 02.A is given and has computed, the first TODO inside it, and 02.3.
  Levels() {
    for (Record* run : {&expected, &mine}) {
      run->lines.clear();
      run->probe(0, "02.A", "given to average: n", 0, {1}, {1});
      run->probe(0, "02.1", "sent", 0, {1}, {2});
      run->probe(0, "02.2", "averaged", 0, {1}, {3});
      run->probe(0, "02.3", "end", 0, {1}, {4});
    }
  }
  std::string sources(const std::string& participants) {
    folder_.write("participant/02_ddp/ddp.cu", participants);
    return "--todos " + folder_.write("solutions/02_ddp/ddp.cu", kSolution) + " --sources " + (folder_ / "participant");
  }
};

TEST_F(Levels, GuidedIfTheTodosAreThere) {
  verdict(0, {"all 3 TODOs right: tensors (3)"}, sources(kGuided));
  mine.set_values("probe", 0, {5});  // recorded at the blank level only
  verdict(0, {"all 3 TODOs right"}, sources(kGuided));
  mine.set_values("probe", 1, {5});
  verdict(1, {"TODO 02.1 (Send.) is the first that differs.\n  at 02_ddp/ddp.cu:3"}, sources(kGuided));
}

TEST_F(Levels, BlankIfTheyAreNot) {
  std::erase_if(mine.lines, [](const Json& line) { return line["id"] == "02.1"; });
  verdict(0, {"all 3 regions right: tensors (3)"}, sources(kBlank));
  mine.set_values("probe", 1, {5});
  verdict(1, {"WRITE 02.A (Average all.) is the first that differs.\n  at 02_ddp/ddp.cu:2", "tensor 'averaged'"},
          sources(kBlank));
  verdict(1, {"WRITE 02.A (Average all.) is the first that differs."}, sources(kBlank) + " --level blank");
  verdict(1, {"TODO 02.1 (Send.) was not reached"}, sources(kBlank) + " --level guided");
}

TEST_F(Levels, CodeThatIsTheSolutionsIsNotToBlame) {
  const auto with = [&](const std::string& old, const std::string& by) {
    std::string code = kGuided;
    return sources(code.replace(code.find(old), old.size(), by));
  };
  mine.set_values("probe", 1, {5});
  verdict(1,
          {"TODO 02.3 (Stop.) is the one to look at: the code of TODO 02.1, where it shows, is the solution's.\n"
           "  at 02_ddp/ddp.cu:15\nTODO 02.1 (Send.) is the first that differs."},
          with("stop()", "go()"));
  verdict(1, {"TODO 02.1 (Send.) is the first that differs.\n"}, with("send()", "receive()"));
  verdict(1, {"TODO 02.1 (Send.) is the first that differs.\n"}, sources(kGuided));
  EXPECT_EQ(compare(with("stop()", "todo(\"02.3\")")).output.find("one to look at"), std::string::npos);
}

TEST_F(Levels, QuotesTheCodeThatIsNotTheSolutions) {
  std::string code = kGuided;
  mine.set_values("probe", 1, {5});
  verdict(1, {"\nLook again at '1': the rest of TODO 02.1 is as in the solution.\n"},
          sources(code.replace(code.find("send()"), 6, "send(1)")));
}

TEST_F(Levels, TheSummaryNamesTheRegions) {
  const std::string summary = folder_ / "summary";
  verdict(0, {}, sources(kBlank) + " --summary " + summary);
  EXPECT_EQ(folder_.read("summary"), "right 02.A\nright 02.B\nright 02.3\n");
  verdict(0, {}, sources(kGuided) + " --summary " + summary);
  EXPECT_EQ(folder_.read("summary"), "right 02.1\nright 02.2\nright 02.3\n");
  mine.set_values("probe", 2, {5});  // the loop, 02.B, records nothing
  verdict(1, {}, sources(kBlank) + " --summary " + summary);
  EXPECT_EQ(folder_.read("summary"), "wrong 02.A\nunchecked 02.B\nunchecked 02.3\nblame certain 02.A\n");
}

TEST_F(Levels, ARunThatEndsOnAnotherWayEndsInTheFunctionThatItEntered) {
  mine.lines.clear();
  for (const auto& [id, name] : {std::pair("02.A", "given to average: n"), {"01.5", "x"}, {"01.6", "y"}}) {
    mine.lines.push_back({{"type", "passed"}, {"rank", 0}, {"id", id}, {"name", name}, {"step", 0}, {"sequence", 0}});
  }
  mine.end = {{"type", "run"}, {"chapter", "02_ddp"}, {"program", "ddp"}, {"world", 2}};
  verdict(
      1, {"WRITE 02.A (Average all.) is where your program ended with status 1"},
      sources(kBlank) + " --journals --status 1 --output " + folder_.write("out", "rank 0: f() failed at x.cu:3\n"));
}

TEST_F(Levels, WhatAProgramSaysNamesTheRegionsOfTheLevel) {
  mine.lines.clear();
  mine.end = {{"type", "run"}, {"chapter", "02_ddp"}, {"program", "ddp"}, {"world", 2}};
  for (const std::string around : {"", ", part of WRITE 02.A"}) {
    const std::string failed = " --journals --status 1 --output " +
                               folder_.write("out", "rank 0: nothing is sent: see TODO 02.1" + around + "\n");
    verdict(1, {"WRITE 02.A (Average all.) is where", "    rank 0: nothing is sent: see WRITE 02.A\n"},
            sources(kBlank) + failed);
    verdict(1, {"TODO 02.1 (Send.) is where", "    rank 0: nothing is sent: see TODO 02.1\n"},
            sources(kGuided) + failed);
  }
}

TEST_F(Levels, WhatTheSolutionNeverCallsIsTheLoopsMistake) {
  for (Record* run : {&expected, &mine}) {
    std::erase_if(run->lines, [](const Json& line) { return line["id"] != "02.3"; });
  }
  mine.probe(0, "02.2", "averaged", 0, {1}, {3});
  std::string solution = kSolution;
  solution.replace(solution.find("  average(1);\n"), 14, "");
  std::string options = "--sources " + (folder_ / "participant");
  for (const auto& [folder, text] :
       {std::pair<std::string, std::string>("participant", kBlank), {"solutions", solution}}) {
    const std::size_t main = text.find("int main");
    const std::string header = folder_.write(folder + "/02_ddp/ddp.h", text.substr(0, main));
    const std::string program = folder_.write(folder + "/02_ddp/ddp.cu", text.substr(main));
    if (folder == "solutions") options += " --todos " + header + " --todos " + program;
  }
  verdict(1, {"WRITE 02.B (Train.) calls average() more often than expected."}, options);
}

TEST_F(Levels, AWholeLoopIsToBlameForWhatItCalls) {
  mine.set_values("probe", 0, {5});
  verdict(1, {"WRITE 02.B (Train.) calls average() with something other than expected.\n  at 02_ddp/ddp.cu:9"},
          sources(kBlank));
  std::erase_if(mine.lines, [](const Json& line) { return line["id"] != "02.3"; });
  verdict(1, {"WRITE 02.B (Train.) does not call average() as often as expected."}, sources(kBlank));
}

TEST_F(Levels, ALoopIsRightIfItsRunIsButNoRegionThatOtherRunsRecord) {
  const std::string more =
      "void serve() {\n  // WRITE 02.C: Serve.\n  average(2);\n  // END WRITE 02.C\n}\n"
      "void other() {\n  // WRITE 02.D: Compress.\n  other();\n  // END WRITE 02.D\n  probe(\"02.D\", x);\n}\n";
  folder_.write("participant/02_ddp/ddp.cu", kBlank + more);
  const std::string all = "--todos " + folder_.write("solutions/02_ddp/ddp.cu", kSolution + more) + " --sources " +
                          (folder_ / "participant");
  verdict(0, {"right: TODO 02.3, WRITE 02.A, 02.B, 02.C: ", "Not reached in this run: WRITE 02.D\n"}, all);
  mine.set_values("probe", 2, {5});
  verdict(1, {}, all + " --summary " + (folder_ / "summary"));
  EXPECT_TRUE(folder_.read("summary").starts_with(
      "wrong 02.A\nunchecked 02.B\nunchecked 02.C\nunreached 02.D\nunchecked 02.3\n"));
}

TEST_F(Levels, AMistakeInATodoIsOneOfItsRegion) {
  mine.set_values("probe", 2, {5});
  const std::string seen = compare(sources(kBlank) + " --sightings").output;
  const std::size_t at = seen.find("sighting: ");
  ASSERT_NE(at, std::string::npos) << seen;
  const std::string sighting = seen.substr(at + 10, seen.find('\n', at) - at - 10);
  const auto known = [&](const std::string& name) {
    return " --fingerprints " +
           folder_.write("known.txt", "says " + name + " You add twice.\nrun ddp 2\n" + name + " | " + sighting + "\n");
  };
  verdict(1, {"WRITE 02.A (Average all.)", "  You add twice."}, sources(kBlank) + known("02.2-twice"));
  verdict(1, {"WRITE 02.A (Average all.)", "  You add twice."}, sources(kBlank) + known("02.A-twice"));
  const ToolResult guided = compare(sources(kGuided) + known("02.A-twice"));
  EXPECT_EQ(guided.output.find("You add twice"), std::string::npos) << guided.output;
}

TEST_F(Levels, TheKnownMistakeDecidesBetweenTodosWhoseCodeIsNotTheSolutions) {
  std::string code = kGuided;
  code.replace(code.find("add()"), 5, "sum()").replace(code.find("stop()"), 6, "go()");
  mine.set_values("probe", 1, {5});  // TODO 02.1
  verdict(1, {"TODO 02.2 (Add.) is the one to look at"}, sources(code));
  const std::string seen = compare(sources(code) + " --sightings").output;
  const std::size_t at = seen.find("sighting: ") + 10;
  const std::string known =
      " --fingerprints " + folder_.write("known.txt", "says 02.3-late You stop late.\nrun ddp 2\n02.3-late | " +
                                                          seen.substr(at, seen.find('\n', at) - at) + "\n");
  verdict(1, {"TODO 02.3 (Stop.) is the one to look at", "TODO 02.3: You stop late."}, sources(code) + known);
}

// On a simulated machine, a step must not take longer than the solution's.
class StepTime : public CompareRuns {
 protected:
  static constexpr const char* kSource =
      "void f() {\n  // TODO 02.1: Send.\n  send();\n  // END TODO 02.1\n"
      "  // TODO 02.2: Wait.\n  wait();\n  // END TODO 02.2\n}\n";

  StepTime() {
    for (Record* run : {&expected, &mine}) {
      run->machine = "compute=2M";
      stall(*run, "compute", "cudaStreamWaitEvent(compute, done)", "02_ddp/ddp.cu:6", "communication", 0.002);
      stall(*run, "communication", "ncclAllReduce(x)", "02_ddp/ddp.cu:3", "", 0.004);
      stall(*run, "host", "cudaStreamSynchronize(s)", "device/device.h:108", "compute", 0.02);
    }
  }
  static void stall(Record& run, const std::string& on, const std::string& call, const std::string& place,
                    const std::string& behind, double seconds) {
    run.lines.push_back({{"type", "stall"},
                         {"rank", 0},
                         {"on", on},
                         {"call", call},
                         {"place", place},
                         {"behind", behind},
                         {"seconds", seconds},
                         {"times", 2}});
  }
  std::string sources() {
    folder_.write("participant/02_ddp/ddp.cu", kSource);
    return "--todos " + folder_.write("solutions/02_ddp/ddp.cu", kSource) + " --sources " + (folder_ / "participant");
  }
};

TEST_F(StepTime, NoLongerIsRight) {
  verdict(0, {"all 2 TODOs right"}, sources());
  mine.end["seconds_per_step"] = 1.01e-5;  // rounding, or a small kernel
  verdict(0, {"all 2 TODOs right"}, sources());
}

TEST_F(StepTime, TheWaitIsNamed) {
  mine.end["seconds_per_step"] = 2e-5;
  mine.line("stall", 0)["seconds"] = 0.006;
  verdict(
      1,
      {"TODO 02.2 (Wait.): the right numbers, but a step takes longer than it needs to.\n  at 02_ddp/ddp.cu:5\n"
       "  On the simulated machine compute=2M: yours 0.02 ms, the solution's 0.01 ms\n"
       "  Stream 'compute' waits for stream 'communication' in cudaStreamWaitEvent(compute, done) at 02_ddp/ddp.cu:6: "
       "3 ms per step, including evaluations, expected 1 ms\n"},
      sources());
}

TEST_F(StepTime, WhatHoldsUpTheOtherStreamIsToBlame) {
  mine.end["seconds_per_step"] = 2e-5;
  mine.line("stall", 0)["seconds"] = 0.006;
  mine.line("stall", 1)["seconds"] = 0.008;
  verdict(1,
          {"TODO 02.1 (Send.): the right numbers",
           "  Stream 'communication' is busy with ncclAllReduce(x) at 02_ddp/ddp.cu:3",
           "  Stream 'compute' waits for stream 'communication'"},
          sources());
}

TEST_F(StepTime, ALateHostIsToBlameWhereItWaits) {
  mine.end["seconds_per_step"] = 2e-5;
  stall(mine, "compute", "", "", "", 0.004);
  stall(mine, "host", "cudaStreamSynchronize(communication)", "02_ddp/ddp.cu:3", "communication", 0.006);
  verdict(1,
          {"TODO 02.1 (Send.)", "  The host waits for stream 'communication' in cudaStreamSynchronize(communication)",
           "  Stream 'compute' is idle because the host enqueues its work late: 2 ms per step, including evaluations, "
           "expected 0 ms"},
          sources());
}

TEST_F(StepTime, AHostThatWaitsIsWrongEvenIfTheStepIsNotLonger) {
  mine.line("host", 0)["synchronizations"] = 4;
  stall(mine, "host", "cudaStreamSynchronize(compute)", "02_ddp/ddp.cu:6", "compute", 0.006);
  verdict(1,
          {"TODO 02.2 (Wait.): the right numbers, but the host waits where it should run ahead.",
           "It waits 2 more times during the steps than the solution's."},
          sources());
}

TEST_F(StepTime, AHostThatWaitsForEachCallMayWaitNoLonger) {
  mine.line("host", 0)["synchronizations"] = 3;
  for (Record* run : {&expected, &mine}) {
    stall(*run, "host", "cudaStreamSynchronize(compute)", "02_ddp/ddp.cu:6", "compute", 0.006);
    run->lines.back()["times"] = run == &mine ? 2 : 1;
  }
  verdict(1,
          {"TODO 02.2 (Wait.): the right numbers, but the host waits where it should run ahead.",
           "It waits one more time during the steps than the solution's."},
          sources());
}

TEST_F(StepTime, AHostThatWaitsInSynchronizeIsWrongWhoeverCallsIt) {
  mine.line("host", 0)["synchronizations"] = 4;
  stall(mine, "host", "cudaStreamSynchronize(stream_)", "device/device.h:137", "communication", 0.006);
  verdict(
      1,
      {"Your program: the right numbers, but the host waits where it should run ahead.\n"
       "  The host waits for stream 'communication' in Stream::synchronize(): 3 ms per step, including evaluations, "
       "expected 0 ms\n"},
      sources());
}

TEST_F(StepTime, OfAnotherMachineIsNotCompared) {
  mine.end["seconds_per_step"] = 2e-5;
  mine.machine = "";
  verdict(0, {"all 2 TODOs right"}, sources());
}

TEST_F(StepTime, WithoutASimulatedMachineANeedlessWaitIsANote) {
  for (Record* run : {&expected, &mine}) {
    run->machine = "";
    stall(*run, "host", "cudaEventSynchronize(e)", "02_ddp/ddp.cu:6", "", 0);  // the solution's, too
  }
  verdict(0, {"all 2 TODOs right"}, sources());
  EXPECT_EQ(compare(sources()).output.find("lets the host wait"), std::string::npos);
  stall(mine, "host", "cudaStreamSynchronize(s)", "02_ddp/ddp.cu:3", "", 0);
  mine.line("host", 0)["synchronizations"] = 4;
  verdict(0,
          {"all 2 TODOs right",
           "Note: TODO 02.1 lets the host wait 2 times on rank 0, the solution never: cudaStreamSynchronize(s) at "
           "02_ddp/ddp.cu:3."},
          sources());
  EXPECT_EQ(compare(sources()).output.find("waits for its device"), std::string::npos);
}

TEST_F(CompareRuns, Parameters) {
  mine.set_values("parameter", 0, {1, -2, 3, 4, 5, 6.5});
  verdict(1, {"parameter 'weight' after the last step", "largest difference at [1, 2]: yours 6.5, expected 6"});
  mine.line("parameter", 0)["name"] = "other";
  verdict(1, {"The parameter 'weight' is not in your record"});
}

TEST_F(CompareRuns, TrafficMatters) {
  for (int rank = 0; rank < 2; ++rank) {
    mine.line("collective", rank)["calls"] = 32;
    mine.line("collective", rank)["bytes"] = 768;
  }
  verdict(1, {"The numbers are right",
              "your ncclAllReduce on communicator 'world' is called 32 times on rank 0, "
              "expected 8; with 768 bytes, expected 192"});
  mine.line("collective", 1)["op"] = "ncclReduce";
  verdict(1, {"your ncclReduce on communicator 'world' is called 32 times on rank 1, expected 0"});
}

TEST_F(CompareRuns, KnownTrafficNamesTheTodoThatCausesIt) {
  mine.line("collective", 0)["calls"] = 32;
  mine.line("collective", 0)["bytes"] = 768;
  const std::string known =
      " --fingerprints " + folder_.write("known.txt",
                                         "says 02.2-twice You average twice.\nrun ddp 2\n02.2-twice | traffic "
                                         "ncclAllReduce world rank 0: 32 of 8 calls, 768 of 192 bytes | 40 960\n");
  const ToolResult result = compare(todos() + known);
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(result.output.starts_with("TODO 02.2 (")) << result.output;
  EXPECT_NE(result.output.find("): The numbers are right, but the traffic is not:"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("\nYou average twice."), std::string::npos) << result.output;
}

TEST_F(CompareRuns, MemoryAndWaitsAreNotes) {
  mine.line("memory", 1)["peak"]["parameters"] = 200;
  mine.line("host", 0)["synchronizations"] = 66;
  verdict(0, {"all 2 TODOs right", "Note: your rank 1 holds up to 200 bytes of device memory, the solution's 100",
              "Note: your rank 0 waits for its device 66 times during the steps, the solution's 2 times"});
}

TEST_F(CompareRuns, EventsThatAreRecordedAgainAreANote) {
  mine.line("host", 1)["events"] = 12;
  verdict(0, {"Note: your rank 1 records events 12 times during the steps, the solution's 8 times."});
  mine.line("host", 1)["events"] = 4;
  EXPECT_EQ(compare().output.find("Note:"), std::string::npos);
  expected.line("host", 1)["events"] = 100;
  mine.line("host", 1)["events"] = 105;  // hardly more
  EXPECT_EQ(compare().output.find("Note:"), std::string::npos);
}

TEST_F(CompareRuns, UnfinishedButRightSoFar) {
  mine.stop_at("02.2");
  verdict(77, {"Right so far: TODO 02.1\nNext: TODO 02.2\n"}, todos());
  mine.stop_at("02.1");
  verdict(77, {"Next: TODO 02.1"});
}

TEST_F(CompareRuns, UnfinishedAndWrong) {
  mine.stop_at("02.2");
  mine.set_values("probe", 0, {0.5, 0.25, 3});
  verdict(1, {"TODO 02.1 is the first that differs"});
}

// Failed runs, which leave their ranks' journals and output.
class EndedRuns : public CompareRuns {
 protected:
  EndedRuns() {
    folder_.write("chapters/02_ddp/ddp.cu",
                  "#include <x>\n  // TODO 02.1: Broadcast.\n  mine();\n  // END TODO 02.1\n"
                  "  // TODO 02.2: Average the gradient.\n  mine();\n  // END TODO 02.2\n  rest();\n");
    sources_ = "--todos " +
               folder_.write("solutions/02_ddp/ddp.cu",
                             "  // TODO 02.1: Broadcast.\n  theirs();\n  // END TODO 02.1\n"
                             "  // TODO 02.2: Average the gradient.\n  theirs();\n  // END TODO 02.2\n") +
               " --sources " + (folder_ / "chapters");
    std::erase_if(mine.lines, [](const Json& line) { return line["type"] != "probe" || line["id"] != "02.1"; });
    for (int rank = 0; rank < 2; ++rank) {
      mine.lines.push_back(
          {{"type", "passed"}, {"rank", rank}, {"id", "02.1"}, {"name", "bias"}, {"step", 0}, {"sequence", 0}});
    }
    mine.end = {
        {"type", "run"}, {"chapter", "02_ddp"}, {"program", "ddp"}, {"world", 2}};  // of the next rank's journal
  }
  void ended(int status, const std::string& output, const std::vector<std::string>& texts) {
    verdict(1, texts,
            sources_ + " --journals --status " + std::to_string(status) + " --output " + folder_.write("out", output) +
                " --summary " + (folder_ / "summary"));
  }
  std::string sources_;
};

TEST_F(EndedRuns, AHangComesBeforeWhatItLeavesUnwritten) {
  mine.set_values("probe", 0, {NAN, NAN, NAN});
  for (Json& value : mine.line("probe", 0)["values"]) value = "unwritten";
  const std::string hang = "verdict: rank 1 never calls ncclAllReduce, which rank 0 waits in at 02_ddp/ddp.cu:6\n";
  ended(86, hang, {"TODO 02.2 (Average the gradient.) is where your program did not finish"});
  ended(1, "rank 0: it failed\n", {"TODO 02.1 (Broadcast.) is the first that differs"});
}

TEST_F(EndedRuns, ARankThatDoesNotExist) {
  const std::string line =
      "rank 1: ncclSend(x, 4, ncclFloat, rank + 1, comm, stream) failed at 02_ddp/ddp.cu:6: invalid "
      "argument (ncclSend: root or peer is 2; expected 0 to 1)\n";
  ended(1, line,
        {"There is no rank 2: the ranks of this communicator are 0 to 1. Should it be a neighbor on the other side or, "
         "in "
         "a ring, the rank at the other end? Is it a rank of another communicator? Or should rank 1 not make this "
         "call?\n"});
}

TEST_F(EndedRuns, ABufferWithoutMemory) {
  ended(1,
        "rank 0: ncclSend(x, 4, ncclFloat, 1, comm, stream) failed at 02_ddp/ddp.cu:6: invalid argument (ncclSend: "
        "sendbuff is NULL)\n",
        {"The buffer of this call has no memory on this rank: is it the wrong buffer, or should this rank not make the "
         "call?\n"});
}

TEST_F(EndedRuns, ACountThatIsThatOfAllRanks) {
  const auto beyond = [this](const std::string& call, const std::string& text) {
    ended(1,
          "bounds: " + call +
              " at 02_ddp/ddp.cu:6 has 8 floats, 4 floats beyond the end of its allocation of 4 floats (rank 1)\n",
          {text});
  };
  beyond("sendbuff of ncclAllGather",
         "The count must be that of one rank's part, in elements: is it the total here, or a number of bytes?\n");
  beyond("recvbuff of ncclReduceScatter",
         "The count must be that of one rank's part, in elements: is it the total here, or a number of bytes?\n");
  beyond("recvbuff of ncclAllGather", "An all-gather writes the parts of all ranks one after another");
  beyond("sendbuff of ncclReduceScatter", "A reduce-scatter reads the parts of all ranks one after another");
}

TEST_F(EndedRuns, AMessageToOneself) {
  ended(
      1,
      "rank 1: ncclGroupEnd() failed at 02_ddp/ddp.cu:6: invalid usage (a group sends to this rank itself what it does "
      "not receive, or the reverse)\n",
      {"Does every rank send, or receive, where only one should?"});
}

TEST_F(EndedRuns, BuffersThatOverlap) {
  ended(1, "order: 02_ddp/ddp.cu:6 (ncclAllGather) reads and writes the same memory in one call: x\n",
        {"TODO 02.2 (Average the gradient.) is where your program uses the same memory twice in one call."});
}

TEST_F(EndedRuns, ACrashIsInTheTodoAfterTheLastProbe) {
  ended(139, "launch: rank 1 was ended by signal SEGV\n",
        {"TODO 02.2 (Average the gradient.) is where your program crashed on 2 ranks: signal SEGV of rank 1",
         "\n  at 02_ddp/ddp.cu:5\n", "Last probe passed: 02.1 ('bias', step 0) on rank 1", "Right so far: TODO 02.1"});
  EXPECT_EQ(folder_.read("summary"), "right 02.1\nwrong 02.2\nblame likely 02.2\n");
}

TEST_F(EndedRuns, NothingWasRecorded) {
  mine.lines.clear();
  ended(1, "[host:12] a warning of Open MPI's\nrank 0: what failed\n",
        {"TODO 02.1 (Broadcast.) is where your program ended with status 1", "    rank 0: what failed\n"});
}

TEST_F(EndedRuns, AWrongNumberBeforeTheEndSaysMore) {
  mine.set_values("probe", 1, {7, 8, 9});
  ended(139, "launch: rank 1 was ended by signal SEGV\n",
        {"TODO 02.1 (Broadcast.) is the first that differs", "Your program crashed on 2 ranks"});
}

TEST_F(EndedRuns, ExitWithSuccess) {
  ended(0, "", {"TODO 02.2 (Average the gradient.) is where your program ended too early"});
}

TEST_F(EndedRuns, AHangIsWhereTheWatchdogSays) {
  ended(86,
        "rank 0 waits in ncclAllReduce of 4 float (collective 3 of 'world', 02_ddp/ddp.cu:3) for 9.0 s\n"
        "verdict: missing call: rank 1 has not made the call that rank 0 waits in, 02_ddp/ddp.cu:3; it is in no call\n",
        {"TODO 02.1 (Broadcast.) is where your program did not finish on 2 ranks.", "verdict: missing call"});
  ended(86, "verdict: missing rank: rank 1 does not answer\n", {"TODO 02.2 (Average the gradient.) is where"});
}

TEST_F(EndedRuns, AHostThatWaitsIsToBlameForAHang) {
  ended(
      86,
      "verdict: all receive first: ranks 0, 1 wait in ncclRecv, none sends\n"
      "rank 0 waits in ncclRecv of 4 float32 from rank 1 of 'world' (number 2, 02_ddp/ddp.cu:6) for 9.0 s; the program "
      "is in cudaEventSynchronize(done) (02_ddp/ddp.cu:3); last completed: none\n",
      {"TODO 02.1 (Broadcast.) is where your program did not finish", "Does each receive have its send?"});
}

TEST_F(EndedRuns, AKnownMistakeSaysWhichTodoIsToBlame) {
  const std::string order =
      "order: x.cu:3 (kernel on stream 'a', which writes) and 02_ddp/ddp.cu:6 (kernel on stream 'b', which reads) use "
      "the same memory, and nothing says that the first is done: record an event (rank 1)\n";
  ended(1, order, {"TODO 02.2 (Average the gradient.) is where your program does not wait"});
  const std::string seen =
      compare(sources_ + " --journals --status 1 --output " + (folder_ / "out") + " --sightings").output;
  const std::size_t at = seen.find("sighting: ");
  ASSERT_NE(at, std::string::npos) << seen;
  const std::string sighting = seen.substr(at + 10, seen.find('\n', at) - at - 10);
  sources_ += " --fingerprints " +
              folder_.write("known.txt", "says 02.1-x It is late.\nrun ddp 2\n02.1-x | " + sighting + "\n");
  ended(1, order, {"TODO 02.1 (Broadcast.) is where your program does not wait", "\nIt is late.\n"});
  EXPECT_EQ(folder_.read("summary"), "wrong 02.1\nunchecked 02.2\nblame certain 02.1 known\n");
}

// Where two messages meet says nothing about later TODOs if an earlier one has computed their places wrong.
TEST_F(EndedRuns, MemoryUsedTwiceAfterAWrongNumberNamesNoOtherTodo) {
  const std::string order =
      "order: x.cu:3 (ncclRecv on stream 'a', which writes) and x.cu:6 (ncclRecv on stream 'a', which writes) use the "
      "same memory in one group, whose calls run at the same time (rank 1)\n";
  ended(1, order, {"TODO 02.2 (Average the gradient.) is where your program uses the same memory twice"});
  const std::string options = sources_ + " --journals --status 1 --output " + (folder_ / "out");
  const std::string seen = compare(options + " --sightings").output;
  const std::size_t at = seen.find("sighting: ");
  ASSERT_NE(at, std::string::npos) << seen;
  const std::string sighting = seen.substr(at + 10, seen.find('\n', at) - at - 10);
  const std::string known =
      " --fingerprints " +
      folder_.write("known.txt", "says 02.2-x It overlaps.\nrun ddp 2\n02.2-x | " + sighting + "\n");
  EXPECT_NE(compare(options + known).output.find("It overlaps."), std::string::npos);
  mine.set_values("probe", 1, {7, 8, 9});
  ended(1, order, {"TODO 02.1 (Broadcast.) is the first that differs", "in one group. This may be a consequence."});
  EXPECT_EQ(compare(options + known).output.find("It overlaps."), std::string::npos);
}

TEST_F(EndedRuns, AFailedCallNamesTheTodoOfItsLine) {
  ended(1, "rank 1: ncclReduce(x) failed at /work/02_ddp/ddp.cu:3: invalid argument\n",
        {"TODO 02.1 (Broadcast.) is where"});
  ended(1, "rank 1: the layers are in no bucket: see TODO 02.1\n", {"TODO 02.1 (Broadcast.) is where"});
  ended(1, "bounds: recvbuff of ncclAllGather at 02_ddp/ddp.cu:3 has 48 floats, 16 too many (rank 1)\n",
        {"TODO 02.1 (Broadcast.) is where your program goes beyond its memory", "16 too many"});
}

TEST_F(EndedRuns, AProbeThatGoesTooFarReadsTheResultOfItsTodo) {
  folder_.write("chapters/02_ddp/ddp.cu",
                "void average(int n) {\n  // TODO 02.1: Broadcast.\n  mine();\n  // END TODO 02.1\n"
                "  // TODO 02.2: Average the gradient.\n  mine();\n  // END TODO 02.2\n"
                "  probe(\"02.2\", \"average\", x, {n}, stream);\n"
                "  probe(\"02.2\", \"given to average: x\", x, {n}, stream);\n}\n");
  mine.lines.clear();
  const std::string beyond = "bounds: src of cudaMemcpyAsync at 02_ddp/ddp.cu:";
  ended(1, beyond + "8 has 48 floats, 16 too many (rank 1)\n",
        {"TODO 02.2 (Average the gradient.) is where your program goes beyond its memory"});
  ended(1, beyond + "9 has 48 floats, 16 too many (rank 1)\n", {"TODO 02.1 (Broadcast.) is where"});
}

// If a TODO worked before, its caller has passed wrong arguments.
TEST_F(EndedRuns, AFailedCallInAFunctionOfAnotherTodoIsTheCallers) {
  const std::string copy = "void copy(int i) {\n  // TODO 02.1: Broadcast.\n  mine();\n  // END TODO 02.1\n}\n";
  const std::string average = "  // TODO 02.2: Average the gradient.\n  copy(1);\n  // END TODO 02.2\n}\n";
  const std::string failed = "rank 1: ncclReduce(x) failed at /work/02_ddp/ddp.cu:3: invalid argument\n";
  folder_.write("chapters/02_ddp/ddp.cu", copy + "void average(int i,\n             int j) {\n" + average);
  ended(1, failed, {"TODO 02.2 (Average the gradient.) is where", "at 02_ddp/ddp.cu:8"});
  mine.lines.clear();  // it did not work before
  ended(1, failed, {"TODO 02.1 (Broadcast.) is where"});
}

// The other rank was stopped before it recorded anything.
TEST_F(EndedRuns, TheRankThatGoesTooFarIsWhereToLook) {
  std::erase_if(mine.lines, [](const Json& line) { return line["rank"] == 0; });
  ended(1, "bounds: C of cublasSgemm at model/blas.h:30 has 48 floats, 16 too many (rank 1)\n",
        {"TODO 02.2 (Average the gradient.) is where your program goes beyond its memory"});
}

TEST_F(EndedRuns, TheOrderCheckerNamesATodo) {
  ended(1,
        "order: 02_ddp/ddp.cu:3 (kernel on stream 'a', which writes) and 02_ddp/ddp.cu:8 (kernel on stream 'b', which "
        "reads) use the same memory, and nothing says that the first is done: record an event (rank 1)\n",
        {"TODO 02.1 (Broadcast.) is where your program does not wait", "record an event"});
  ended(1,
        "order: 02_ddp/ddp.cu:3 (kernel on stream 'a', which writes) and 02_ddp/ddp.cu:8 (the probe of TODO 02.2 on "
        "stream 'b', which reads) use the same memory, and nothing says that the first is done: x (rank 1)\n",
        {"TODO 02.2 (Average the gradient.) is where your program does not wait"});
  // A wrong tensor that was recorded before cannot come from the race: the program stops before the unordered access.
  mine.set_values("probe", 1, {7, 8, 9});
  ended(1,
        "order: x.cu:3 (kernel on stream 'a', which writes) and x.cu:8 (kernel on stream 'b', which reads) (rank 1)\n",
        {"is the first that differs", "Your program does not wait for work that it needs. This may be a consequence."});
}

TEST_F(EndedRuns, DifferentOrdersOfLaunchesNameATodo) {
  ended(1,
        "order: ranks launch NCCL calls in different orders, and may wait for each other forever: rank 0 launches "
        "ncclSend at 02_ddp/ddp.cu:8 (message 1 of 'world', from its rank 0 to 1) before ncclAllReduce at x.cu:3 "
        "(collective 2 of 'data'); rank 1 launches ncclAllReduce at x.cu:3 (collective 2 of 'data') before ncclRecv at "
        "x.cu:9 (message 1 of 'world', from its rank 0 to 1); all ranks must launch the calls of all communicators in "
        "one order\n",
        {"TODO 02.2 (Average the gradient.) is where your program launches NCCL calls in different orders on different "
         "ranks.",
         "message 1 of 'world'"});
}

TEST_F(EndedRuns, TheTypeOfFloatsIsANote) {
  mine = Record();
  folder_.write("solutions/02_ddp/ddp.cu",
                "// TODO 02.1: x\nf(kReal);\n// END TODO 02.1\n// TODO 02.2: y\nf(ncclFloat);\n// END TODO 02.2\n");
  folder_.write("chapters/02_ddp/ddp.cu",
                "// TODO 02.1: x\nf(ncclFloat);\n// END TODO 02.1\n// TODO 02.2: y\nf(ncclFloat);\n// END TODO 02.2\n");
  verdict(0, {"Note: TODO 02.1 says ncclFloat"}, sources_);
  EXPECT_EQ(compare(sources_).output.find("TODO 02.2 says"), std::string::npos);
  folder_.write("chapters/02_ddp/ddp.cu",
                "// TODO 02.1: x\nf(kReal);\n// END TODO 02.1\n// TODO 02.2: y\nf(kReal);\n// END TODO 02.2\n");
  verdict(0, {"Note: TODO 02.2 says kReal, which is wrong with --precision bf16"}, sources_);
  EXPECT_EQ(compare(sources_).output.find("TODO 02.1 says"), std::string::npos);
}

TEST_F(EndedRuns, RanksWithDifferentRootsAreNamed) {
  mine = Record();
  mine.set_values("probe", 1, {0, 0, 0});
  for (const int rank : {0, 1}) {
    mine.line("collective", rank)["op"] = "ncclBroadcast";
    mine.line("collective", rank)["places"] = {{"02_ddp/ddp.cu:3", {8, 192}}};
    mine.line("collective", rank)["with"] = {{"02_ddp/ddp.cu:3", "root " + std::to_string(rank)}};
  }
  verdict(1,
          {"TODO 02.1 (Broadcast.) is the first that differs.",
           "  Your ranks name different roots in ncclBroadcast at 02_ddp/ddp.cu:3: rank 0 names 0, rank 1 names 1."},
          sources_);
}

TEST_F(EndedRuns, AReductionThatTheSolutionDoesNotUseIsNamed) {
  mine = Record();
  mine.set_values("probe", 2, {9, 7, 5, 4, 3, 1});
  for (Record* run : {&expected, &mine}) {
    run->line("collective")["places"] = {{"02_ddp/ddp.cu:6", {8, 192}}};
    run->line("collective")["with"] = {{"02_ddp/ddp.cu:6", run == &mine ? "ncclProd" : "ncclAvg"}};
  }
  verdict(1,
          {"TODO 02.2 (Average the gradient.) is the first that differs.",
           "  Your ncclAllReduce at 02_ddp/ddp.cu:6 combines the ranks' values with ncclProd."},
          sources_);
}

TEST_F(EndedRuns, MemoryOfTheHostIsANote) {
  mine = Record();
  for (Record* run : {&expected, &mine}) {
    run->line("collective")["places"] = {{"02_ddp/ddp.cu:6", {8, 192}}};
    run->line("collective")["with"] = {{"02_ddp/ddp.cu:6", run == &mine ? "ncclAvg, host memory" : "ncclAvg"}};
  }
  verdict(0, {"Note: TODO 02.2 hands memory of the host to ncclAllReduce at 02_ddp/ddp.cu:6"}, sources_);
  expected.line("collective")["with"] = mine.line("collective")["with"];
  EXPECT_EQ(compare(sources_).output.find("memory of the host"), std::string::npos);
}

TEST_F(EndedRuns, WhatNoShortRunShowsIsANote) {
  mine = Record();
  const auto source = [](const std::string& first, const std::string& second) {
    return "// TODO 02.1: x\n" + first + "// END TODO 02.1\n// TODO 02.2: y\n" + second + "// END TODO 02.2\n";
  };
  const std::string index = "v[static_cast<std::size_t>(k) * n + i];\n";
  const std::string loop = "for (int r = 0; r < ranks; ++r) {\n  launch(add, k, r);\n}\n";
  folder_.write("solutions/02_ddp/ddp.cu", source(index, loop));
  folder_.write("chapters/02_ddp/ddp.cu", source("v[k * n + i];\n", "launch(add, ranks * k);\n"));
  verdict(0, {"Note: TODO 02.1 multiplies ints.", "Note: TODO 02.2 does in one launch what"}, sources_);
  for (const std::string& other :
       std::vector<std::string>{index, "const std::int64_t m = k;\nv[m * n + i];\n", "v += n;\nv[i];  // k * n\n"}) {
    folder_.write("chapters/02_ddp/ddp.cu", source(other, "while (r < ranks) launch(add, k, r++);\n"));
    EXPECT_EQ(compare(sources_).output.find("Note: TODO 02"), std::string::npos) << compare(sources_).output;
  }
  folder_.write("solutions/02_ddp/ddp.cu", source("copy(x, n * sizeof(Real));\n", loop));
  folder_.write("chapters/02_ddp/ddp.cu", source("copy(x, n * sizeof(float));\n", loop));
  verdict(0, {"Note: TODO 02.1 counts with sizeof(float)"}, sources_);
}

TEST_F(EndedRuns, MoreGroupsAreANote) {
  mine = Record();
  const std::string messages = "ncclSend(a, n, type, r, comm, s);\nncclRecv(b, n, type, r, comm, s);\n";
  const std::string group = "ncclGroupStart();\n" + messages + "ncclGroupEnd();\n";
  const std::string loop = "for (int r = 0; r < ranks; ++r) {\n";
  const auto write = [&](const std::string& folder, const std::string& code) {
    folder_.write(folder + "/02_ddp/ddp.cu", "// TODO 02.1: x\n" + code + "// END TODO 02.1\n");
  };
  const std::string in_one = "ncclGroupStart();\n" + loop + messages + "}\nncclGroupEnd();\n";
  write("solutions", in_one);
  for (const std::string& more : {loop + group + "}\n", group + group}) {
    write("chapters", more);
    verdict(0, {"Note: TODO 02.1 opens more groups of NCCL calls than the solution."}, sources_);
  }
  for (const std::string& as_many : {in_one, group, loop + "}\n" + group}) {
    write("chapters", as_many);
    EXPECT_EQ(compare(sources_).output.find("Note: TODO 02"), std::string::npos) << compare(sources_).output;
  }
  write("solutions", loop + "probe(std::array{r});\n" + group + "}\n");
  write("chapters", loop + group + "}\n");
  EXPECT_EQ(compare(sources_).output.find("Note: TODO 02"), std::string::npos) << compare(sources_).output;
}

TEST_F(EndedRuns, OtherCallsWithTheSameNumbersAreANote) {
  mine = Record();
  for (Record* run : {&expected, &mine}) {
    run->line("collective", 0)["places"] = {{"02_ddp/ddp.cu:" + std::to_string(run == &mine ? 6 : 5), {8, 192}}};
  }
  for (const int rank : {0, 1}) {
    Json half = mine.line("collective", rank);
    half["op"] = "ncclBroadcast";
    mine.line("collective", rank)["op"] = "ncclReduce";
    mine.lines.push_back(half);
  }
  const std::string summary = " --summary " + (folder_ / "summary");
  verdict(
      0, {"all 2 TODOs right", "Note: TODO 02.2 (Average the gradient.): different calls, which give the same numbers"},
      sources_ + summary);
  EXPECT_EQ(folder_.read("summary"), "right 02.1\nright 02.2\n");
  // Here the TODO's text asks for one call.
  folder_.write("solutions/02_ddp/ddp.cu",
                "// TODO 02.1: x\n// END TODO 02.1\n\n// TODO 02.2: Average.\n//   One NCCL call.\n// END TODO 02.2\n");
  verdict(1, {"TODO 02.2 (Average.): The numbers are right", "asks for one NCCL call"}, sources_ + summary);
  EXPECT_EQ(folder_.read("summary"), "right 02.1\nwrong 02.2\nblame certain 02.2\n");
}

TEST_F(CompareRuns, NothingToCompare) {
  mine.world = 4;
  verdict(2, {"different programs or numbers of ranks"});
  mine = Record();
  mine.end = {{"type", "memory"}, {"rank", 0}, {"peak", Json::object()}, {"current", Json::object()}};
  verdict(2, {"mine: the record stops before its end"});
  mine.end = {{"type", "what"}};
  verdict(2, {":19: unknown type 'what'"});
  EXPECT_EQ(run_tool("compare_runs /no/such /file").status, 2);
  EXPECT_EQ(run_tool("compare_runs").status, 2);
  EXPECT_EQ(run_tool("compare_runs --tolerance x a b").status, 2);
  folder_.write("mine", R"({"type":"run","version":2,"chapter":"02_ddp","program":"ddp","world":2})");
  const auto newer = run_tool("compare_runs " + (folder_ / "expected") + " " + (folder_ / "mine"));
  EXPECT_EQ(newer.status, 2);
  EXPECT_NE(newer.output.find("this is a record of version 2; these tools read version 1"), std::string::npos);
  folder_.write("mine", "{\n");
  EXPECT_EQ(run_tool("compare_runs " + (folder_ / "expected") + " " + (folder_ / "mine")).status, 2);
  folder_.write("mine", "");
  EXPECT_EQ(run_tool("compare_runs " + (folder_ / "expected") + " " + (folder_ / "mine")).status, 2);
}

}  // namespace
