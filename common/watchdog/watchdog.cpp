// SPDX-License-Identifier: Apache-2.0
#include "common/watchdog/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/failure_hooks.h"
#include "common/base/files.h"
#include "common/base/format.h"
#include "common/base/place.h"
#include "common/base/roll_call.h"
#include "common/base/stop_signal.h"
#include "common/device/device.h"
#include "common/nccl/gather.h"
#include "common/nccl/nccl_calls.h"
#include "common/watchdog/call_log.h"
#include "common/watchdog/note_exchange.h"
#ifdef WORKSHOP_BACKEND_CPU
#include <workshop_cpu.h>
#endif

namespace workshop {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using namespace std::chrono_literals;

constexpr auto kTick = 100ms;     // between two checks
constexpr auto kSuspended = 2s;   // a longer gap between checks means that the rank was suspended
constexpr auto kLastLines = 3s;   // for all ranks to print their lines
constexpr auto kAfterError = 1s;  // timeout after a communicator has failed
constexpr int kSlowFiles = 10;    // factor of the timeout

struct Watchdog {
  Seconds timeout{0};
  std::atomic<bool> slow_files = false;
  Ranks ranks;
  CallLog log;
  std::thread thread, asker;
  std::atomic<std::uint64_t> rounds = 0;              // completed by `asker`
  std::atomic<bool> stopping = false;                 // the job is ending or has ended
  std::atomic<const std::string*> failure = nullptr;  // reported by the program
  NoteExchange others;
};

// Never destroyed, because the threads keep running if the program calls exit().
Watchdog& watchdog() {
  static Watchdog& watchdog = *new Watchdog;
  return watchdog;
}

bool watching() { return watchdog().timeout.count() > 0; }

// Runs in a separate thread, so that a query that does not return delays nothing else. If one does not return, the
// NCCL calls count as not completed.
void ask_device(int device) {
  cudaSetDevice(device);
  while (!watchdog().stopping) {
    watchdog().log.ask_device();
    ++watchdog().rounds;
    std::this_thread::sleep_for(kTick);
  }
}

// Waits until `asker` has begun and completed a round, but only for a short time, because its query may not return.
void wait_for_fresh_answers() {
  const std::uint64_t now = watchdog().rounds;
  for (int waits = 0; waits < 30 && watchdog().rounds < now + 2; ++waits) std::this_thread::sleep_for(kTick / 10);
}

// ---- finding a stuck rank ------------------------------------------------------------------------------------------

bool starts_communication(std::string_view call) {
  return call.starts_with("nccl") || call.starts_with("pnccl") || call.starts_with("MPI_");
}

// Watches a value that changes while the rank makes progress: measures how long it has not changed. Time in which the
// rank was suspended, so that this thread did not check either, does not count.
class Standstill {
 public:
  Seconds unchanged(bool waiting, std::uint64_t value) {
    const auto now = Clock::now();
    if (!waiting || value != value_) {
      since_ = now;
    } else if (now - seen_ > kSuspended) {
      since_ += now - seen_;
    }
    seen_ = now;
    value_ = value;
    return now - since_;
  }

 private:
  std::uint64_t value_ = 0;
  Clock::time_point since_ = Clock::now(), seen_ = since_;
};

std::string communicator_error() {
  const std::lock_guard lock(communicators().mutex);
  for (const auto& [handle, communicator] : communicators().open) {
    ncclResult_t error = ncclSuccess;
    pncclCommGetAsyncError(handle, &error);
    if (error == ncclSuccess || error == ncclInProgress) continue;
    const char* detail = pncclGetLastError(handle);
    return "communicator '" + communicator->name + "': " + pncclGetErrorString(error) +
           (detail != nullptr && *detail != '\0' ? std::string(" (") + detail + ")" : "");
  }
  return "";
}

// Checks this rank. Call every tick.
class Lookout {
 public:
  // Returns whether the rank has waited for other ranks in the same call for too long.
  bool sees_stuck_rank() {
    const Seconds waited = look();
    const Seconds timeout = watchdog().timeout * (watchdog().slow_files ? kSlowFiles : 1);
    return waited > (error_.empty() ? timeout : std::min<Seconds>(timeout, kAfterError));
  }
  // How long the rank has waited in the same call, whatever it waits for.
  Seconds unchanged() const { return unchanged_; }
  // The error of a communicator at the last check; empty if there was none.
  const std::string& error() const { return error_; }

 private:
  // Returns how long the rank has waited for other ranks in the same call.
  Seconds look() {
    const auto pending = watchdog().log.first_pending();
    const CallSite* site = InCall::current();
    const Seconds call = first_.unchanged(pending.has_value(), pending.value_or(0));
    const Seconds program = program_.unchanged(site != nullptr, InCall::number());
    error_ = communicator_error();
    unchanged_ = std::max(call, program);
    return site != nullptr && starts_communication(site->text) ? unchanged_ : call;
  }

