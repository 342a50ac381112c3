// SPDX-License-Identifier: Apache-2.0
#include "common/base/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace workshop {
namespace {

namespace fs = std::filesystem;

std::runtime_error cannot_write(const fs::path& path) {
  return std::runtime_error(path.string() + ": cannot be written: " + std::strerror(errno));
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Field 22 of /proc/PID/stat: when the process started. A later process with the same number has a different one. Empty
// if there is no such process.
std::string start_of(long pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // the name may contain anything
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return fields ? field : "";
}

struct Owner {
  std::string host, start;
  std::string job, restarts;  // of Slurm: the job's number ("-" outside a job), and how often it was requeued
  long pid = 0;

  std::string text() const {
    return host + " " + std::to_string(pid) + " " + start + " " + job + " " + restarts + "\n";
  }

  bool may_run() const {
    if (job != "-" && job == mine().job && restarts != mine().restarts) return false;
    return host != host_name() || (start_of(pid) == start && !start.empty());
  }

  // "another run", and its process if that is known and may still run.
  std::string name() const {
    if (host.empty() || !may_run()) return "another run";
    return "another run, process " + std::to_string(pid) + " on " + host + ",";
  }

  static const Owner& mine() {
    static const Owner owner = [] {
      const auto of_slurm = [](const char* name, const char* otherwise) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr || *value == '\0' ? otherwise : value);
      };
      return Owner{host_name(), start_of(getpid()), of_slurm("SLURM_JOB_ID", "-"), of_slurm("SLURM_RESTART_COUNT", "0"),
                   getpid()};
    }();
    return owner;
  }
};

Owner read_owner(const fs::path& path) {
  Owner owner;
  std::ifstream file(path);
  file >> owner.host >> owner.pid >> owner.start >> owner.job >> owner.restarts;
  return owner;
}

bool write_owner(int file) {
  const std::string text = Owner::mine().text();
  return write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Whether `path` is still the name of the open file.
bool has_name(int file, const fs::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

OwnerFile::OwnerFile(fs::path path, const Claim& claim) : path_(std::move(path)) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file >= 0) {
      const bool written = write_owner(file);
      const int error = errno;
      if (close(file) == 0 && written) return;
      unlink(path_.c_str());
      errno = error;
      throw cannot_write(path_);
    }
    if (errno != EEXIST) throw cannot_write(path_);
    const Owner owner = read_owner(path_);
    if (owner.may_run()) {
      throw std::runtime_error(owner.name() + " " + claim.writes + ": " + claim.instead + ", or remove " +
                               path_.string() + " if that run has ended");
    }
    unlink(path_.c_str());
  }
  throw std::runtime_error("another run " + claim.writes + ": " + claim.instead);
}

OwnerFile::~OwnerFile() { unlink(path_.c_str()); }

RunLock::RunLock(const std::string& prefix, const Claim& claim) : path_(prefix + "lock") {
  // Tries again if the run that had the lock has removed the file between open() and flock(). A lock on the removed
  // file would be useless, because the next run creates another file.
  for (int attempt = 0; attempt < 9; ++attempt) {
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file_ < 0) throw cannot_write(path_);
    const bool locked = flock(file_, LOCK_EX | LOCK_NB) == 0, held = !locked && errno == EWOULDBLOCK;
    if (locked && has_name(file_, path_)) {
      // So that other runs can name this one in their error line. If this fails, they only say "another run".
      if (ftruncate(file_, 0) == 0) write_owner(file_);
      return;
    }
    try {
      if (held) throw std::runtime_error(read_owner(path_).name() + " " + claim.writes + ": " + claim.instead);
      if (!locked) owner_ = std::make_unique<OwnerFile>(prefix + "owner", claim);
    } catch (const std::runtime_error&) {
      close(file_);
      throw;
    }
    if (owner_) return;
    close(file_);
  }
  throw std::runtime_error("another run " + claim.writes + ": " + claim.instead);
}

RunLock::~RunLock() { close(file_); }

void RunLock::remove_file() const { unlink(path_.c_str()); }

}  // namespace workshop
