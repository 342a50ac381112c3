// SPDX-License-Identifier: Apache-2.0
// Rank discovery in the environments that launchers create, the meeting point, and the choice of a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <stdexcept>

#include "common/base/environment.h"

namespace workshop {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// Reads a file of tests/unit/environments: comments, then one variable per line.
Variables recorded(const std::string& file) {
  std::ifstream lines(ENVIRONMENTS "/" + file);
  EXPECT_TRUE(lines) << file;
  Variables variables;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (line[0] != '#') variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

Ranks discover(const Variables& variables) { return discover_ranks(environment(variables)); }

// Returns the message with which `function` refuses.
template <typename Function>
std::string refusal_of(Function function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(const Variables& variables) {
  return refusal_of([&] { discover(variables); });
}

void expect(const Ranks& ranks, int rank, int world, int local_rank, int local_world, const std::string& launcher) {
  EXPECT_EQ(ranks.rank, rank);
  EXPECT_EQ(ranks.world, world);
  EXPECT_EQ(ranks.local_rank, local_rank);
  EXPECT_EQ(ranks.local_world, local_world);
  EXPECT_EQ(ranks.launcher, launcher);
}

// Made up; recorded environments are in files.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kTorchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "17"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "6"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
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

TEST(Ranks, ABatchScriptIsNotARank) {
  expect(discover({{"SLURM_JOB_ID", "17"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), 0, 1, 0, 1, "none");
}

TEST(Ranks, LocalRankFromTheLauncherWhereItIsNotSet) {
  const Variables same = {{"RANK", "2"}, {"WORLD_SIZE", "4"}};
  expect(discover(with(kOpenMpi, same)), 2, 4, 0, 2, "torchrun");
}

// ---- recorded environments -----------------------------------------------------------------------------------------

struct Recorded {
  const char* file;
  int rank, world, local_rank, local_world;
  const char* launcher;
  bool by_mpi;
};

TEST(Ranks, RecordedEnvironments) {
  const Recorded all[] = {
      {"mpirun", 1, 2, 1, 2, "mpirun", true},
      {"mpirun_two_nodes", 3, 4, 1, 2, "mpirun", true},
      {"mpirun_in_sbatch", 1, 2, 1, 2, "mpirun", true},
      {"srun", 2, 3, 0, 1, "slurm", false},
      {"srun_in_sbatch", 3, 4, 1, 2, "slurm", false},
      {"srun_pmi2", 3, 4, 1, 2, "slurm", true},
      {"srun_pmix", 1, 2, 1, 2, "slurm", true},
      {"sbatch", 0, 1, 0, 1, "none", false},
      {"salloc", 0, 1, 0, 1, "slurm", false},
      {"torchrun", 1, 2, 1, 2, "torchrun", false},
      {"torchrun_in_srun", 2, 4, 0, 2, "torchrun", false},
      {"torchrun_in_mpirun", 1, 2, 1, 2, "torchrun", false},
  };
  for (const Recorded& expected : all) {
    SCOPED_TRACE(expected.file);
    const Ranks ranks = discover(recorded(expected.file));
    expect(ranks, expected.rank, expected.world, expected.local_rank, expected.local_world, expected.launcher);
    EXPECT_EQ(ranks.by_mpi, expected.by_mpi);
  }
}

TEST(Ranks, ALauncherOfAnotherMpiIsRefused) {
  EXPECT_EQ(
      refusal({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}),
      "PMI_SIZE is 2: these ranks were started by a launcher of another MPI; use Open MPI's mpirun, torchrun, or srun");
  expect(discover({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}), 0, 1, 0, 1, "none");
  expect(discover(with(kOpenMpi, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})), 2, 4, 0, 2, "mpirun");
}

TEST(Ranks, ALauncherInAnInteractiveStep) {
  // As set by tools/launch --env in a shell that was started by 'srun --pty bash', with or without PMIx.
  const Variables shell = {{"SLURM_JOB_ID", "17"},        {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"},
                           {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_LOCALID", "0"}, {"PMIX_RANK", "0"}};
  const Ranks ranks = discover(with(shell, kTorchrun));
  expect(ranks, 3, 8, 1, 2, "torchrun");
  EXPECT_FALSE(ranks.by_mpi);
  expect(discover(with(recorded("salloc"), kTorchrun)), 3, 8, 1, 2, "torchrun");
}

TEST(Ranks, AScriptMayTranslateSlurmsVariables) {
  const Variables by_hand = {{"RANK", "6"}, {"WORLD_SIZE", "7"}};
  const Ranks ranks = discover(with(with(kSlurm, by_hand), {{"PMIX_RANK", "6"}}));
  expect(ranks, 6, 7, 0, 1, "torchrun");
  EXPECT_TRUE(ranks.by_mpi);
}

// ---- contradictions ------------------------------------------------------------------------------------------------

TEST(Ranks, ContradictionsNameTheVariable) {
  EXPECT_EQ(refusal(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})),
            "RANK and WORLD_SIZE say rank 0 of 1, but mpirun started this process as rank 2 of 4; unset RANK and "
            "WORLD_SIZE");
  EXPECT_EQ(refusal(with(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "4"}})),
            "RANK and WORLD_SIZE say rank 0 of 4, but slurm started this process as rank 6 of 7; unset RANK and "
            "WORLD_SIZE");
  EXPECT_EQ(refusal(with(kOpenMpi, {{"WORLD_SIZE", "2"}})), "WORLD_SIZE is 2, but mpirun started 4 ranks");
  EXPECT_EQ(refusal(with(kSlurm, {{"RANK", "2"}})), "RANK is 2, but slurm started this process as rank 6 of 7");
  EXPECT_EQ(refusal({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is 2, but RANK is not set");
  EXPECT_EQ(refusal({{"RANK", "1"}}), "RANK is 1, but WORLD_SIZE is not set");
  EXPECT_EQ(refusal({{"RANK", "0"}}), "RANK is 0, but WORLD_SIZE is not set");
  EXPECT_EQ(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
            "LOCAL_RANK is not set, so the device of rank 1 of 2 is not known");
  EXPECT_EQ(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
            "RANK is 2, but WORLD_SIZE is 2: ranks are counted from 0");
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_RANK", "2"}})), "LOCAL_RANK is 2 on a node of 2 ranks");
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), "LOCAL_WORLD_SIZE is 9, but WORLD_SIZE is 8");
  EXPECT_EQ(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}})),
            "OMPI_COMM_WORLD_LOCAL_RANK is 3 on a node of 2 ranks");
}

