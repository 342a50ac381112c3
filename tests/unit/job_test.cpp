// Rank discovery from the environments that launchers leave, and the choice of a device.
#include "common/job.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace workshop {
namespace {

using Variables = std::map<std::string, std::string>;

Ranks discover(const Variables& variables) {
  return discover_ranks([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  try {
    discover(variables);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

void expect(const Ranks& ranks, int rank, int world, int local_rank, int local_world, const std::string& launcher) {
  EXPECT_EQ(ranks.rank, rank);
  EXPECT_EQ(ranks.world, world);
  EXPECT_EQ(ranks.local_rank, local_rank);
  EXPECT_EQ(ranks.local_world, local_world);
  EXPECT_EQ(ranks.launcher, launcher);
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kTorchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "17"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "6"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "3"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(Ranks, ALoneProcessIsTheWholeJob) { expect(discover({}), 0, 1, 0, 1, "none"); }

TEST(Ranks, EachLauncher) {
  expect(discover(kOpenMpi), 2, 4, 0, 2, "mpirun");
  expect(discover(kTorchrun), 3, 8, 1, 2, "torchrun");
  expect(discover(kSlurm), 6, 7, 0, 1, "slurm");
}

TEST(Ranks, MpirunInsideAnAllocationWins) { expect(discover(with(kSlurm, kOpenMpi)), 2, 4, 0, 2, "mpirun"); }

TEST(Ranks, TorchrunStartedBySrunWins) { expect(discover(with(kSlurm, kTorchrun)), 3, 8, 1, 2, "torchrun"); }

TEST(Ranks, ABatchScriptIsNotARank) {
  expect(discover({{"SLURM_JOB_ID", "17"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), 0, 1, 0, 1, "none");
}

TEST(Ranks, LocalRankFromTheLauncherWhereItIsNotSet) {
  const Variables same = {{"RANK", "2"}, {"WORLD_SIZE", "4"}};
  expect(discover(with(kOpenMpi, same)), 2, 4, 0, 2, "torchrun");
}

TEST(Ranks, ContradictionsNameTheVariable) {
  EXPECT_EQ(refusal(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})),
            "RANK and WORLD_SIZE say rank 0 of 1, but mpirun started this process as rank 2 of 4; unset RANK and "
            "WORLD_SIZE");
  EXPECT_EQ(refusal(with(kOpenMpi, {{"WORLD_SIZE", "2"}})), "WORLD_SIZE is 2, but mpirun started 4 ranks");
  EXPECT_EQ(refusal({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is 2, but RANK is not set");
  EXPECT_EQ(refusal({{"RANK", "1"}}), "RANK is 1, but WORLD_SIZE is not set");
  EXPECT_EQ(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
            "LOCAL_RANK is not set, so the device of rank 1 of 2 is not "
            "known");
  EXPECT_EQ(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
            "rank 2 does not exist in a job of 2 ranks (torchrun)");
  EXPECT_EQ(refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), "RANK is 'one'; expected a whole number of at least 0");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE is '0'; expected a whole number of at least 1");
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_RANK", "2"}})), "LOCAL_RANK is 2 on a node of 2 ranks");
}

TEST(Device, OneVisibleIsForEveryone) {
  EXPECT_EQ(choose_device({3, 4, 3, 4, ""}, 1, true), 0);
  EXPECT_EQ(choose_device({3, 4, 3, 4, ""}, 1, false), 0);
}

TEST(Device, SeveralAreChosenByLocalRank) {
  EXPECT_EQ(choose_device({5, 8, 1, 4, ""}, 4, false), 1);
  EXPECT_EQ(choose_device({3, 4, 3, 4, ""}, 2, true), 1);
}

TEST(Device, TooFewAreRefusedWhereSharingIsOff) {
  EXPECT_THROW(choose_device({3, 4, 3, 4, ""}, 2, false), std::invalid_argument);
  EXPECT_THROW(choose_device({0, 1, 0, 1, ""}, 0, true), std::invalid_argument);
}

}  // namespace
}  // namespace workshop
