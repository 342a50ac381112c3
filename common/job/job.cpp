// SPDX-License-Identifier: Apache-2.0
#include "common/job/job.h"

#ifdef WORKSHOP_MPI
#include <mpi.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>
#include <string_view>

#include "common/base/environment_errors.h"
#include "common/base/format.h"
#include "common/base/roll_call.h"
#include "common/device/device.h"
#include "common/job/rendezvous.h"
#include "common/job/same_options.h"
#include "common/nccl/launch_order.h"
#include "common/nccl/nccl_calls.h"
#include "common/options/options.h"
#include "common/record/recorder.h"
#include "common/record/self_test.h"
#include "common/watchdog/watchdog.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {
namespace {

// Sets the variables that let ranks share GPUs. Keeps those that the user has set.
void let_ranks_share_gpus(const Ranks& ranks, int visible) {
  for (const auto& [name, value] : gpu_sharing_variables(ranks)) setenv(name.c_str(), value.c_str(), 0);
  print0("note: %d ranks share %d GPU%s: results are correct, times are meaningless%s\n", ranks.local_world, visible,
         visible == 1 ? "" : "s", visible == 1 ? " (WORKSHOP_SHARE_GPU=0 if each has its own)" : "");
}

// Returns whether the number of devices is known. The cpu backend has as many as needed, unless WORKSHOP_DEVICE_COUNT
// is set.
bool devices_are_counted() {
#ifdef WORKSHOP_BACKEND_CPU
  return std::getenv("WORKSHOP_DEVICE_COUNT") != nullptr;
#else
  return true;
#endif
}

}  // namespace

// Chooses this rank's device. Warns if devices of the node stay idle.
void Job::set_device(const Options& options) {
  int visible = 0;
  const cudaError_t status = cudaGetDeviceCount(&visible);
  if (status != cudaErrorNoDevice) CUDA_CHECK(status);
  const DeviceChoice choice =
      from_environment([&](const Environment& env) { return choose_device(env, ranks_, visible); });
  device_ = choice.device;
  CUDA_CHECK(cudaSetDevice(device_));
  if (choice.shared) let_ranks_share_gpus(ranks_, visible);
  if (options.devices > 0) {
    own_devices_ =
        from_environment([&](const Environment& env) { return devices_of_process(env, options.devices, visible); });
    if (own_devices_ < options.devices) {
      print0("note: %d parts share %d GPU%s: results are correct, memory and times are meaningless\n", options.devices,
             visible, visible == 1 ? "" : "s");
    }
  }
  devices_ = std::min(ranks_.local_world, visible);
  if (!devices_are_counted()) return;
  devices_ = from_environment([&](const Environment& env) { return devices_of_node(env, ranks_, visible); });
  const std::string idle =
      idle_devices(process_environment, ranks_, devices_,
                   ranks_.local_world == ranks_.world ? "this node" : node_name(), options.devices);
  if (ranks_.local_rank == 0 && !idle.empty()) print_error("warning: " + idle + "\n");
}

