// SPDX-License-Identifier: Apache-2.0
#include "common/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "common/base/format.h"

namespace workshop {
namespace {

constexpr int kMost = 1 << 24;  // upper bound on ranks and all other counts

// Throws std::invalid_argument with a message that says what is wrong with the variables.
[[noreturn, gnu::format(printf, 1, 2)]] void refuse(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  throw std::invalid_argument(vformatted(format, arguments));
}

// Returns the value of a variable as a number from `least` to `most`; nullopt if it is not set.
std::optional<int> number(const Environment& env, const char* name, int least, int most = kMost) {
  const char* text = env(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  int value = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
  if (error != std::errc() || end != digits.end() || value < least || value > most) {
    if (most < kMost) refuse("%s is '%s'; expected a whole number from %d to %d", name, text, least, most);
    refuse("%s is '%s'; expected a whole number of at least %d", name, text, least);
  }
  return value;
}

// ---- variables of each launcher ------------------------------------------------------------------------------------

struct Names {
  const char *launcher, *rank, *world, *local_rank, *local_world;
};
constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                          "SLURM_STEP_TASKS_PER_NODE"};

struct Found {
  Names names;
  std::optional<int> rank, world, local_rank, local_world;

  bool complete() const { return rank && world; }
  bool same_ranks(const Found& other) const { return rank == other.rank && world == other.world; }
  std::string place() const { return formatted("rank %d of %d", *rank, *world); }
};

Found read(const Environment& env, const Names& names) {
  return {names, number(env, names.rank, 0), number(env, names.world, 1), number(env, names.local_rank, 0), {}};
}

Found read_with_local_world(const Environment& env, const Names& names) {
  Found found = read(env, names);
  found.local_world = number(env, names.local_world, 1);
  return found;
}

// Parses Slurm's notation: "2(x3),1" means two tasks on each of three nodes, then one task on a fourth.
std::optional<int> tasks_on_node(const Environment& env, const char* name, int node) {
  const char* text = env(name);
  if (text == nullptr) return std::nullopt;
  for (const char* at = text; *at != '\0';) {
    char* end = nullptr;
    const long tasks = std::strtol(at, &end, 10);
    long nodes = 1;
    if (end[0] == '(' && end[1] == 'x') {
      nodes = std::strtol(end + 2, &end, 10);
      if (*end == ')') ++end;
    }
    if (tasks < 1 || tasks > kMost || nodes < 1 || (*end != ',' && *end != '\0')) break;
    if (node < nodes) return static_cast<int>(tasks);
    node -= static_cast<int>(nodes);
    at = *end == ',' ? end + 1 : end;
  }
  refuse("%s is '%s'; expected tasks per node such as '2(x3),1', for this node too", name, text);
}

Found read_slurm(const Environment& env) {
  // SLURM_PROCID is also set in a batch script, but only srun starts ranks, and it sets SLURM_STEP_ID. SLURM_NTASKS
  // does not serve here: it may be the number of tasks of the whole job, for example in the shell that salloc starts.
  if (env("SLURM_STEP_ID") == nullptr) return {kSlurm, {}, {}, {}, {}};
  Found slurm = read(env, kSlurm);
  slurm.local_world = tasks_on_node(env, kSlurm.local_world, number(env, "SLURM_NODEID", 0).value_or(0));
  return slurm;
}

// ---- which launcher counts -----------------------------------------------------------------------------------------

// RANK and WORLD_SIZE may come from torchrun, or may be set by hand or left over. In the latter case they must agree
// with the launcher that started this process.
void require_agreement(const Found& by_hand, const Found& started_by) {
  const char* launcher = started_by.names.launcher;
  if (by_hand.complete()) {
    if (by_hand.same_ranks(started_by)) return;
    refuse("RANK and WORLD_SIZE say %s, but %s started this process as %s; unset RANK and WORLD_SIZE",
           by_hand.place().c_str(), launcher, started_by.place().c_str());
  }
  if (by_hand.world && by_hand.world != started_by.world) {
    refuse("WORLD_SIZE is %d, but %s started %d ranks", *by_hand.world, launcher, *started_by.world);
  }
  if (by_hand.rank && by_hand.rank != started_by.rank) {
    refuse("RANK is %d, but %s started this process as %s", *by_hand.rank, launcher, started_by.place().c_str());
  }
}

void require_complete(const Found& by_hand) {
  if (by_hand.rank && !by_hand.world) refuse("RANK is %d, but WORLD_SIZE is not set", *by_hand.rank);
  if (!by_hand.rank && by_hand.world.value_or(1) > 1) {
    refuse("WORLD_SIZE is %d, but RANK is not set", *by_hand.world);
  }
}

// MPI started these ranks if its launcher's variables describe the same ranks. Under torchrun, those variables may be
// inherited: they then describe the process that started torchrun.
bool started_by_mpi(const Environment& env, const Found& ranks, const Found& open_mpi, const Found& slurm) {
  if (open_mpi.complete()) return ranks.same_ranks(open_mpi);
  if (env("PMIX_RANK") == nullptr && env("PMI_RANK") == nullptr) return false;
  return !slurm.complete() || ranks.same_ranks(slurm);
}

void require_sound(const Ranks& ranks, const Names& names) {
  if (ranks.rank >= ranks.world) {
    refuse("%s is %d, but %s is %d: ranks are counted from 0", names.rank, ranks.rank, names.world, ranks.world);
  }
  if (ranks.local_world > ranks.world) {
    refuse("%s is %d, but %s is %d", names.local_world, ranks.local_world, names.world, ranks.world);
  }
  if (ranks.local_rank >= ranks.local_world) {
    refuse("%s is %d on a node of %d ranks", names.local_rank, ranks.local_rank, ranks.local_world);
  }
}

}  // namespace

const char* process_environment(const char* name) { return std::getenv(name); }

std::string node_name() {
  if (const char* name = process_environment("SLURMD_NODENAME")) return name;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return host;
}

Ranks discover_ranks(const Environment& env) {
  const Found torchrun = read_with_local_world(env, kTorchrun);
  const Found open_mpi = read_with_local_world(env, kOpenMpi);
  const Found slurm = read_slurm(env);

  const Found& started_by = open_mpi.complete() ? open_mpi : slurm;
  // Two nested launchers are legitimate: torchrun under mpirun or srun, and any launcher within an interactive Slurm
  // step, which has one task.
  const bool real_torchrun = torchrun.complete() && env("TORCHELASTIC_RUN_ID") != nullptr;
  const bool in_a_shell = &started_by == &slurm && slurm.world == 1 && torchrun.complete();
  if (!started_by.complete()) {
    require_complete(torchrun);
  } else if (!real_torchrun && !in_a_shell) {
    require_agreement(torchrun, started_by);
  }

  Found found = torchrun.complete() ? torchrun : started_by;
  if (!found.complete()) {
    // Without this, each rank of MPICH's launchers would train by itself.
    if (const int ranks = number(env, "PMI_SIZE", 1).value_or(1); ranks > 1) {
      refuse(
          "PMI_SIZE is %d: these ranks were started by a launcher of another MPI; use Open MPI's mpirun, torchrun, or "
          "srun",
          ranks);
    }
    found = {{"none", "", "", "LOCAL_RANK", ""}, 0, 1, 0, 1};
  }
  for (const Found* other : {&open_mpi, &slurm}) {
    if (!found.same_ranks(*other)) continue;
    if (!found.local_rank) found.local_rank = other->local_rank;
    if (!found.local_world) found.local_world = other->local_world;
  }
  if (!found.local_rank && *found.world > 1) {
    refuse("%s is not set, so the device of %s is not known", found.names.local_rank, found.place().c_str());
  }
  const Ranks ranks{*found.rank,
                    *found.world,
                    found.local_rank.value_or(0),
                    found.local_world.value_or(*found.world),
                    found.names.launcher,
                    started_by_mpi(env, found, open_mpi, slurm)};
  require_sound(ranks, found.names);
  return ranks;
}

int join_timeout(const Environment& env) { return number(env, "WORKSHOP_JOIN_TIMEOUT", 1).value_or(60); }

MeetingPoint meeting_point(const Environment& env, int world) {
  const auto require = [&](const char* name, const char* what) {
    if (const char* value = env(name); value != nullptr && *value != '\0') return value;
    refuse("%s is not set; %d ranks without MPI need %s", name, world, what);
  };
  MeetingPoint point;
  point.address = require("MASTER_ADDR", "the address of rank 0's node");
  require("MASTER_PORT", "a free port on rank 0's node");
  point.port = *number(env, "MASTER_PORT", 1, 65534);
  // If this variable is "True", torchrun's own store already listens on MASTER_PORT.
  const char* store = env("TORCHELASTIC_USE_AGENT_STORE");
  if (store != nullptr && std::string_view(store) == "True") ++point.port;
  point.seconds = join_timeout(env);
  return point;
}

std::string job_name(const Environment& env) {
  std::string job;
  for (const char* name : {"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"}) {
    if (const char* value = env(name)) job += std::string(job.empty() ? "" : "-") + value;
  }
  return job;
}

std::string job_key(const Environment& env) {
  const char* token = env("WORKSHOP_JOB_TOKEN");
  return std::string(token == nullptr ? "" : token) + "\n" + job_name(env);
}

std::string list_of_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  return text + (ranks.size() > kNamed ? ", …" : "");
}

