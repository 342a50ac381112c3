// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace workshop {
namespace {

namespace fs = std::filesystem;

std::string refusal(const fs::path& folder, const std::string& who) {
  return who + " is saving its checkpoints to " + folder.string() + ": choose another folder for --checkpoints";
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Field 22 of /proc/PID/stat: when the process started. Another process with the same number has another one. Empty if
// there is no such process.
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
  std::string job, restarts;  // of Slurm: the job's number, "-" if there is none, and how often it was requeued
  long pid = 0;

  std::string text() const {
    return host + " " + std::to_string(pid) + " " + start + " " + job + " " + restarts + "\n";
  }

  bool may_run() const {
    if (job != "-" && job == mine().job && restarts != mine().restarts) return false;
    return host != host_name() || (start_of(pid) == start && !start.empty());
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

}  // namespace

OwnerFile::OwnerFile(fs::path path) : path_(std::move(path)) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file >= 0) {
      const std::string text = Owner::mine().text();
      const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
      const int error = errno;
      if (close(file) == 0 && written) return;
      unlink(path_.c_str());
      throw std::runtime_error(path_.string() + ": cannot be written: " + std::strerror(error));
    }
    if (errno != EEXIST) throw std::runtime_error(path_.string() + ": cannot be written: " + std::strerror(errno));
    const Owner owner = read_owner(path_);
    if (owner.may_run()) {
      const std::string who = "another run, process " + std::to_string(owner.pid) + " on " + owner.host + ",";
      throw std::runtime_error(refusal(path_.parent_path(), who) + ", or remove " + path_.string() +
                               " if that run has ended");
    }
    unlink(path_.c_str());
  }
  throw std::runtime_error(refusal(path_.parent_path(), "another run"));
}

OwnerFile::~OwnerFile() { unlink(path_.c_str()); }

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_ < 0) throw std::runtime_error(path.string() + ": cannot be written: " + std::strerror(errno));
  if (flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  const bool held = errno == EWOULDBLOCK;
  try {
    if (held) throw std::runtime_error(refusal(folder, "another run"));
    owner_ = std::make_unique<OwnerFile>(folder / ".owner");
  } catch (const std::runtime_error&) {
    close(file_);
    throw;
  }
}

FolderLock::~FolderLock() { close(file_); }

}  // namespace workshop
