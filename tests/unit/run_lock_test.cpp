// SPDX-License-Identifier: Apache-2.0
#include "common/base/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace workshop {
namespace {

namespace fs = std::filesystem;

const Claim kClaim{"is writing here", "go elsewhere"};

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

class RunLocks : public testing::Test {
 protected:
  RunLocks() {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~RunLocks() override { fs::remove_all(folder_); }

  // The message that refuses a second run; empty if it gets the lock.
  std::string refusal() const {
    try {
      const RunLock second(prefix_, kClaim);
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

  const fs::path folder_ = fs::temp_directory_path() / ("workshop_locks_" + std::to_string(getpid()));
  const std::string prefix_ = (folder_ / ".file.").string();
  const fs::path lock_ = prefix_ + "lock", owner_ = prefix_ + "owner";
};

TEST_F(RunLocks, RefuseASecondRunAndNameTheFirst) {
  std::optional<RunLock> lock(std::in_place, prefix_, kClaim);
  const std::string mine = content(lock_), host = mine.substr(0, mine.find(' '));
  EXPECT_EQ(refusal(),
            "another run, process " + std::to_string(getpid()) + " on " + host + ", is writing here: go elsewhere");
  lock.reset();
  EXPECT_EQ(refusal(), "");
  EXPECT_THROW(RunLock((folder_ / "missing" / ".").string(), kClaim), std::runtime_error);
}

TEST_F(RunLocks, AreTakenOverFromAKilledRun) {
  std::ofstream(lock_) << "elsewhere 7 1 - 0\n";  // its lock has ended with it
  EXPECT_EQ(refusal(), "");
}

TEST_F(RunLocks, RefuseNobodyIfTheirFileIsGone) {
  const RunLock first(prefix_, kClaim);
  first.remove_file();
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(refusal(), "");
}

TEST_F(RunLocks, NameNobodyWhoHasEnded) {
  std::ofstream(lock_) << "";
  const int other = open(lock_.c_str(), O_RDONLY);
  ASSERT_EQ(flock(other, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(refusal(), "another run is writing here: go elsewhere");
  close(other);
}

TEST_F(RunLocks, OwnerFilesTakeTheirPlace) {
  std::string mine;
  {
    const OwnerFile owner(owner_, kClaim);
    mine = content(owner_);
    EXPECT_THROW(OwnerFile(owner_, kClaim), std::runtime_error);
  }
  EXPECT_FALSE(fs::exists(owner_));
  // A process of this host that is gone, and one whose number another process has now.
  const std::string host = mine.substr(0, mine.find(' ')), me = std::to_string(getpid());
  for (const std::string& pid : {std::string("1073741824"), me}) {
    std::ofstream(owner_) << host + " " + pid + " 1 - 0\n";
    const OwnerFile owner(owner_, kClaim);
    EXPECT_EQ(content(owner_), mine);
  }
  std::ofstream(owner_) << "elsewhere 7 1 - 0\n";
  try {
    const OwnerFile owner(owner_, kClaim);
    ADD_FAILURE() << "a run on another host may still be there";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), "another run, process 7 on elsewhere, is writing here: go elsewhere, or remove " +
                                owner_.string() + " if that run has ended");
  }
}

}  // namespace
}  // namespace workshop
