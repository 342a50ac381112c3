// SPDX-License-Identifier: Apache-2.0
// Files of long_run: their names, how they are written, and what runs on the host behind a stream's work. Its events.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/crc32.h"
#include "common/base/format.h"
#include "common/device/device.h"
#include "common/record/probe.h"

namespace workshop {

// Whether ./workshop check runs this program: with probes, or on a simulated machine.
inline bool in_a_check() { return probing() || time_is_simulated(); }

// Makes the stream call a function on the host when the work enqueued so far is done. It must not call CUDA or NCCL.
inline void call_on_host(cudaStream_t stream, std::function<void()> function) {
  const auto call = [](void* data) {
    const std::unique_ptr<std::function<void()>> called(static_cast<std::function<void()>*>(data));
    try {
      (*called)();
    } catch (const std::filesystem::filesystem_error& error) {  // in a check, nothing else moves files
      fail(kFailed, std::string(error.what()) + (in_a_check() ? ": see TODO 02.14" : ""));
    } catch (const std::exception& error) {
      fail(kFailed, std::string(error.what()));
    }
  };
  CUDA_CHECK(cudaLaunchHostFunc(stream, call, new std::function<void()>(std::move(function))));
}

inline constexpr const char* kUnfinished = ".unfinished";

inline std::string file_of(int rank) { return formatted("rank-%d.bin", rank); }
inline std::string folder_of(int step) { return formatted("step-%08d", step); }

inline void sleep_milliseconds(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// Events whose index is checked: beyond the end of an array, there may be anything.
template <int count>
class KnownEvents {
 public:
  const Event& operator[](int i) const {
    if (i < 0 || i >= count)
      fail(kFailed, "known_[%d] does not exist: the entries are 0 to %d: see TODO 02.11", i, count - 1);
    return events_[i];
  }

 private:
  Event events_[count];
};

// Ends the program if the host has asked for an event too early, and left the answer for a later call to find.
inline void require_no_query_left() {
  if (cudaPeekAtLastError() != cudaErrorNotReady) return;
  fail(kFailed,
       "cudaEventQuery() does not wait. It has returned cudaErrorNotReady, and the next launch of a kernel would fail "
       "with this error: see TODO 02.11");
}

// The folder in which this rank has written its last file.
inline std::filesystem::path written_to;

// What a loop that waits in vain can see.
inline std::string what_is_there() {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(written_to, error)) {
    if (entry.path().extension() == ".bin") files.push_back(entry.path().filename().string());
  }
  if (error) return written_to.string() + " has got another name, so no file appears in it any more";
  std::ranges::sort(files);
  std::string all;
  for (const std::string& file : files) all += (all.empty() ? "" : ", ") + file;
  return written_to.string() + " has " + all + ", and nobody writes any other file";
}

// Sleeps for 2 ms, in a loop that waits for files. In a check, files take 100 ms at most: a loop that goes on for
// seconds has no end. On a busy machine, it sleeps less often.
inline void wait_a_moment() {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point begin = Clock::now();
  static std::atomic<int> moments = 0;
  sleep_milliseconds(2);
  if (in_a_check() && ++moments > 500 && Clock::now() - begin > std::chrono::seconds(3)) {
    fail(kFailed, "a save waits in vain: " + what_is_there() + ": see TODO 02.14");
  }
}

// Writes a file that gets its name only when it is complete. `milliseconds`: of extra delay.
inline void write_file(const std::filesystem::path& file, const void* data, std::size_t bytes, int milliseconds) {
  const std::filesystem::path part = file.string() + ".part";
  std::ofstream out(part, std::ios::binary);
  sleep_milliseconds(milliseconds);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes)).flush();
  if (!out) throw std::runtime_error(part.string() + ": cannot be written");
  out.close();
  std::filesystem::rename(part, file);
  written_to = file.parent_path();
}

// Removes what a run that was killed has left.
inline void remove_unfinished_in(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == kUnfinished) std::filesystem::remove_all(entry.path());
  }
}

// Ends the job unless a folder that has its name has the files of all ranks.
inline void require_all_files(const std::filesystem::path& folder, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    if (std::filesystem::exists(folder / file_of(r))) continue;
    fail(kFailed, "%s has its name, but the file of rank %d is not complete: see TODO 02.14", folder.c_str(), r);
  }
}

// Returns a checksum of these bytes, as an int for NCCL.
inline int checksum(const void* data, std::size_t bytes) {
  probe("02.K", "given to checksum: bytes", std::array{static_cast<int>(bytes)});
  const auto* values = static_cast<const float*>(data);
  if (probing())
    probe("02.K", "given to checksum: values", std::vector<double>(values, values + bytes / sizeof(float)));
  return static_cast<int>(crc32_of(data, bytes));
}

}  // namespace workshop
