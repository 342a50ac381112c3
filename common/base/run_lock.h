// SPDX-License-Identifier: Apache-2.0
// Keeps other runs from a folder or a file that a run writes.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace workshop {

// What a run claims for itself, worded for the line that turns another run away: "another run WRITES: INSTEAD".
struct Claim {
  std::string writes;   // "is saving its checkpoints to FOLDER"
  std::string instead;  // "choose another folder for --checkpoints"
};

// Where a file system has no locks: a file that says which process has the claim. Creating it fails if it is there, on
// every file system (NFS included, since version 3). Unlike a lock, it does not end with its process.
class OwnerFile {
 public:
  // Creates `path`, or takes it over if the owner has certainly ended: it ran on this host and is gone, or it belonged
  // to an earlier start of this Slurm job. Otherwise throws std::runtime_error that names the owner.
  OwnerFile(std::filesystem::path path, const Claim& claim);
  ~OwnerFile();
  OwnerFile(const OwnerFile&) = delete;
  OwnerFile& operator=(const OwnerFile&) = delete;

 private:
  std::filesystem::path path_;
};

// A lock on the file PREFIXlock. It ends with the process that holds it, even if it crashes; the file stays. Where the
// file system has no locks, the OwnerFile PREFIXowner takes its place. Throws std::runtime_error that names the other
// run if one has the lock, or if the file cannot be written.
class RunLock {
 public:
  RunLock(const std::string& prefix, const Claim& claim);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Removes the file. Call it right before the lock ends: the next run creates another file.
  void remove_file() const;

 private:
  std::filesystem::path path_;
  int file_ = -1;
  std::unique_ptr<OwnerFile> owner_;
};

}  // namespace workshop
