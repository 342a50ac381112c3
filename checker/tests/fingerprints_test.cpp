// SPDX-License-Identifier: Apache-2.0
// Which mistakes are recognized by their fingerprints, and which are not.
#include "checker/fingerprints.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/harness/run_tool.h"

namespace {

using namespace workshop::tools;
using Values = std::vector<double>;

const double kNan = std::numeric_limits<double>::quiet_NaN();
const Values kSum = {2, -4, 6, 8}, kAverage = {1, -2, 3, 4};

Values scaled(Values values, double factor) {
  for (double& v : values) v *= factor;
  return values;
}

TEST(Summary, IsAlikeWhereRoundingDiffers) {
  EXPECT_TRUE(alike(summary(kSum), summary(scaled(kSum, 1 + 1e-5))));
  EXPECT_TRUE(alike(summary({0, 0}), summary({0, 0})));
  EXPECT_TRUE(alike(summary({1, -1}), summary({1 + 1e-6, -1})));  // their sums are nothing but rounding
}

TEST(Summary, TellsOtherValuesApart) {
  EXPECT_FALSE(alike(summary(kSum), summary(kAverage)));
  EXPECT_FALSE(alike(summary(kSum), summary(scaled(kSum, -1))));
  EXPECT_FALSE(alike(summary(kSum), summary({8, 6, -4, 2})));  // same values, different order
  EXPECT_FALSE(alike(summary({0, 0}), summary({0, 1e-6})));
}

TEST(Summary, OfIntegersLeavesOffOnlyWhatIsNotWritten) {
  const Summary written{12346, 12346, 1, 0};
  EXPECT_TRUE(alike({12345.6, 12345.6, 1, 0}, written, true));
  EXPECT_FALSE(alike({12341, 12345.6, 1, 0}, written, true));
  EXPECT_TRUE(alike({12341, 12345.6, 1, 0}, written));
  // Where a gradient should be 0.03, 1e-8 is the rounding of a 0, and of another size on another processor.
  EXPECT_TRUE(alike(summary({1.5e-8, -1e-8}), summary({0, 2e-9}), false, 0.03));
  EXPECT_FALSE(alike(summary({1.5e-8, -1e-8}), summary({0, 2e-9})));
  EXPECT_FALSE(alike(summary({1.5e-8, 2}), summary({0, 2.001e-4}), false, 0.03));
}

TEST(Failure, MayNameARegion) {
  const auto failed = failure(1, "rank 0: all wait for an answer: see WRITE 03.A\n");
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->where, "status 1, all wait for an answer: see WRITE 03.A");
}

TEST(Summary, CountsWhatIsNotFinite) {
  EXPECT_TRUE(alike(summary({1, kNan}), summary({1, kNan})));
  EXPECT_FALSE(alike(summary({1, kNan}), summary({1})));
  EXPECT_FALSE(alike(summary({kNan, kNan}), summary({0, 0})));
}

class FingerprintsTest : public testing::Test {
 protected:
  static Sighting seen(const Values& mine) { return {"02.2 'grad' rank 0", {summary(mine), summary(kAverage)}}; }
  static RunRecord run(const std::string& program, int world) {
    RunRecord record;
    record.program = program;
    record.world = world;
    return record;
  }
  Fingerprints file(const std::string& text) { return Fingerprints(folder_.write("fingerprints", text)); }

  const std::string says_ =
      "# a comment\nsays 02.2-sum It was summed.\nsays 02.2-twice It was summed.\nsays 02.2-max The largest.\n";
  const std::string run_ = "run ddp 2 --max-steps 3\n";
  TemporaryFolder folder_;
};

TEST_F(FingerprintsTest, TellTheMistakeThatLooksTheSame) {
  const Fingerprints known = file(says_ + run_ + "02.2-sum | " + text(seen(kSum)) + "\n");
  const auto mistake = known.find(run("ddp", 2), seen(scaled(kSum, 1 + 1e-5)));
  ASSERT_TRUE(mistake);
  EXPECT_EQ(mistake->name, "02.2-sum");
  EXPECT_EQ(mistake->todo, "02.2");
  EXPECT_EQ(mistake->sentence, "It was summed.");
  EXPECT_TRUE(mistake->certain);
}

