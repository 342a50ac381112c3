// SPDX-License-Identifier: Apache-2.0
#include "common/base/roll_call.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <vector>

#include "common/base/check.h"
#include "common/base/environment.h"
#include "common/base/format.h"

namespace workshop {
namespace {

using namespace std::chrono_literals;

// ---- names in the abstract socket namespace ------------------------------------------------------------------------

struct Name {
  sockaddr_un address{};
  socklen_t size;

  // Keeps the end of a name that is too long, because the end tells the ranks apart.
  explicit Name(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data() + name.size() - length, length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// Takes a name for this process. Returns false if another process has it. The name vanishes with the process and leaves
// no file behind.
bool take_name(const std::string& text) {
  const Name name(text);
  const int owner = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(owner, name.get(), name.size) == 0 && listen(owner, SOMAXCONN) == 0) return true;
  close(owner);
  return false;
}

// Returns the process of this user that has taken the name; -1 if no process has, 0 if it is in a pid namespace that
// is not visible from here.
pid_t owner_of(const std::string& text) {
  const Name name(text);
  const int question = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ucred owner{};
  socklen_t size = sizeof owner;
  const bool taken = connect(question, name.get(), name.size) == 0 &&
                     getsockopt(question, SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0 && owner.uid == getuid();
  close(question);
  return taken ? owner.pid : -1;
}

// Returns a text that all ranks of the job on this node share, and no other job; empty if no launcher started this
// process.
std::string job_on_this_node() {
  std::string job = job_name(process_environment);
  for (const char* name : {"PMIX_SERVER_TMPDIR", "PMIX_NAMESPACE", "SLURM_STEP_ID", "MASTER_PORT"}) {
    if (const char* value = std::getenv(name)) job += std::string("-") + value;
  }
  return job;
}

std::string of_this_job(const std::string& what) {
  return std::to_string(getuid()) + "-workshop-" + job_on_this_node() + "-" + what;
}

std::string name_of(int rank) { return of_this_job("rank-" + std::to_string(rank)); }

bool name_taken = false;  // by this process

// ---- roll call -----------------------------------------------------------------------------------------------------

bool is_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), {});
  const std::size_t state = stat.rfind(") ");  // the last one: the program's name before it may contain ") "
  return state != std::string::npos && state + 2 < stat.size() && (stat[state + 2] == 'T' || stat[state + 2] == 't');
}

struct Roll {
  std::vector<int> started, stopped, absent;
};

Roll roll_of_this_node(const Ranks& ranks) {
  Roll roll;
  for (int rank = 0; rank < ranks.world; ++rank) {
    const pid_t process = rank == ranks.rank ? getpid() : owner_of(name_of(rank));
    (process >= 0 ? roll.started : roll.absent).push_back(rank);
    if (is_stopped(process)) roll.stopped.push_back(rank);
  }
  return roll;
}

std::string started(const Roll& roll, const Ranks& ranks) {
  if (roll.absent.empty()) return "all " + std::to_string(ranks.world) + " ranks have started";
  if (ranks.local_world == ranks.world) {
    return list_of_ranks(roll.absent) + (roll.absent.size() == 1 ? " has" : " have") + " not started";
  }
  const bool all = static_cast<int>(roll.started.size()) >= ranks.local_world;
  return (all ? "all" : std::to_string(roll.started.size()) + " of") + " the " + std::to_string(ranks.local_world) +
         " ranks of " + node_name() + " have started, " + list_of_ranks(roll.started) +
         (all ? "; ranks of other nodes are missing" : "");
}

[[noreturn]] void end_start(const Ranks& ranks, int seconds) {
  if (first_of_job()) {
    print_error(formatted("error: MPI_Init took longer than %d s (WORKSHOP_JOIN_TIMEOUT): %s\n", seconds,
                          call_roll(ranks).c_str()));
  }
  // The first process to exit ends the whole job, so give every node time to print its line.
  std::this_thread::sleep_for(ranks.local_world == ranks.world ? 500ms : 3s);
  _exit(kFailed);
}

}  // namespace

bool first_of_job() {
  // Prefer a file in mpirun's folder for the job: it outlives the first rank, so a late rank sees it, too.
  const char* folder = std::getenv("PMIX_SERVER_TMPDIR");
  const char* name_space = std::getenv("PMIX_NAMESPACE");
  if (folder != nullptr && name_space != nullptr) {
    const std::string path = std::string(folder) + "/workshop-first-" + name_space;
    const int file = open(path.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0 || errno == EEXIST) return file >= 0;
  }
  if (job_on_this_node().empty()) return true;  // no launcher: this is the only process
  name_taken = take_name(of_this_job("first"));
  return name_taken;
}

void let_others_pass() {
  if (name_taken) std::this_thread::sleep_for(1s);
}

void answer_roll_call(const Ranks& ranks) { take_name(name_of(ranks.rank)); }

std::string call_roll(const Ranks& ranks) {
  const Roll roll = roll_of_this_node(ranks);
  if (roll.stopped.empty()) return started(roll, ranks);
  return list_of_ranks(roll.stopped) + (roll.stopped.size() == 1 ? " is" : " are") + " stopped; " +
         started(roll, ranks);
}

JoinDeadline::JoinDeadline(const Ranks& ranks, int seconds)
    : thread_([ranks, seconds](const std::stop_token& joined) {
        std::mutex mutex;
        std::condition_variable_any changed;
        std::unique_lock lock(mutex);
        // Counts single seconds, so that time in which this process itself was suspended does not count.
        for (int second = 0; second < seconds; ++second) {
          changed.wait_for(lock, joined, 1s, [] { return false; });
          if (joined.stop_requested()) return;
        }
        end_start(ranks, seconds);
      }) {}

}  // namespace workshop