TEST(Ranks, WhatIsNoNumberIsNamed) {
  for (const char* wrong : {"one", "", "-1", "1.0", " 1", "+1", "1 ", "0x1", "99999999999999999999"}) {
    EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", wrong}})),
              "RANK is '" + std::string(wrong) + "'; expected a whole number of at least 0");
  }
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    EXPECT_EQ(refusal(with(kTorchrun, {{name, "0"}})),
              std::string(name) + " is '0'; expected a whole number of at least 1");
  }
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_PROCID", "x"}})),
            "SLURM_PROCID is 'x'; expected a whole number of at least 0");
  for (const char* wrong : {"", "2(x3", "2(x3),", "2(x3),0", "many", "2(x2)", "2;1"}) {
    EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", wrong}})),
              "SLURM_STEP_TASKS_PER_NODE is '" + std::string(wrong) +
                  "'; expected tasks per node such as '2(x3),1', for this node too");
  }
}

// ---- meeting point -------------------------------------------------------------------------------------------------

const Variables kMaster = {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};

std::string point_of(const Variables& variables) {
  const MeetingPoint point = meeting_point(environment(variables), 4);
  return point.address + ":" + std::to_string(point.port) + " " + std::to_string(point.seconds) + " s";
}

TEST(MeetingPoint, FromTheEnvironment) {
  EXPECT_EQ(point_of(kMaster), "node7:29500 60 s");
  EXPECT_EQ(point_of(with(kMaster, {{"WORKSHOP_JOIN_TIMEOUT", "5"}})), "node7:29500 5 s");
}

TEST(MeetingPoint, TorchrunsStoreHasThePortItself) {
  EXPECT_EQ(point_of(recorded("torchrun")), "localhost:41040 60 s");
  EXPECT_EQ(point_of(with(kMaster, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})), "node7:29500 60 s");
}

TEST(MeetingPoint, WhatIsWrongIsNamed) {
  const auto refused = [](const Variables& variables) { return refusal_of([&] { point_of(variables); }); };
  EXPECT_EQ(refused({}), "MASTER_ADDR is not set; 4 ranks without MPI need the address of rank 0's node");
  EXPECT_EQ(refused({{"MASTER_ADDR", ""}, {"MASTER_PORT", "1"}}),
            "MASTER_ADDR is not set; 4 ranks without MPI need the address of rank 0's node");
  EXPECT_EQ(refused({{"MASTER_ADDR", "node7"}}),
            "MASTER_PORT is not set; 4 ranks without MPI need a free port on rank 0's node");
  for (const char* wrong : {"http", "0", "-1", "65535", "29500x"}) {
    EXPECT_EQ(refused(with(kMaster, {{"MASTER_PORT", wrong}})),
              "MASTER_PORT is '" + std::string(wrong) + "'; expected a whole number from 1 to 65534");
  }
  EXPECT_EQ(refused(with(kMaster, {{"WORKSHOP_JOIN_TIMEOUT", "soon"}})),
            "WORKSHOP_JOIN_TIMEOUT is 'soon'; expected a whole number of at least 1");
}

