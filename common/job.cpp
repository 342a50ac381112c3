#include "common/job.h"

#ifdef WORKSHOP_MPI
#include <mpi.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <stdexcept>

#include "common/device.h"
#include "common/recorder.h"
#include "common/watchdog.h"
#ifdef WORKSHOP_BACKEND_CPU
#include "workshop_cpu.h"
#endif

namespace workshop {
namespace {

// ---- rank discovery ------------------------------------------------------------------------------------------------

// The value of a variable as a number that is at least `least`; -1 where the variable is not set.
int read_variable(const Environment& env, const char* name, int least) {
  const char* text = env(name);
  if (text == nullptr || *text == '\0') return -1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < least || value > 1 << 24) {
    throw std::invalid_argument(std::string(name) + " is '" + text + "'; expected a whole number of at least " +
                                std::to_string(least));
  }
  return static_cast<int>(value);
}

// SLURM_TASKS_PER_NODE is "2(x3),1": two tasks on each of three nodes, then one.
int slurm_tasks_on_node(const char* list, int node) {
  while (list != nullptr && *list != '\0') {
    char* end = nullptr;
    const int tasks = static_cast<int>(std::strtol(list, &end, 10));
    int nodes = 1;
    if (end[0] == '(' && end[1] == 'x') {
      nodes = static_cast<int>(std::strtol(end + 2, &end, 10));
      ++end;  // ")"
    }
    if (node < nodes) return tasks;
    node -= nodes;
    list = *end == ',' ? end + 1 : end;
  }
  return -1;
}

struct Names {
  const char *launcher, *rank, *world, *local_rank, *local_world;
};
constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kSlurm = {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

// What one launcher says; -1 for what it leaves open.
Ranks read_ranks(const Environment& env, const Names& names) {
  Ranks ranks{read_variable(env, names.rank, 0), read_variable(env, names.world, 1),
              read_variable(env, names.local_rank, 0), -1, names.launcher};
  if (names.local_world != nullptr) ranks.local_world = read_variable(env, names.local_world, 1);
  return ranks;
}

bool complete(const Ranks& ranks) { return ranks.rank >= 0 && ranks.world >= 1; }

std::string place(const Ranks& ranks) {
  return "rank " + std::to_string(ranks.rank) + " of " + std::to_string(ranks.world);
}

Ranks read_slurm(const Environment& env) {
  // The batch script itself has SLURM_PROCID too, but only srun starts ranks, and gives them a step.
  const bool in_batch_script = env("SLURM_JOB_ID") != nullptr && env("SLURM_STEP_ID") == nullptr;
  if (in_batch_script) return {-1, -1, -1, -1, "slurm"};
  Ranks slurm = read_ranks(env, kSlurm);
  const int node = read_variable(env, "SLURM_NODEID", 0);
  const char* tasks = env("SLURM_STEP_TASKS_PER_NODE");
  slurm.local_world = slurm_tasks_on_node(tasks != nullptr ? tasks : env("SLURM_TASKS_PER_NODE"), std::max(node, 0));
  return slurm;
}

}  // namespace

Ranks discover_ranks(const Environment& env) {
  const Ranks torchrun = read_ranks(env, kTorchrun);
  const Ranks open_mpi = read_ranks(env, kOpenMpi);
  const Ranks slurm = read_slurm(env);

  // What started this process knows best what it started; variables left over from elsewhere must not contradict it.
  Ranks ranks{0, 1, 0, 1, "none"};
  const Ranks& started_by = complete(open_mpi) ? open_mpi : slurm;
  if (complete(torchrun)) {
    ranks = torchrun;
    if (complete(open_mpi) && (open_mpi.rank != ranks.rank || open_mpi.world != ranks.world)) {
      throw std::invalid_argument("RANK and WORLD_SIZE say " + place(ranks) + ", but mpirun started this process as " +
                                  place(open_mpi) + "; unset RANK and WORLD_SIZE");
    }
  } else if (complete(started_by)) {
    ranks = started_by;
    if (torchrun.world > 0 && torchrun.world != ranks.world) {
      throw std::invalid_argument("WORLD_SIZE is " + std::to_string(torchrun.world) + ", but " + ranks.launcher +
                                  " started " + std::to_string(ranks.world) + " ranks");
    }
  } else if (torchrun.world > 1) {
    throw std::invalid_argument("WORLD_SIZE is " + std::to_string(torchrun.world) + ", but RANK is not set");
  } else if (torchrun.rank > 0) {
    throw std::invalid_argument("RANK is " + std::to_string(torchrun.rank) + ", but WORLD_SIZE is not set");
  }
  if (ranks.rank >= ranks.world) {
    throw std::invalid_argument("rank " + std::to_string(ranks.rank) + " does not exist in a job of " +
                                std::to_string(ranks.world) + " ranks (" + ranks.launcher + ")");
  }

  for (const Ranks* other : {&open_mpi, &slurm}) {
    if (ranks.local_rank < 0) ranks.local_rank = other->local_rank;
    if (ranks.local_world < 0) ranks.local_world = other->local_world;
  }
  if (ranks.local_rank < 0) {
    if (ranks.world > 1)
      throw std::invalid_argument("LOCAL_RANK is not set, so the device of " + place(ranks) + " is not known");
    ranks.local_rank = 0;
  }
  if (ranks.local_world < 0) ranks.local_world = ranks.world;
  if (ranks.local_rank >= ranks.local_world) {
    throw std::invalid_argument("LOCAL_RANK is " + std::to_string(ranks.local_rank) + " on a node of " +
                                std::to_string(ranks.local_world) + " ranks");
  }
  return ranks;
}

const Ranks& process_ranks() {
  static const Ranks ranks = [] {
    try {
      return discover_ranks([](const char* name) -> const char* { return std::getenv(name); });
    } catch (const std::invalid_argument& error) {
      // Without a rank there is no rank 0 that could speak for all: the first of the job to get here does.
      if (first_of_job()) std::fprintf(stderr, "error: %s\n", error.what());
      usleep(200'000);  // keeps the others quiet until they got here too
      _exit(kUsage);
    }
  }();
  return ranks;
}

int choose_device(const Ranks& ranks, int visible, bool sharing) {
  if (visible < 1) throw std::invalid_argument("no GPU is visible to this process (CUDA_VISIBLE_DEVICES?)");
  if (visible == 1 || ranks.local_rank < visible) return visible == 1 ? 0 : ranks.local_rank;
  if (!sharing) {
    throw std::invalid_argument(std::to_string(ranks.local_world) + " ranks on a node with " + std::to_string(visible) +
                                " GPUs, and WORKSHOP_SHARE_GPU=0 forbids sharing");
  }
  return ranks.local_rank % visible;
}

namespace {

// NCCL refuses two ranks on one GPU of one host. Given a host id each, the ranks talk through sockets instead: correct,
// not fast. From 2.30 on NCCL has a switch of its own. Variables that the user has set stay.
void let_ranks_share_gpus(const Ranks& ranks, int visible) {
  int version = 0;
  NCCL_CHECK(ncclGetVersion(&version));
  if (version >= NCCL_VERSION(2, 30, 0)) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  } else {
    setenv("NCCL_HOSTID", ("workshop-" + std::to_string(ranks.rank)).c_str(), 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_MNNVL_ENABLE", "0", 0);
    setenv("NCCL_MAX_CTAS", "4", 0);
  }
  print0("note: %d ranks share %d GPU%s: the results are right, the times mean nothing\n", ranks.local_world, visible,
         visible == 1 ? "" : "s");
}

void set_device(const Ranks& ranks) {
  int visible = 0;
  if (cudaGetDeviceCount(&visible) != cudaSuccess) visible = 0;
  const char* setting = std::getenv("WORKSHOP_SHARE_GPU");
  const bool sharing = setting == nullptr || std::string(setting) != "0";
  // Slurm may show each rank its own GPU only: then one is visible, and nothing is shared.
  const char* on_node = std::getenv("SLURM_GPUS_ON_NODE");
  const bool own_gpu = visible == 1 && on_node != nullptr && std::atoi(on_node) >= ranks.local_world;
  try {
    CUDA_CHECK(cudaSetDevice(choose_device(ranks, visible, sharing)));
  } catch (const std::invalid_argument& error) {
    usage_error(error.what());
  }
  if (sharing && ranks.local_world > visible && !own_gpu) let_ranks_share_gpus(ranks, visible);
}

// ---- meeting the other ranks ---------------------------------------------------------------------------------------

bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

#ifdef WORKSHOP_MPI
void start_mpi(const Ranks& ranks) {
  // Waiting ranks leave the core to the others: without this an all-reduce of ranks that share cores takes 1,000 times
  // as long. A process on its own needs no daemon, nor a folder for its session, which others may be tidying away.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  if (!started_by_mpi()) {
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
  }
  int provided = 0, size = 0;
  MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  if (provided < MPI_THREAD_MULTIPLE) fail(kFailed, "this MPI library does not support MPI_THREAD_MULTIPLE");
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  if (size != ranks.world) {
    usage_error(ranks.launcher + " announces " + std::to_string(ranks.world) + " ranks, but MPI started " +
                std::to_string(size) + (ranks.launcher == "slurm" ? "; use srun --mpi=pmix" : "; use mpirun -n"));
  }
}
#endif

// Without MPI the ranks meet at rank 0's address, through NCCL's own bootstrap.
void set_meeting_point(const Ranks& ranks) {
  const char* address = std::getenv("MASTER_ADDR");
  const char* port = std::getenv("MASTER_PORT");
  const std::string ranks_need = std::to_string(ranks.world) + " ranks without mpirun need ";
  if (address == nullptr || *address == '\0') usage_error("MASTER_ADDR is not set; " + ranks_need + "rank 0's address");
  if (port == nullptr || *port == '\0') usage_error("MASTER_PORT is not set; " + ranks_need + "a free port there");
  char* end = nullptr;
  long number = std::strtol(port, &end, 10);
  if (*end != '\0' || number < 1 || number > 65534) {
    usage_error(std::string("MASTER_PORT is '") + port + "'; expected a port from 1 to 65534");
  }
  // torchrun's own store listens on MASTER_PORT already.
  if (std::getenv("TORCHELASTIC_USE_AGENT_STORE") != nullptr) ++number;
#ifdef WORKSHOP_BACKEND_CPU
  usage_error("the cpu backend starts several ranks with mpirun or srun --mpi=pmix; found " + ranks.launcher +
              "'s variables for " + std::to_string(ranks.world) + " ranks only");
#endif
  setenv("NCCL_COMM_ID", (std::string(address) + ":" + std::to_string(number)).c_str(), 0);
}

ncclComm_t make_world(const Ranks& ranks, bool with_mpi) {
  ncclUniqueId id;
  if (ranks.rank == 0 || !with_mpi) NCCL_CHECK(ncclGetUniqueId(&id));
#ifdef WORKSHOP_MPI
  if (with_mpi) MPI_CHECK(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
#endif
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommInitRank(&comm, ranks.world, id, ranks.rank));
  return comm;
}

}  // namespace

Job::Job(const Options& options) : ranks_(process_ranks()) {
  start_recording(options, ranks_);
  bool with_mpi = false;
#ifdef WORKSHOP_MPI
  with_mpi = started_by_mpi();
#endif
  if (ranks_.world > 1 && !with_mpi) set_meeting_point(ranks_);
#ifdef WORKSHOP_BACKEND_CPU
  with_mpi = true;  // its NCCL stands on MPI, for one rank too
#endif
#ifdef WORKSHOP_MPI
  if (with_mpi) start_mpi(ranks_);
#endif
  set_device(ranks_);
  start_watchdog(ranks_);
  comm_ = make_world(ranks_, with_mpi);
  name_communicator(comm_, "world");
  connect_watchdogs(comm_);
  start_clock(comm_);
}

Job::~Job() {
  CUDA_CHECK(cudaDeviceSynchronize());
  report_failed_communicators();
  write_record(comm_);
#ifdef WORKSHOP_MPI
  // Where a rank ends too early, it waits here: mpirun does not survive it if a job is aborted in MPI_Finalize.
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) MPI_CHECK(MPI_Barrier(MPI_COMM_WORLD));
#endif
  NCCL_CHECK(ncclCommDestroy(comm_));
  std::fflush(stdout);
#ifdef WORKSHOP_MPI
#ifdef WORKSHOP_BACKEND_CPU
  if (!cpu::mpi_usable()) MPI_Abort(MPI_COMM_WORLD, 0);  // MPI_Finalize would wait for what ncclCommAbort left behind
#endif
  if (initialized) MPI_CHECK(MPI_Finalize());
#endif
  stop_watchdog();
}

void print0(const char* format, ...) {
  if (process_ranks().rank != 0) return;
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::fflush(stdout);
}

}  // namespace workshop
