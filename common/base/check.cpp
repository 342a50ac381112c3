// SPDX-License-Identifier: Apache-2.0
#include "common/base/check.h"

#ifdef WORKSHOP_MPI
#include <mpi.h>
#endif
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <thread>

#include "common/base/failure_hooks.h"
#include "common/base/files.h"
#include "common/base/format.h"
#include "common/base/ranks.h"
#include "common/base/stop_signal.h"

namespace workshop {
namespace {

[[noreturn]] void call_failed(const char* call, const char* file, int line, const std::string& reason) {
  fail(kFailed, "%s failed at %s:%d: %s", call, file, line, reason.c_str());
}

ExitStatus status_at_end{};

// Ends the job if a kernel has come to an open TODO, which has printed its own message. From then on, all calls of CUDA
// return cudaErrorAssert, and those of other libraries fail.
void end_at_open_kernel() {
#ifdef WORKSHOP_BACKEND_CUDA
  if (cudaStreamQuery(nullptr) == cudaErrorAssert) end_job(kTodo);
#endif
}

}  // namespace

void set_end_status(ExitStatus status) { status_at_end = status; }
ExitStatus end_status() { return status_at_end; }

// Under MPI, MPI_Abort() makes the launcher end the other ranks. Other launchers end them when one process fails (srun
// only with --kill-on-bad-exit).
void end_job(int status) {
  if (failure_hooks.job_ends != nullptr) failure_hooks.job_ends();
  std::fflush(stdout);
  std::fflush(stderr);
  release_files();
#ifdef WORKSHOP_MPI
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized && process_ranks().world > 1) {
    // After an abort, Open MPI may drop output that it has not forwarded yet.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    MPI_Abort(MPI_COMM_WORLD, status);
  }
#endif
  _exit(status);
}

void fail(int status, const std::string& message) {
  print_error(formatted("rank %d: %s\n", process_ranks().rank, message.c_str()));
  end_job(status);
}

void fail(int status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail(status, vformatted(format, arguments));
}

constexpr unsigned kPatienceWithRank0 = 10;  // seconds

void end_alike(int status, const std::string& line) {
  release_stop_signals();
  // The first rank to exit ends the whole job, so the others wait for rank 0 to print the message. If rank 0 never gets
  // here, they print it themselves.
  if (process_ranks().rank != 0) sleep(kPatienceWithRank0);
  print_error(line + "\n");
  end_job(status);
}

void fail_alike(int status, const std::string& message) { end_alike(status, "error: " + message); }

void usage_error(const std::string& message) { fail_alike(kUsage, message); }

void usage_error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  usage_error(vformatted(format, arguments));
}

void cuda_failed(cudaError_t status, const char* call, const char* file, int line) {
  end_at_open_kernel();
  call_failed(call, file, line, std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status));
}

void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line) {
  end_at_open_kernel();
  call_failed(call, file, line, std::string(cublasGetStatusName(status)) + ", " + cublasGetStatusString(status));
}

void nccl_failed(ncclResult_t status, const char* call, const char* file, int line) {
  end_at_open_kernel();
  const char* detail = ncclGetLastError(nullptr);
  std::string reason = ncclGetErrorString(status);
  if (detail != nullptr && *detail != '\0') reason += std::string(" (") + detail + ")";
  // If another rank is the cause, the hook names it and ends the job.
  if (failure_hooks.nccl_call_failed != nullptr) {
    failure_hooks.nccl_call_failed(formatted("%s failed at %s:%d: %s", call, file, line, reason.c_str()));
  }
  call_failed(call, file, line, reason);
}

#ifdef WORKSHOP_MPI
void mpi_failed(int status, const char* call, const char* file, int line) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  call_failed(call, file, line, text);
}
#endif

}  // namespace workshop