namespace {

// ---- meeting the other ranks ---------------------------------------------------------------------------------------

#ifdef WORKSHOP_MPI
void start_mpi(const Ranks& ranks) {
  // Makes waiting ranks yield their core to other ranks: without this, an all-reduce takes 1,000 times as long if ranks
  // share cores.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  setenv("HWLOC_COMPONENTS", "-gl,-opencl,-cuda,-nvml,-rsmi", 0);  // detect cores, but not displays and devices
  if (!ranks.by_mpi) {
    // A single process needs neither a daemon nor a session folder, which another process may be cleaning up.
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
  }
  int provided = 0, size = 0;
  {
    std::optional<JoinDeadline> deadline;
    if (ranks.world > 1) deadline.emplace(ranks, from_environment(join_timeout));
    MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
  }
  if (provided < MPI_THREAD_MULTIPLE) fail(kFailed, "this MPI library does not support MPI_THREAD_MULTIPLE");
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  if (size != ranks.world) {
    usage_error("%s announces %d ranks, but MPI started %d; use %s", ranks.launcher.c_str(), ranks.world, size,
                ranks.launcher == "slurm" ? "srun --mpi=pmix" : "mpirun -n");
  }
}
#endif

// Copies the NCCL id of rank 0 to every rank.
void share_id(const Ranks& ranks, [[maybe_unused]] bool with_mpi, ncclUniqueId& id) {
#ifdef WORKSHOP_MPI
  if (with_mpi) {
    MPI_CHECK(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
    return;
  }
#endif
  const std::string bytes = meet_without_mpi(ranks, {reinterpret_cast<const char*>(&id), sizeof id});
  if (bytes.size() != sizeof id) fail(kFailed, "rank 0 uses a different version of NCCL");
  std::memcpy(&id, bytes.data(), sizeof id);
}

ncclComm_t make_world(const Ranks& ranks, bool with_mpi) {
  ncclUniqueId id{};
  if (ranks.rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
  if (ranks.world > 1) share_id(ranks, with_mpi, id);
  ncclComm_t comm = nullptr;
  NCCL_CHECK(ncclCommInitRank(&comm, ranks.world, id, ranks.rank));
  return comm;
}

}  // namespace

std::string meet_without_mpi(const Ranks& ranks, const std::string& message) {
  const MeetingPoint point = from_environment([&](const Environment& env) { return meeting_point(env, ranks.world); });
  try {
    return meet(point, job_key(process_environment), ranks.rank, ranks.world, message);
  } catch (const MeetingFailed& failure) {
    environment_error(kFailed, failure.what());
  }
}

namespace {

// Sets variables that CUDA reads when it starts. Keeps those that the user has set.
void set_cuda_variables() {
  // With fewer hardware queues than streams, work on one stream may wait for a receive on another.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace

Job::Job(const Options& options) : ranks_(process_ranks()) {
#ifdef WORKSHOP_BACKEND_CPU
  cpu::on_mistake([](const char* message) {
    print_error(formatted("%s (rank %d)\n", message, process_ranks().rank));
    // The probes so far may show where the mistake is. (If it is one of order, the message says where.) Another thread
    // reads them, because this one may hold locks that reading needs.
    std::future<void> read;
    if (!std::string_view(message).starts_with("order: ")) {
      read = std::async(std::launch::async, finish_probes, std::chrono::milliseconds(500));
      read.wait_for(std::chrono::seconds(1));
    }
    end_job(kFailed);
  });
#endif
  set_cuda_variables();  // before MPI, which may start CUDA
  if (ranks_.world > 1) answer_roll_call(ranks_);
  start_recording(options, ranks_);
  bool with_mpi = false;
#ifdef WORKSHOP_MPI
  with_mpi = ranks_.by_mpi;
#ifdef WORKSHOP_BACKEND_CPU
  if (ranks_.world > 1 && !with_mpi) {
    environment_error(
        kUsage, formatted("the cpu backend needs mpirun or srun --mpi=pmix to start several ranks; found only %s's "
                          "variables, for %d ranks",
                          ranks_.launcher.c_str(), ranks_.world));
  }
  with_mpi = true;  // this backend's NCCL is built on MPI, even for one rank
#endif
  if (with_mpi) start_mpi(ranks_);
#endif
  set_device(options);
  start_watchdog(ranks_);
  start_launch_log();
  group_ = Group(make_world(ranks_, with_mpi));
  if (!options.record.empty()) make_room_for_probes();  // and open the journal, which rank 0 has claimed by now
  name_communicator(comm(), "world");
  connect_watchdogs(comm());
  require_same_options(options, comm());
  start_clock(comm());
  run_self_tests(options);
}

Job::~Job() {
  if (const std::string place = open_group(); !place.empty()) {
    fail(kFailed, "ncclGroupStart() at %s has no ncclGroupEnd(): none of the calls after it has begun", place.c_str());
  }
  CUDA_CHECK(cudaSetDevice(device_));
  CUDA_CHECK(cudaDeviceSynchronize());
  report_failed_communicators("");
  note_host_without_steps();
  check_launch_order(comm());
  write_record(comm());
#ifdef WORKSHOP_MPI
  // A rank that ends too early waits here instead of in MPI_Finalize: mpirun does not survive an abort there.
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) MPI_CHECK(MPI_Barrier(MPI_COMM_WORLD));
#endif
  NCCL_CHECK(ncclCommDestroy(comm()));
  std::fflush(stdout);
#ifdef WORKSHOP_MPI
#ifdef WORKSHOP_BACKEND_CPU
  // MPI_Finalize would wait for the communication that ncclCommAbort left unfinished.
  if (!cpu::mpi_usable()) MPI_Abort(MPI_COMM_WORLD, 0);
#endif
  if (initialized) MPI_CHECK(MPI_Finalize());
#endif
  stop_watchdog();
  if (end_status() != 0) _exit(end_status());
}

void refuse_launch_blocking(const std::string& schedule) {
  const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (value == nullptr || std::atoi(value) == 0) return;
  environment_error(kUsage, formatted("CUDA_LAUNCH_BLOCKING is '%s'; unset it or set it to 0, because %s enqueues "
                                      "receives before the work that their senders wait for",
                                      value, schedule.c_str()));
}

std::string mpi_version() {
#ifdef WORKSHOP_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_CHECK(MPI_Get_library_version(text, &length));
  const std::string version = text;  // "Open MPI v4.1.4, package: …"
  return version.substr(0, version.find_first_of(",\n"));
#else
  return "no MPI";
#endif
}

}  // namespace workshop