// ---- devices -------------------------------------------------------------------------------------------------------

DeviceChoice choose_device(const Environment& env, const Ranks& ranks, int visible) {
  if (visible < 1) refuse("no GPU is visible to this process (CUDA_VISIBLE_DEVICES?)");
  const bool sharing = number(env, "WORKSHOP_SHARE_GPU", 0, 1).value_or(1) == 1;
  if (ranks.local_world <= visible) return {ranks.local_rank, false};
  if (visible == 1) {
    // Slurm may show each rank only its own GPU. If sharing is forbidden, assume that the GPU is the rank's own.
    const bool own = number(env, "SLURM_GPUS_ON_NODE", 0).value_or(0) >= ranks.local_world;
    return {0, sharing && !own};
  }
  if (!sharing) {
    refuse("%d ranks on a node with %d GPUs, and WORKSHOP_SHARE_GPU=0 forbids sharing", ranks.local_world, visible);
  }
  return {ranks.local_rank % visible, true};
}

int devices_of_process(const Environment& env, int wanted, int visible) {
  if (wanted <= visible) return wanted;
  if (number(env, "WORKSHOP_SHARE_GPU", 0, 1).value_or(1) == 0) {
    refuse("--devices is '%d' on a node with %d GPU%s, and WORKSHOP_SHARE_GPU=0 forbids sharing", wanted, visible,
           visible == 1 ? "" : "s");
  }
  return visible;
}

