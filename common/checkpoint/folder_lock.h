// SPDX-License-Identifier: Apache-2.0
// Keeps other runs from saving to a folder.
#pragma once

#include <filesystem>
#include <memory>

namespace workshop {

// Where a file system has no locks: a file that says which process owns a folder. Creating it fails if it is there, on
// every file system (NFS included, since version 3). Unlike a lock, it does not end with its process.
class OwnerFile {
 public:
  // Creates `path`, or takes it over if its process has ended: one of this host that is gone, or of an earlier start of
  // this Slurm job. Throws std::runtime_error that names the owner if that may still be running.
  explicit OwnerFile(std::filesystem::path path);
  ~OwnerFile();
  OwnerFile(const OwnerFile&) = delete;
  OwnerFile& operator=(const OwnerFile&) = delete;

 private:
  std::filesystem::path path_;
};

// A lock on a folder's file ".lock". The lock ends with the process that holds it, even if it crashes. Where the file
// system has no locks, an OwnerFile takes its place. Throws std::runtime_error if another run has the folder, or if the
// folder cannot be written to.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
  std::unique_ptr<OwnerFile> owner_;
};

}  // namespace workshop
