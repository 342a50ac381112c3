#include "common/watchdog/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "common/device.h"
#include "common/watchdog/note_exchange.h"
#include "common/record/recorder.h"
#include "common/run/roll_call.h"
#include "common/watchdog/verdict.h"

namespace workshop {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using namespace std::chrono_literals;

constexpr auto kTick = 100ms;           // between two looks
constexpr auto kSuspended = 2s;         // without a look
constexpr auto kLastLines = 3s;         // for all ranks to say their line
constexpr auto kAfterError = 1s;        // to wait for a communicator that has failed
constexpr int kSlowFiles = 10;          // times the timeout
constexpr std::uint64_t kCalls = 1024;  // as many are watched at a time
constexpr std::uint64_t kTold = 8;      // calls before the first that has not completed, and from it on

// ---- the log of calls ----------------------------------------------------------------------------------------------

struct Communicator {
  ncclComm_t handle = nullptr;  // null once it is gone
  std::uint64_t id = 0;
  std::string name;
  int rank = 0;
  std::int64_t collectives = 0;
  std::map<std::pair<bool, int>, std::int64_t> messages;  // sent to, and received from, each peer
};

struct Call {
  enum State { issuing, enqueued, completed };
  State state;
  const char* operation;
  Communicator* communicator;
  std::int64_t number;
  std::uint64_t count;
  int type, peer;
  const CallSite* site;
  std::uint64_t end;            // the call whose event tells that this one has completed
  cudaEvent_t event = nullptr;  // made for the first call in this place of the ring
};

// A ring: the calls [head, tail) have not completed; those before head are remembered until their place is taken. A
// call that finds no place is not watched: the ones before it tell enough.
struct Log {
  std::mutex mutex;
  std::map<std::uint64_t, Communicator> communicators;  // by id
  std::map<ncclComm_t, Communicator*> open;
  std::array<Call, kCalls> calls;
  std::uint64_t head = 0, tail = 0;
  Call& at(std::uint64_t index) { return calls[index % kCalls]; }
};

struct Watchdog {
  Seconds timeout{0};
  std::atomic<bool> slow_files = false;
  Ranks ranks;
  Log log;
  std::thread thread, asker;
  std::atomic<std::uint64_t> rounds = 0;              // of the asker
  std::atomic<bool> stopping = false;                 // the job has come, or comes, to its end
  std::atomic<const std::string*> failure = nullptr;  // what the program has found
  NoteExchange others;
};

// Never destroyed: a program that calls exit() leaves the thread running.
Watchdog& watchdog() {
  static Watchdog& watchdog = *new Watchdog;
  return watchdog;
}

bool watching() { return watchdog().timeout.count() > 0; }

// Has this call completed? The event tells.
struct Question {
  std::uint64_t index;
  cudaEvent_t event;
};

// Moves the head of the log, and returns the question about the first enqueued call from `first` on; none after the
// last call of interest.
std::optional<Question> next_question(std::uint64_t first) {
  Log& log = watchdog().log;
  const std::lock_guard lock(log.mutex);
  while (log.head < log.tail && log.at(log.head).state == Call::completed) ++log.head;
  for (auto index = std::max(first, log.head); index < std::min(log.tail, log.head + kTold); ++index) {
    const Call& call = log.at(index);
    if (call.state == Call::enqueued) return Question{index, log.at(call.end).event};
  }
  return std::nullopt;
}

// Asks the device which calls have completed. Without the mutex of the log: where the program is blocked in a launch,
// the driver may hold a lock that the question needs, and no answer comes before the program gets on.
void note_completed_calls() {
  Log& log = watchdog().log;
  std::uint64_t first = 0;
  while (const auto question = next_question(first)) {
    first = question->index + 1;
    if (cudaEventQuery(question->event) != cudaSuccess) continue;
    const std::lock_guard lock(log.mutex);
    if (question->index >= log.head) log.at(question->index).state = Call::completed;
  }
  cudaGetLastError();  // "not ready" was an answer
}

// In a thread of its own, so that a question without an answer delays nothing else: to the watchdog it is a call that has
// not completed.
void ask_device(int device) {
  cudaSetDevice(device);
  while (!watchdog().stopping) {
    note_completed_calls();
    ++watchdog().rounds;
    std::this_thread::sleep_for(kTick);
  }
}

// Waits until the asker has begun and ended a round; not for long, because it may have no answer.
void wait_for_fresh_answers() {
  const std::uint64_t now = watchdog().rounds;
  for (int waits = 0; waits < 30 && watchdog().rounds < now + 2; ++waits) std::this_thread::sleep_for(kTick / 10);
}

Communicator* find_communicator(ncclComm_t comm) {
  const auto found = watchdog().log.open.find(comm);
  return found == watchdog().log.open.end() ? nullptr : found->second;
}

// ---- what is stuck -------------------------------------------------------------------------------------------------

bool starts_communication(std::string_view call) {
  return call.starts_with("nccl") || call.starts_with("pnccl") || call.starts_with("MPI_");
}

// Something that changes while the rank gets on, and since when it has not. Time in which the rank was suspended, so
// that nobody looked, does not count.
class Progress {
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

// With the mutex of the log.
std::string communicator_error() {
  for (const auto& [handle, communicator] : watchdog().log.open) {
    ncclResult_t error = ncclSuccess;
    pncclCommGetAsyncError(handle, &error);
    if (error == ncclSuccess || error == ncclInProgress) continue;
    const char* detail = pncclGetLastError(handle);
    return "communicator '" + communicator->name + "': " + pncclGetErrorString(error) +
           (detail != nullptr && *detail != '\0' ? std::string(" (") + detail + ")" : "");
  }
  return "";
}

// Looks at this rank every tick.
class Observer {
 public:
  // True where the rank has waited for other ranks in the same call for too long.
  bool sees_stuck_rank() {
    const Seconds waited = look();
    const Seconds timeout = watchdog().timeout * (watchdog().slow_files ? kSlowFiles : 1);
    return waited > (error_.empty() ? timeout : std::min<Seconds>(timeout, kAfterError));
  }
  // For how long it has waited for anything.
  Seconds unchanged() const { return unchanged_; }
  // Of a communicator, at the last look.
  const std::string& error() const { return error_; }