  Standstill first_, program_;
  Seconds unchanged_{0};
  std::string error_;
};

Note make_note(Seconds stuck, const std::string& error) {
  Note note{watchdog().ranks.rank, stuck.count(), "", "", error, {}, {}};
  if (const CallSite* site = InCall::current()) {
    note.in_call = site->text;
    note.in_place = place(site);
  }
  watchdog().log.describe(note);
  return note;
}

// ---- ending the job ------------------------------------------------------------------------------------------------

[[noreturn]] void abort_communicators() {
  // The calls of pncclCommAbort() may hang, too.
  std::signal(SIGALRM, [](int) { _exit(kStuck); });
  alarm(5);
  release_files();
  for (const auto& [handle, communicator] : communicators().open) pncclCommAbort(handle);
  // Every rank ends this way. MPI_Abort would run clean-up code on memory that mismatched calls may have corrupted.
  _exit(kStuck);
}

// Returns whether notes are still arriving. Old ones do not count: a rank that was stopped finds them when it is
// continued, but it is continued only in order to be ended.
bool others_are_waiting() {
  while (watchdog().others.receive(0ms)) {
  }
  return watchdog().others.receive(3 * kTick).has_value();
}

// Prints what this rank waits in; the lowest rank that can still do so also prints the verdict.
[[noreturn]] void end_stuck_job(Seconds stuck, const std::string& error) {
  release_stop_signals();
  InCall::hold();
  const Note mine = make_note(stuck, error);
  std::fflush(stdout);
  print_error(describe(mine) + "\n");
  std::vector<Note> notes;
  for (const auto& [rank, note] : watchdog().others.exchange(mine)) notes.push_back(note);
  const bool connected = watchdog().others.connected();
  const bool first = connected ? notes[0].rank == mine.rank : first_of_job();
  // The first rank to end takes the others with it. Before that, all should have printed their lines, and the lowest
  // the verdict.
  std::this_thread::sleep_for(first ? 200ms : kLastLines);
  if (first) {
    const std::string verdict =
        connected ? find_verdict(notes, watchdog().ranks.world)
                  : "missing rank: not all ranks of the job reached this call; " + call_roll(watchdog().ranks);
    print_error("verdict: " + verdict + "\n");
  }
  abort_communicators();
}

void watch(int device) {
  cudaSetDevice(device);
  Lookout lookout;
  while (!watchdog().stopping) {
    const bool called = watchdog().others.receive(kTick) && others_are_waiting();
    const std::string* failure = watchdog().failure;
    if (!called && failure == nullptr && !lookout.sees_stuck_rank()) continue;
    wait_for_fresh_answers();
    if (watchdog().stopping) return;
    const bool still_stuck = lookout.sees_stuck_rank();
    if (failure != nullptr) end_stuck_job(lookout.unchanged(), *failure);
    if (called || still_stuck) end_stuck_job(lookout.unchanged(), lookout.error());
  }
}

[[noreturn]] void leave_to_the_watchdog(const std::string& failure) {
  watchdog().failure = new std::string(failure);
  for (;;) pause();
}

// Handles exit() in the middle of a job, which the other ranks would not notice.
void report_exit() {
  if (watchdog().stopping) return;
  static constexpr CallSite site = {"exit()", "", 0};
  const InCall in_call(site);
  leave_to_the_watchdog("the program exits before its job ends");
}

Seconds read_timeout() {
  const char* text = std::getenv("WORKSHOP_TIMEOUT");
  if (text == nullptr || *text == '\0') return 60s;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds >= 0) || !(seconds < 1e6)) {
    usage_error("WORKSHOP_TIMEOUT is '%s'; expected seconds, or 0 for no deadline", text);
  }
  return Seconds(seconds);
}

}  // namespace

void start_watchdog(const Ranks& ranks) {
  const Seconds timeout = read_timeout();
  if (ranks.world == 1) return;
  watchdog().ranks = ranks;
  watchdog().timeout = timeout;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  if (!watching()) return;
  failure_hooks = {.job_ends = dismiss_watchdog, .nccl_call_failed = report_failed_communicators};
#ifdef WORKSHOP_BACKEND_CPU
  cpu::looks_after_program("/common/watchdog/");
#endif
  observe_calls(watchdog().log);
  watchdog().thread = std::thread(watch, device);
  watchdog().asker = std::thread(ask_device, device);
  std::atexit(report_exit);
}

void connect_watchdogs(ncclComm_t world) {
  Watchdog& w = watchdog();
  if (w.ranks.world == 1) return;
  struct Introduction {
    double timeout;  // [s]
    NoteExchange::Address address;
  };
  Introduction mine{w.timeout.count(), {}};
  if (watching()) mine.address = w.others.open(w.ranks);
  {
    const std::lock_guard lock(communicators().mutex);
    // The next collective gets number 0, so that the program's first one gets number 1.
    communicators().open.at(world)->collectives = -1;
  }
  // The job's first transfer. If the network does not let data through, the job hangs and ends here.
  const std::vector<Introduction> all = gather_values(mine, world, Stream());
  for (int rank = 0; rank < w.ranks.world; ++rank) {
    if (all[rank].timeout == all[0].timeout) continue;
    usage_error(
        "WORKSHOP_TIMEOUT is %g on rank 0 and %g on rank %d; expected the same value everywhere "
        "(mpirun -x WORKSHOP_TIMEOUT)",
        all[0].timeout, all[rank].timeout, rank);
  }
  if (!watching()) return;
  std::vector<NoteExchange::Address> addresses;
  for (const Introduction& rank : all) addresses.push_back(rank.address);
  w.others.connect(w.ranks.rank, addresses);
}

void stop_watchdog() {
  if (!watching()) return;
  watchdog().stopping = true;
  watchdog().thread.join();
  watchdog().asker.join();
}

void dismiss_watchdog() { watchdog().stopping = true; }

SlowFiles::SlowFiles() { watchdog().slow_files = true; }
SlowFiles::~SlowFiles() { watchdog().slow_files = false; }

void report_failed_communicators(const std::string& error) {
  if (!watching()) return;
  const std::string of_communicator = communicator_error();
  if (of_communicator.empty()) return;
  leave_to_the_watchdog(error.empty() ? of_communicator : error);
}

}  // namespace workshop
