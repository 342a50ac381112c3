// SPDX-License-Identifier: Apache-2.0
// Finds this process's rank, its device, and where the ranks meet, from the environment variables that launchers set.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ranks.h"

namespace workshop {

// Looks up a variable; returns nullptr if it is not set.
using Environment = std::function<const char*(const char*)>;

// The environment of this process (std::getenv).
const char* process_environment(const char* name);

// Reads rank, world size and local rank from RANK/WORLD_SIZE/LOCAL_RANK (torchrun's convention), else Open MPI's
// variables, else Slurm's; otherwise the process is the only rank. This function and the next ones throw
// std::invalid_argument with one line that names the variable at fault.
Ranks discover_ranks(const Environment& env);

// How long the ranks of a job wait for each other at the start, in seconds.
int join_timeout(const Environment& env);

// Where the ranks of a job without MPI meet, and how long they wait for each other there.
struct MeetingPoint {
  std::string address;  // of rank 0's node
  int port = 0;
  int seconds = 60;
};
MeetingPoint meeting_point(const Environment& env, int world);

// The launcher's name for the job, the same on all nodes; empty if it has none.
std::string job_name(const Environment& env);

// The key with which the ranks of a job without MPI recognize each other. If WORKSHOP_JOB_TOKEN is a secret, only they
// know the key. It also contains the job's name, which tells jobs without a token apart.
std::string job_key(const Environment& env);

// "rank 3" or "ranks 0, 3"; of a long list only the beginning.
std::string list_of_ranks(const std::vector<int>& ranks);

// The device of a rank on a node with `visible` devices, and whether ranks of the node share them.
struct DeviceChoice {
  int device = 0;
  bool shared = false;
};
DeviceChoice choose_device(const Environment& env, const Ranks& ranks, int visible);

// Number of devices that the node has for this job. This rank sees `visible` of them.
int devices_of_node(const Environment& env, const Ranks& ranks, int visible);

// The message for a `node` with more devices than ranks: how many stay idle, and what to do. "" if there is nothing to
// say. `of_process`: the value of --devices, the number of devices that one process uses; 0 in programs without this
// option, in which each rank uses one device.
std::string idle_devices(const Environment& env, const Ranks& ranks, int devices, const std::string& node,
                         int of_process = 0);

// Number of devices that a process gets if it wants to use several, one for each part of the model. If fewer are
// visible, it gets these, and several parts share a device.
int devices_of_process(const Environment& env, int wanted, int visible);

// The variables that make NCCL accept several ranks on one GPU.
std::vector<std::pair<std::string, std::string>> gpu_sharing_variables(const Ranks& ranks);

}  // namespace workshop
