// SPDX-License-Identifier: Apache-2.0
// Error checks. Each macro evaluates a call once. If the call fails, the macro prints one line with the expression,
// file:line, rank and the library's message, and ends the whole job with status 1: if only this rank ended, the others
// would wait in their next collective forever.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <string>

#include "common/base/in_call.h"

namespace workshop {

// Exit statuses of every program of the workshop.
enum ExitStatus : int {
  kFailed = 1,  // an error while running
  kUsage = 2,   // bad options or a bad environment
  kSaved = 75,  // a signal has asked the run to stop: it has saved a checkpoint and can be started again
  kTodo = 77,   // a TODO that is not filled in yet (CTest counts it as skipped)
  kStuck = 86,  // the ranks wait for each other in vain
};

// Ends every rank of the job with `status`, immediately and without clean-up, because work in flight may never finish.
[[noreturn]] void end_job(int status);

// From now on, Job's destructor ends the process with this status, whatever main() returns.
void set_end_status(ExitStatus status);
ExitStatus end_status();  // 0 if none was set

// Prints "rank R: message" on stderr and ends every rank of the job with `status`. Takes a text or printf's arguments.
[[noreturn]] void fail(int status, const std::string& message);
[[noreturn, gnu::format(printf, 2, 3)]] void fail(int status, const char* format, ...);

// For errors that every rank finds: rank 0 prints the line, and all ranks end with `status`.
[[noreturn]] void end_alike(int status, const std::string& line);
// The same with the line "error: message".
[[noreturn]] void fail_alike(int status, const std::string& message);

// For bad input that every rank sees: fail_alike() with status 2.
[[noreturn]] void usage_error(const std::string& message);
[[noreturn, gnu::format(printf, 1, 2)]] void usage_error(const char* format, ...);

[[noreturn]] void cuda_failed(cudaError_t status, const char* call, const char* file, int line);
[[noreturn]] void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line);
[[noreturn]] void nccl_failed(ncclResult_t status, const char* call, const char* file, int line);
[[noreturn]] void mpi_failed(int status, const char* call, const char* file, int line);  // only if built with MPI

}  // namespace workshop

#define WORKSHOP_CHECK(call, type, ok, failed)                               \
  do {                                                                       \
    static constexpr workshop::CallSite site_ = {#call, __FILE__, __LINE__}; \
    const type status_ = (workshop::InCall(site_), (call));                  \
    if (status_ != ok) workshop::failed(status_, #call, __FILE__, __LINE__); \
  } while (0)

#define CUDA_CHECK(call) WORKSHOP_CHECK(call, cudaError_t, cudaSuccess, cuda_failed)
#define CUBLAS_CHECK(call) WORKSHOP_CHECK(call, cublasStatus_t, CUBLAS_STATUS_SUCCESS, cublas_failed)
#define NCCL_CHECK(call) WORKSHOP_CHECK(call, ncclResult_t, ncclSuccess, nccl_failed)
#define MPI_CHECK(call) WORKSHOP_CHECK(call, int, MPI_SUCCESS, mpi_failed)
