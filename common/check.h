// SPDX-License-Identifier: Apache-2.0
// Error checks. Each macro evaluates a call once; if it failed, one line with the expression, file:line, rank and the
// library's own message is printed and the whole job ends with status 1: a rank that carried on alone would leave the
// others waiting in their next collective forever.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace workshop {

// Exit statuses of every program of the workshop.
enum ExitStatus : int {
  kFailed = 1,  // an error while running
  kUsage = 2,   // bad options or a bad environment
  kTodo = 77,   // a TODO that is not filled in yet (CTest counts it as skipped)
  kStuck = 86,  // the ranks wait for each other in vain
};

// A call in the source of the program.
struct CallSite {
  const char* text;
  const char* file;
  int line;
};

// Notes for the watchdog (common/watchdog/watchdog.h) that the program is in a call, as long as this object lives. A
// program makes its calls from one thread; calls from others at the same time are noted one over the other.
class InCall {
 public:
  explicit InCall(const CallSite& site) : outer_(current_.load(std::memory_order_relaxed)) { enter(&site); }
  ~InCall() { enter(outer_); }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

  // Where the program is; null where it is in no call. The number changes whenever that does.
  static const CallSite* current() { return current_.load(std::memory_order_relaxed); }
  static std::uint64_t number() { return number_.load(std::memory_order_relaxed); }

  // Lets the program run into no further call and out of none: the job ends.
  static void hold() { held_.store(true, std::memory_order_relaxed); }

 private:
  static void enter(const CallSite* site) {
    if (held_.load(std::memory_order_relaxed)) wait_for_the_end();
    current_.store(site, std::memory_order_relaxed);
    number_.store(number() + 1, std::memory_order_relaxed);
  }
  [[noreturn]] static void wait_for_the_end();

  static inline std::atomic<const CallSite*> current_ = nullptr;
  static inline std::atomic<std::uint64_t> number_ = 0;
  static inline std::atomic<bool> held_ = false;
  const CallSite* outer_;
};

// Ends every rank of the job with `status`, at once and without clean-up: work in flight may never finish.
[[noreturn]] void end_job(int status);

// Prints "rank R: message" on stderr and ends every rank of the job with `status`. These take a text, or what printf
// takes.
[[noreturn]] void fail(int status, const std::string& message);
[[noreturn, gnu::format(printf, 2, 3)]] void fail(int status, const char* format, ...);

// What every rank finds alike: rank 0 prints "error: message", all ranks end with `status`.
[[noreturn]] void fail_alike(int status, const std::string& message);

// Bad input that every rank sees alike: fail_alike with status 2.
[[noreturn]] void usage_error(const std::string& message);
[[noreturn, gnu::format(printf, 1, 2)]] void usage_error(const char* format, ...);

[[noreturn]] void cuda_failed(cudaError_t status, const char* call, const char* file, int line);
[[noreturn]] void cublas_failed(cublasStatus_t status, const char* call, const char* file, int line);
[[noreturn]] void nccl_failed(ncclResult_t status, const char* call, const char* file, int line);
#ifdef WORKSHOP_MPI
[[noreturn]] void mpi_failed(int status, const char* call, const char* file, int line);
#endif

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