 private:
  // For how long the rank has waited for other ranks in the same call.
  Seconds look() {
    Log& log = watchdog().log;
    const std::lock_guard lock(log.mutex);
    const CallSite* site = InCall::current();
    const Seconds call = first_.unchanged(log.head < log.tail, log.head);
    const Seconds program = program_.unchanged(site != nullptr, InCall::number());
    error_ = communicator_error();
    unchanged_ = std::max(call, program);
    return site != nullptr && starts_communication(site->text) ? unchanged_ : call;
  }

  Progress first_, program_;
  Seconds unchanged_{0};
  std::string error_;
};

// The folder and the name of a file are enough.
std::string place(const CallSite* site) {
  if (site == nullptr || site->line == 0) return "";
  const std::string_view path = site->file;
  std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos && slash > 0) slash = path.rfind('/', slash - 1);
  return std::string(path.substr(slash == std::string_view::npos ? 0 : slash + 1)) + ":" + std::to_string(site->line);
}

std::string type_name(int type) {
  static constexpr const char* kNames[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                           "uint64", "float16", "float32", "float64", "bfloat16"};
  return type >= 0 && type < static_cast<int>(std::size(kNames)) ? kNames[type] : "";
}

Note make_note(Seconds stuck, const std::string& error) {
  Log& log = watchdog().log;
  const std::lock_guard lock(log.mutex);
  Note note{watchdog().ranks.rank, stuck.count(), "", "", error, {}, {}};
  if (const CallSite* site = InCall::current()) {
    note.in_call = site->text;
    note.in_place = place(site);
  }
  const std::uint64_t kept = log.tail < kCalls ? 0 : log.tail - kCalls;
  const std::uint64_t first = log.head < kept + kTold ? kept : log.head - kTold;
  for (std::uint64_t index = first; index < std::min(log.tail, log.head + kTold); ++index) {
    const Call& call = log.at(index);
    note.calls.push_back({call.operation, call.communicator->name, call.communicator->id, call.number, call.count,
                          type_name(call.type), call.peer, place(call.site), call.state == Call::completed});
  }
  for (const auto& [id, communicator] : log.communicators) {
    note.communicators.push_back({id, communicator.rank, communicator.collectives});
  }
  return note;
}

// ---- the end -------------------------------------------------------------------------------------------------------

[[noreturn]] void abort_communicators() {
  // Aborting may itself not come to an end.
  std::signal(SIGALRM, [](int) { _exit(kStuck); });
  alarm(5);
  for (const auto& [handle, communicator] : watchdog().log.open) pncclCommAbort(handle);
  // All ranks end so. MPI_Abort would clean up, in memory that calls which did not fit
  // together may have destroyed.
  _exit(kStuck);
}

// Whether notes still come in. A rank that was stopped meanwhile finds old ones: it is woken up only to be ended.
bool others_are_waiting() {
  while (watchdog().others.receive(0ms)) {
  }
  return watchdog().others.receive(3 * kTick).has_value();
}

// Every rank that is able to says where it is; the lowest of them says what is wrong.
[[noreturn]] void end_stuck_job(Seconds stuck, const std::string& error) {
  InCall::hold();
  const Note mine = make_note(stuck, error);
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", describe(mine).c_str());
  std::vector<Note> notes;
  for (const auto& [rank, note] : watchdog().others.exchange(mine)) notes.push_back(note);
  const bool connected = watchdog().others.connected();
  const bool first = connected ? notes[0].rank == mine.rank : first_of_job();
  // Who ends first takes the others along: all should have said their line by then, and the first of them the verdict.
  std::this_thread::sleep_for(first ? 200ms : kLastLines);
  if (first) {
    const std::string verdict = connected ? find_verdict(notes, watchdog().ranks.world)
                                          : "missing rank: not all of the job's ranks came to this call; " +
                                                call_roll(watchdog().ranks);
    std::fprintf(stderr, "verdict: %s\n", verdict.c_str());
  }
  abort_communicators();
}

void watch(int device) {
  cudaSetDevice(device);
  Observer observer;
  while (!watchdog().stopping) {
    const bool called = watchdog().others.receive(kTick) && others_are_waiting();
    const std::string* failure = watchdog().failure;
    if (!called && failure == nullptr && !observer.sees_stuck_rank()) continue;
    wait_for_fresh_answers();
    if (watchdog().stopping) return;
    const bool still_stuck = observer.sees_stuck_rank();
    if (failure != nullptr) end_stuck_job(observer.unchanged(), *failure);
    if (called || still_stuck) end_stuck_job(observer.unchanged(), observer.error());
  }
}

[[noreturn]] void leave_to_the_watchdog(const std::string& failure) {
  watchdog().failure = new std::string(failure);
  for (;;) pause();
}

// For exit() in the middle of a job, which the other ranks would not notice.
void report_exit() {
  if (watchdog().stopping) return;
  static constexpr CallSite site = {"exit()", "", 0};
  const InCall in_call(site);
  leave_to_the_watchdog("the program ends before its job");
}

Seconds read_timeout() {
  const char* text = std::getenv("WORKSHOP_TIMEOUT");
  if (text == nullptr || *text == '\0') return 60s;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds >= 0) || !(seconds < 1e6)) {
    usage_error(std::string("WORKSHOP_TIMEOUT is '") + text + "'; expected seconds, or 0 for no deadline");
  }
  return Seconds(seconds);
}

}  // namespace

