// SPDX-License-Identifier: Apache-2.0
// Who am I among the ranks, which device is mine, and where do we meet: from the variables that launchers set.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ranks.h"

namespace workshop {

// Looks a variable up; returns nullptr where it is not set.
using Environment = std::function<const char*(const char*)>;

// This process's own: std::getenv.
const char* process_environment(const char* name);

// Rank, world size and local rank from, in this order: RANK/WORLD_SIZE/LOCAL_RANK (torchrun's convention), Open MPI's
// variables, Slurm's, else one process. This and what follows throw std::invalid_argument with one line that names the
// variable at fault.
Ranks discover_ranks(const Environment& env);

// For how many seconds the ranks of a job wait for each other when they start.
int join_timeout(const Environment& env);

// Where the ranks of a job meet that MPI did not start, and how long they wait for each other there.
struct MeetingPoint {
  std::string address;  // of rank 0's node
  int port = 0;
  int seconds = 60;
};
MeetingPoint meeting_point(const Environment& env, int world);

// What a launcher calls the job, the same on all nodes; empty where it has no name.
std::string job_name(const Environment& env);

// What the ranks of a job without MPI know and, if WORKSHOP_JOB_TOKEN is a secret, no one else; it has the job's name
// in it, so that jobs without a token are told apart.
std::string job_key(const Environment& env);

// "rank 3" or "ranks 0, 3"; of very many the first.
std::string list_of_ranks(const std::vector<int>& ranks);

// The device of a rank on a node with `visible` devices, and whether ranks of the node share them.
struct DeviceChoice {
  int device = 0;
  bool shared = false;
};
DeviceChoice choose_device(const Environment& env, const Ranks& ranks, int visible);

// The devices that the node has for this job, `visible` of which are shown to this rank.
int devices_of_node(const Environment& env, const Ranks& ranks, int visible);

// What is to be said where `node` has more of them than ranks: how many stay idle, and what to do. Else "".
// `of_process` is how many a process uses that takes several, by its option --devices; 0 for a rank, which has one.
std::string idle_devices(const Environment& env, const Ranks& ranks, int devices, const std::string& node,
                         int of_process = 0);

// Of a process that is to use several devices: how many it gets of those that it is shown. Where these are fewer, its
// parts share them.
int devices_of_process(const Environment& env, int wanted, int visible);

// The variables that let NCCL have several ranks on one GPU.
std::vector<std::pair<std::string, std::string>> gpu_sharing_variables(const Ranks& ranks);

}  // namespace workshop