int devices_of_node(const Environment& env, const Ranks& ranks, int visible) {
  // A single rank sees all devices. With several ranks, Slurm may show each only its own, as with --gpus-per-task.
  const bool own = ranks.launcher == kSlurm.launcher && ranks.local_world > 1;
  return own ? std::max(visible, number(env, "SLURM_GPUS_ON_NODE", 0).value_or(0)) : visible;
}

std::string idle_devices(const Environment& env, const Ranks& ranks, int devices, const std::string& node,
                         int of_process) {
  const int used = of_process > 0 ? of_process : ranks.local_world, idle = devices - used;
  if (idle <= 0) return "";
  const bool in_slurm = env("SLURM_JOB_ID") != nullptr;
  const std::string all = std::to_string(devices);
  std::string start = "mpirun -n " + all + " or torchrun --nproc-per-node " + all;
  if (ranks.launcher == kTorchrun.launcher) {
    start = "torchrun --nproc-per-node " + all;
  } else if (ranks.launcher == kOpenMpi.launcher) {
    start = used == ranks.world ? "mpirun -n " + all : "mpirun --map-by ppr:" + all + ":node";
  } else if (in_slurm) {
    start = "srun --ntasks-per-node=" + all;
  }
  std::string fewer = in_slurm ? "--gpus-per-node=" + std::to_string(used) : "CUDA_VISIBLE_DEVICES=0";
  for (int i = 1; !in_slurm && i < used; ++i) fewer += "," + std::to_string(i);
  if (of_process > 0) {
    return formatted(
        "%s has %d GPUs for this job, and --devices is %d: %d stay%s idle; use all (--devices %d) or take %d (%s)",
        node.c_str(), devices, used, idle, idle == 1 ? "s" : "", devices, used, fewer.c_str());
  }
  return formatted(
      "%s has %d GPUs for this job and %d rank%s: %d stay%s idle; start a rank for each (%s) or take %d (%s)",
      node.c_str(), devices, used, used == 1 ? "" : "s", idle, idle == 1 ? "s" : "", start.c_str(), used,
      fewer.c_str());
}

// NCCL refuses two ranks on one GPU of one host. With a host id per rank, the ranks communicate through sockets, which
// is correct but not fast. NCCL_MULTI_RANK_GPU_ENABLE (NCCL 2.30 and later) is experimental and made for two ranks per
// GPU; more may hang.
std::vector<std::pair<std::string, std::string>> gpu_sharing_variables(const Ranks& ranks) {
  std::vector<std::pair<std::string, std::string>> variables = {
      {"NCCL_HOSTID", "workshop-" + std::to_string(ranks.rank)},
      {"NCCL_NET", "Socket"},  // not InfiniBand, nor what a plugin brings
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_MNNVL_ENABLE", "0"},
      {"NCCL_MAX_CTAS", "4"}};
  // Loopback reaches only the ranks of this node.
  if (ranks.local_world == ranks.world) variables.emplace_back("NCCL_SOCKET_IFNAME", "lo");
  return variables;
}

}  // namespace workshop