TEST_F(FingerprintsTest, TellNothingOfWhatLooksDifferent) {
  const Fingerprints known = file(says_ + run_ + "02.2-sum | " + text(seen(kSum)) + "\n");
  EXPECT_FALSE(known.find(run("ddp", 2), seen(scaled(kSum, 1.01))));
  EXPECT_FALSE(known.find(run("ddp", 3), seen(kSum)));
  EXPECT_FALSE(known.find(run("ddp_overlap", 2), seen(kSum)));
  Sighting elsewhere = seen(kSum);
  elsewhere.where = "02.2 'grad' rank 1";
  EXPECT_FALSE(known.find(run("ddp", 2), elsewhere));
  Sighting other_options = seen(kSum);
  other_options.numbers[1] = summary(kSum);  // the solution's tensor
  EXPECT_FALSE(known.find(run("ddp", 2), other_options));
}

TEST_F(FingerprintsTest, TellNothingWhereTwoSentencesFit) {
  const std::string sum = "02.2-sum | " + text(seen(kSum)) + "\n", twice = "02.2-twice | " + text(seen(kSum)) + "\n",
                    max = "02.2-max | " + text(seen(kSum)) + "\n";
  EXPECT_TRUE(file(says_ + run_ + sum + twice).find(run("ddp", 2), seen(kSum)));
  EXPECT_FALSE(file(says_ + run_ + sum + max).find(run("ddp", 2), seen(kSum)));
}

TEST_F(FingerprintsTest, TellTheMistakeOfTheTodoToBlame) {
  const std::string sighting = " | " + text(seen(kSum)) + "\n";
  const Fingerprints known = file("says 02.2-sum It was summed.\nsays 02.5-sum It was summed.\n" + run_ + "02.2-sum" +
                                  sighting + "02.5-sum" + sighting);
  for (const char* todo : {"02.2", "02.5"}) EXPECT_EQ(known.find(run("ddp", 2), seen(kSum), todo)->todo, todo);
}

TEST_F(FingerprintsTest, AreNotCertainOfWhatHasManyCauses) {
  for (const Values& values : {Values{0, 0, 0, 0}, Values{kNan, kNan, kNan, kNan}}) {
    const auto mistake =
        file(says_ + run_ + "02.2-sum | " + text(seen(values)) + "\n").find(run("ddp", 2), seen(values));
    ASSERT_TRUE(mistake);
    EXPECT_FALSE(mistake->certain);
  }
}

// A rank ended the run: how many recordings there are by then differs from run to run.
TEST_F(FingerprintsTest, KnowARunByOneRecordingIfItWasCutShort) {
  const auto record = [](const std::vector<std::pair<int, Values>>& probes) {
    RunRecord run;
    run.program = "ddp";
    run.world = 2;
    for (const auto& [rank, values] : probes) run.probes.push_back({"02.2", rank, 0, 0, {"grad", {4}, values}});
    return run;
  };
  const RunRecord expected = record({{0, kAverage}, {1, kAverage}, {0, kAverage}, {1, kAverage}});
  const auto alone = [&](const RunRecord& mine) { return sighting_alone(expected, mine, "02.2", "grad", 0, 0, 0); };
  const RunRecord collected = record({{0, kSum}, {1, kAverage}, {0, kSum}});
  const Fingerprints known = file(says_ + run_ + "02.2-sum | " + text(alone(collected)) + "\n");
  EXPECT_TRUE(known.find(expected, alone(record({{0, kSum}, {1, kAverage}}))));
  EXPECT_TRUE(known.find(expected, alone(record({{0, kSum}}))));
  EXPECT_FALSE(known.find(expected, alone(record({{0, kSum}, {1, kSum}}))));
  EXPECT_FALSE(known.find(expected, alone(record({{0, kAverage}, {1, kAverage}}))));
}