void InCall::wait_for_the_end() {
  for (;;) pause();
}

void start_watchdog(const Ranks& ranks) {
  const Seconds timeout = read_timeout();
  if (ranks.world == 1) return;
  watchdog().ranks = ranks;
  watchdog().timeout = timeout;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  if (!watching()) return;
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
  std::vector<Introduction> all(w.ranks.world);
  all[w.ranks.rank].timeout = w.timeout.count();
  if (watching()) all[w.ranks.rank].address = w.others.open(w.ranks);
  const Stream stream;
  Introduction* device = nullptr;  // not a DeviceBuffer: it is no memory of the program
  const std::size_t bytes = all.size() * sizeof(Introduction);
  CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&device), bytes));
  CUDA_CHECK(cudaMemcpyAsync(device, all.data(), bytes, cudaMemcpyHostToDevice, stream));
  NCCL_CHECK(pncclAllGather(device + w.ranks.rank, device, sizeof(Introduction), ncclChar, world, stream));
  CUDA_CHECK(cudaMemcpyAsync(all.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
  // The job's first data on its way: where the network does not let it through, this is where it ends.
  static constexpr CallSite site = {"ncclAllGather, the job's first", __FILE__, __LINE__};
  {
    const InCall in_call(site);
    cudaStreamSynchronize(stream);
  }
  stream.synchronize();
  CUDA_CHECK(cudaFree(device));
  for (int rank = 0; rank < w.ranks.world; ++rank) {
    if (all[rank].timeout == all[0].timeout) continue;
    std::ostringstream what;
    what << "WORKSHOP_TIMEOUT is " << all[0].timeout << " on rank 0 and " << all[rank].timeout << " on rank " << rank
         << "; expected the same everywhere (mpirun -x WORKSHOP_TIMEOUT)";
    usage_error(what.str());
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
  std::string of_communicator;
  {
    const std::lock_guard lock(watchdog().log.mutex);
    of_communicator = communicator_error();
  }
  if (of_communicator.empty()) return;
  leave_to_the_watchdog(error.empty() ? of_communicator : error);
}

// ---- what the ledger tells -----------------------------------------------------------------------------------------

void watch_communicator(ncclComm_t comm, std::uint64_t id, const std::string& name) {
  if (!watching()) return;
  int rank = 0;
  NCCL_CHECK(pncclCommUserRank(comm, &rank));
  Log& log = watchdog().log;
  const std::lock_guard lock(log.mutex);
  Communicator& communicator = log.communicators[id];
  communicator.handle = comm;
  communicator.id = id;
  communicator.name = name;
  communicator.rank = rank;
  log.open[comm] = &communicator;
}

void rename_watched(ncclComm_t comm, const std::string& name) {
  if (!watching()) return;
  const std::lock_guard lock(watchdog().log.mutex);
  if (Communicator* communicator = find_communicator(comm)) communicator->name = name;
}

void forget_communicator(ncclComm_t comm) {
  if (!watching()) return;
  const std::lock_guard lock(watchdog().log.mutex);
  watchdog().log.open.erase(comm);
}

WatchedCall begin_call(const char* operation, std::size_t count, int type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  if (!watching()) return {};
  Log& log = watchdog().log;
  std::unique_lock lock(log.mutex);
  Communicator* communicator = find_communicator(comm);
  if (communicator == nullptr) return {};
  const std::string_view name = operation;
  const bool sends = name == "ncclSend", receives = name == "ncclRecv";
  std::int64_t& calls = sends || receives ? communicator->messages[{sends, peer}] : communicator->collectives;
  ++calls;
  if (log.tail - log.head == kCalls) {
    lock.unlock();
    note_completed_calls();
    lock.lock();
  }
  if (log.tail - log.head == kCalls) return {};
  const std::uint64_t index = log.tail++;
  cudaEvent_t event = log.at(index).event;
  log.at(index) = {Call::issuing, operation, communicator, calls, count, type, peer, InCall::current(), index, event};
  return {static_cast<std::int64_t>(index), stream};
}

void calls_enqueued(std::span<const WatchedCall> calls) {
  // One event tells for all calls of a group on the same stream: that behind the last of them.
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (call->index < 0) continue;
    const auto last = std::find_if(calls.rbegin(), call,
                                   [&](auto& other) { return other.index >= 0 && other.stream == call->stream; });
    Call& entry = watchdog().log.at(call->index);
    if (last == call) {
      // Without the mutex: it may wait for room in the stream, and nobody else touches this event before the end.
      if (entry.event == nullptr) CUDA_CHECK(cudaEventCreateWithFlags(&entry.event, cudaEventDisableTiming));
      CUDA_CHECK(cudaEventRecord(entry.event, call->stream));
    }
    const std::lock_guard lock(watchdog().log.mutex);
    entry.end = last->index;
    entry.state = Call::enqueued;
  }
}

void call_ended(const WatchedCall& call) {
  if (call.index < 0) return;
  const std::lock_guard lock(watchdog().log.mutex);
  watchdog().log.at(call.index).state = Call::completed;
}

std::uint64_t id_of_split(const WatchedCall& call, int color) {
  if (call.index < 0) return 0;
  const std::lock_guard lock(watchdog().log.mutex);
  const Call& split = watchdog().log.at(call.index);
  return std::hash<std::string>()(std::to_string(split.communicator->id) + " " + std::to_string(split.number) + " " +
                                  std::to_string(color));
}

}  // namespace workshop