TEST(JobName, IsTheLaunchers) {
  const auto name = [](const std::string& file) { return job_name(environment(recorded(file))); };
  EXPECT_EQ(name("mpirun"), "");
  EXPECT_EQ(name("srun_in_sbatch"), name("sbatch"));
  EXPECT_EQ(name("torchrun_in_srun"), recorded("torchrun_in_srun")["SLURM_JOB_ID"] + "-none");
  EXPECT_EQ(name("torchrun"), recorded("torchrun")["TORCHELASTIC_RUN_ID"]);
}

// ---- devices -------------------------------------------------------------------------------------------------------

// The ranks of a single node.
Ranks local(int rank, int ranks) { return {rank, ranks, rank, ranks, "", false}; }

void expect_device(const Ranks& ranks, int visible, int device, bool shared, const Variables& variables = {}) {
  const DeviceChoice choice = choose_device(environment(variables), ranks, visible);
  EXPECT_EQ(choice.device, device);
  EXPECT_EQ(choice.shared, shared);
}

TEST(Device, SeveralAreChosenByLocalRank) {
  expect_device(local(0, 1), 1, 0, false);
  expect_device(local(3, 4), 4, 3, false);
  expect_device({5, 8, 1, 4, "", false}, 4, 1, false);
}

TEST(Device, TooFewAreShared) {
  expect_device(local(3, 4), 1, 0, true);
  expect_device(local(1, 4), 2, 1, true);
  expect_device(local(3, 4), 2, 1, true);
}

TEST(Device, SlurmMayShowEachRankItsOwn) {
  expect_device(local(3, 4), 1, 0, false, {{"SLURM_GPUS_ON_NODE", "4"}});
  expect_device(local(3, 4), 1, 0, true, {{"SLURM_GPUS_ON_NODE", "1"}});
}

std::string idle(const Variables& variables, int visible) {
  const Ranks ranks = discover(variables);
  return idle_devices(environment(variables), ranks, devices_of_node(environment(variables), ranks, visible), "node1");
}

// Two devices more than ranks, equally many, and one fewer, in every recorded environment.
TEST(Device, IdleOnesAreSaidOfAllRecordedEnvironments) {
  const std::map<std::string, std::string> remedies = {
      {"mpirun", "(mpirun -n 4) or take 2 (CUDA_VISIBLE_DEVICES=0,1)"},
      {"mpirun_two_nodes", "(mpirun --map-by ppr:4:node) or take 2 (CUDA_VISIBLE_DEVICES=0,1)"},
      {"mpirun_in_sbatch", "(mpirun -n 4) or take 2 (--gpus-per-node=2)"},
      {"srun", "(srun --ntasks-per-node=3) or take 1 (--gpus-per-node=1)"},
      {"srun_in_sbatch", "(srun --ntasks-per-node=4) or take 2 (--gpus-per-node=2)"},
      {"srun_pmi2", "(srun --ntasks-per-node=4) or take 2 (--gpus-per-node=2)"},
      {"srun_pmix", "(srun --ntasks-per-node=4) or take 2 (--gpus-per-node=2)"},
      {"sbatch", "(srun --ntasks-per-node=3) or take 1 (--gpus-per-node=1)"},
      {"salloc", "(srun --ntasks-per-node=3) or take 1 (--gpus-per-node=1)"},
      {"torchrun", "(torchrun --nproc-per-node 4) or take 2 (CUDA_VISIBLE_DEVICES=0,1)"},
      {"torchrun_in_srun", "(torchrun --nproc-per-node 4) or take 2 (--gpus-per-node=2)"},
      {"torchrun_in_mpirun", "(torchrun --nproc-per-node 4) or take 2 (CUDA_VISIBLE_DEVICES=0,1)"},
  };
  for (const auto& [file, remedy] : remedies) {
    SCOPED_TRACE(file);
    const Variables variables = recorded(file);
    const int ranks = discover(variables).local_world;
    const std::string said = idle(variables, ranks + 2);
    EXPECT_EQ(said.substr(0, said.find(';')), "node1 has " + std::to_string(ranks + 2) + " GPUs for this job and " +
                                                  std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                                                  ": 2 stay idle");
    EXPECT_TRUE(said.ends_with("; start a rank for each " + remedy)) << said;
    EXPECT_EQ(idle(variables, ranks), "");
    EXPECT_EQ(idle(variables, std::max(1, ranks - 1)), "");
  }
  EXPECT_EQ(idle({}, 2),
            "node1 has 2 GPUs for this job and 1 rank: 1 stays idle; start a rank for each (mpirun -n 2 or torchrun "
            "--nproc-per-node 2) or take 1 (CUDA_VISIBLE_DEVICES=0)");
}