TEST_F(FingerprintsTest, KnowProgramsThatFail) {
  const auto failed = failure(1, "step 1\nerror: wrong bounds: see TODO 03.1\nrank 0 ended\n");
  ASSERT_TRUE(failed);
  const Fingerprints known = file(says_ + run_ + "02.2-max | " + text(*failed) + "\n");
  EXPECT_TRUE(known.find(run("ddp", 2), *failed));
  EXPECT_FALSE(known.find(run("ddp", 2), *failure(1, "error: other bounds\n")));
  EXPECT_FALSE(failure(139, "Segmentation fault\n"));
}

TEST_F(FingerprintsTest, KnowAMissingWaitOnAnyNumberOfRanks) {
  const Sighting late{
      "status 1, order: (a, which writes) and (b, which reads) use the same memory, and nothing says so", {}};
  const Sighting twice{"status 1, order: (a, which writes) and (b, which reads) use the same memory in one group", {}};
  const Fingerprints known = file(says_ + run_ + "02.2-sum | " + text(late) + "\n02.2-max | " + text(twice) + "\n");
  const auto mistake = known.find(run("ddp", 4), late);
  ASSERT_TRUE(mistake.has_value());
  EXPECT_EQ(mistake->name, "02.2-sum");
  EXPECT_FALSE(known.find(run("zero", 4), late).has_value());
  EXPECT_FALSE(known.find(run("ddp", 4), twice).has_value());
  EXPECT_TRUE(known.find(run("ddp", 2), twice).has_value());
}

TEST(Sightings, OfWhatDiffersBehindTheRecordedValuesHaveTheSumsOfAll) {
  const auto run = [](const Values& values, double l2) {
    RunRecord record;
    record.world = 1;
    record.probes.push_back({"02.2", 0, 0, 0, {"grad", {4000, 3}, values}});
    record.probes[0].tensor.l2 = l2;
    return record;
  };
  const auto numbers = [&](const RunRecord& mine) {
    return sighting(run(kAverage, 100), mine, "02.2", "grad", 0, 0, 0).numbers;
  };
  ASSERT_EQ(numbers(run(kAverage, 110)).size(), 3u);
  EXPECT_EQ(numbers(run(kAverage, 110))[2].l2, 110);
  EXPECT_EQ(numbers(run(kSum, 110)).size(), 2u);
}

TEST(Failure, LeavesOutPlacesInFiles) {
  const auto mine = failure(86, "verdict: rank 1 leaves out ncclReduce (number 4, 00_collectives/mine.cu:70)\n");
  const auto known = failure(86, "verdict: rank 1 leaves out ncclReduce (number 4, /build/fillings/mine.cu:81)\n");
  ASSERT_TRUE(mine && known);
  EXPECT_EQ(mine->where, known->where);
}

TEST(Failure, LeavesOutTheArgumentsOfACallThatIsRefused) {
  const auto seen = failure(1,
                            "rank 0: ncclSend(dx, n, ncclFloat, 1, comm, s) failed at a.cu:7: invalid argument "
                            "(ncclSend: sendbuff is NULL)\n");
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->where, "status 1, rank 0: ncclSend: sendbuff is NULL");
  EXPECT_FALSE(failure(1, "rank 0: ncclSend(dx, n, ncclFloat, 9, comm, s) failed at a.cu:7: invalid argument\n"));
}

TEST(Failure, KeepsTheStatusOfARefusedCallOfCublas) {
  const auto seen = failure(1,
                            "rank 1: cublasGemmEx(blas, n) failed at model/blas.cu:38: CUBLAS_STATUS_INVALID_VALUE, an "
                            "unsupported value\n");
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->where, "status 1, CUBLAS_STATUS_INVALID_VALUE");
}

TEST_F(FingerprintsTest, MustBeReadable) {
  EXPECT_THROW(Fingerprints("/no/such/file"), std::runtime_error);
  EXPECT_THROW(file(run_ + "02.2-sum | where | one two\n"), std::runtime_error);
}

}  // namespace
