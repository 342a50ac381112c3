// SPDX-License-Identifier: Apache-2.0
#include "common/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/run_lock.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;

// The temporary file that is renamed at the end.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path) : final_(path) {
    // If the path is a symbolic link, the rename must replace its target, not the link.
    std::error_code missing;
    const fs::path target = fs::canonical(final_, missing);
    if (!missing) final_ = target;
    const std::string name = "." + final_.filename().string() + "." + std::to_string(getpid());
    partial_ = final_.has_parent_path() ? final_.parent_path() / name : fs::path(name);
    const fs::file_status there = fs::status(final_, missing);
    if (fs::exists(there) && !fs::is_regular_file(there)) {
      error_ = "it is not a regular file";
    } else if (!final_.has_filename() || (fs::exists(there) && access(final_.c_str(), W_OK) != 0)) {
      error_ = std::strerror(final_.has_filename() ? errno : EISDIR);
    } else {
      file_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (file_ < 0) error_ = std::strerror(errno);
    }
  }
  ~PartialFile() {
    if (file_ >= 0) close(file_);
    if (file_ >= 0 && !complete_) unlink(partial_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Writes the text and renames the file to its final name. Sets error() on failure.
  void complete(const std::string& text) {
    for (std::size_t done = 0; error_.empty() && done < text.size();) {
      const ssize_t written = write(file_, text.data() + done, text.size() - done);
      if (written >= 0) done += static_cast<std::size_t>(written);
      if (written < 0 && errno != EINTR) error_ = std::strerror(errno);
    }
    if (!error_.empty()) return;
    complete_ = rename(partial_.c_str(), final_.c_str()) == 0;
    if (!complete_) error_ = std::strerror(errno);
  }

  const std::string& error() const { return error_; }  // empty: no error

 private:
  fs::path final_, partial_;
  int file_ = -1;
  bool complete_ = false;
  std::string error_;
};

// The files that this run has for itself. Other threads may end the program, so a mutex protects them.
struct ClaimedFile {
  ClaimedFile(std::string by, const std::string& prefix, const Claim& claim)
      : option(std::move(by)), lock(prefix, claim) {}
  ~ClaimedFile() { lock.remove_file(); }
  ClaimedFile(const ClaimedFile&) = delete;
  ClaimedFile& operator=(const ClaimedFile&) = delete;
  std::string option;
  RunLock lock;
};
std::mutex claims_mutex;
std::map<fs::path, ClaimedFile>& claims() {
  static auto& claims = *new std::map<fs::path, ClaimedFile>;
  return claims;
}

// A name that all paths to the file share.
fs::path one_name(const std::string& path) {
  std::error_code unusable;
  return fs::weakly_canonical(fs::absolute(path), unusable);
}

// Returns what is wrong; empty if the file is now this run's.
std::string try_to_claim(const std::string& option, const std::string& path) {
  const fs::path file = one_name(path);
  const std::lock_guard lock(claims_mutex);
  if (const auto other = claims().find(file); other != claims().end()) {
    if (other->second.option == option) return "";
    return option + " is '" + path + "', the file of " + other->second.option + "; expected a different file";
  }
  if (claims().empty()) std::atexit(release_files);
  try {
    const std::string prefix = file.parent_path() / ("." + file.filename().string() + ".");
    const Claim claim{"is going to write " + path, "choose another file for " + option};
    claims().try_emplace(file, option, prefix, claim);
  } catch (const std::runtime_error& refused) {
    return refused.what();
  }
  return "";
}

}  // namespace

std::string read_file(const std::string& path, bool links) {
  constexpr off_t most = 100'000'000;
  // Without O_NONBLOCK, opening a pipe would block until its other end is opened.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links ? 0 : O_NOFOLLOW));
  if (file < 0) throw std::runtime_error(path + ": cannot be read: " + std::strerror(errno));
  struct stat status {};
  std::string text, error;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > most) {
    error = "it is not a regular file of at most 100 MB";
  } else {
    text.resize(static_cast<std::size_t>(status.st_size));
    if (::read(file, text.data(), text.size()) != status.st_size) error = "cannot be read to its end";
  }
  close(file);
  if (!error.empty()) throw std::runtime_error(path + ": " + error);
  return text;
}

void claim_file(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  std::string error;
  {
    const PartialFile file(path);
    error = file.error();
  }
  if (!error.empty()) {
    usage_error("%s is '%s', which cannot be written: %s", option.c_str(), path.c_str(), error.c_str());
  }
  error = try_to_claim(option, path);
  if (!error.empty()) usage_error(error);
}

void release_files() {
  const std::lock_guard lock(claims_mutex);
  claims().clear();
}

void write_file(const std::string& path, const std::string& text) {
  std::string error;
  {
    PartialFile file(path);
    file.complete(text);
    error = file.error();
  }
  if (!error.empty()) fail(kFailed, "cannot write %s: %s", path.c_str(), error.c_str());
  const std::lock_guard lock(claims_mutex);
  claims().erase(one_name(path));
}

}  // namespace workshop