// A process that uses several devices is told to use more of them, not to start more ranks.
TEST(Device, IdleOnesOfAProcessWithSeveral) {
  const Ranks alone = discover({});
  EXPECT_EQ(idle_devices(environment({}), alone, 4, "node1", 2),
            "node1 has 4 GPUs for this job, and --devices is 2: 2 stay idle; use all (--devices 4) or take 2 "
            "(CUDA_VISIBLE_DEVICES=0,1)");
  EXPECT_EQ(idle_devices(environment({}), alone, 2, "node1", 2), "");
  EXPECT_EQ(idle_devices(environment({}), alone, 2, "node1", 3), "");
  EXPECT_EQ(devices_of_process(environment({}), 2, 4), 2);
  EXPECT_EQ(devices_of_process(environment({}), 3, 2), 2);
  EXPECT_EQ(refusal_of([&] {
              devices_of_process(environment({{"WORKSHOP_SHARE_GPU", "0"}}), 3, 1);
            }),
            "--devices is '3' on a node with 1 GPU, and WORKSHOP_SHARE_GPU=0 forbids sharing");
}

// CUDA shows the devices that CUDA_VISIBLE_DEVICES names.
TEST(Device, IdleOnesWhereSlurmHasGivenGpus) {
  EXPECT_NE(idle(recorded("srun_gpus"), 2), "");
  EXPECT_NE(idle(recorded("sbatch_gpus"), 2), "");
  EXPECT_EQ(idle(recorded("srun_gpus_per_task"), 1), "");
  // A single rank that makes fewer devices visible than Slurm has given does so on purpose.
  EXPECT_EQ(idle(recorded("srun_gpus"), 1), "");
  // Each of two ranks sees one of four devices.
  const std::string said = idle(with(recorded("srun_gpus_per_task"), {{"SLURM_GPUS_ON_NODE", "4"}}), 1);
  EXPECT_EQ(said.substr(0, said.find(';')), "node1 has 4 GPUs for this job and 2 ranks: 2 stay idle");
}

TEST(Device, SharingMayBeForbidden) {
  const Variables forbidden = {{"WORKSHOP_SHARE_GPU", "0"}};
  expect_device(local(3, 4), 4, 3, false, forbidden);
  expect_device(local(3, 4), 1, 0, false, forbidden);
  EXPECT_EQ(refusal_of([&] { choose_device(environment(forbidden), local(3, 4), 2); }),
            "4 ranks on a node with 2 GPUs, and WORKSHOP_SHARE_GPU=0 forbids sharing");
  EXPECT_EQ(refusal_of([&] {
              choose_device(environment({{"WORKSHOP_SHARE_GPU", "no"}}), local(0, 1), 1);
            }),
            "WORKSHOP_SHARE_GPU is 'no'; expected a whole number from 0 to 1");
  EXPECT_EQ(refusal_of([&] { choose_device(environment({}), local(0, 1), 0); }),
            "no GPU is visible to this process (CUDA_VISIBLE_DEVICES?)");
}

TEST(Device, WhatNcclNeedsForSharing) {
  using Settings = std::map<std::string, std::string>;
  const auto settings = [](const Ranks& ranks) {
    const auto list = gpu_sharing_variables(ranks);
    return Settings(list.begin(), list.end());
  };
  const Settings apart = {{"NCCL_HOSTID", "workshop-3"},
                          {"NCCL_NET", "Socket"},
                          {"NCCL_NVLS_ENABLE", "0"},
                          {"NCCL_MNNVL_ENABLE", "0"},
                          {"NCCL_MAX_CTAS", "4"}};
  EXPECT_EQ(settings({3, 4, 1, 2, "", false}), apart);
  Settings on_one_node = apart;
  on_one_node["NCCL_SOCKET_IFNAME"] = "lo";
  EXPECT_EQ(settings(local(3, 4)), on_one_node);
}

}  // namespace
}  // namespace workshop
