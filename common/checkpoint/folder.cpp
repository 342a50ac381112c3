// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "common/base/files.h"

namespace workshop {

namespace fs = std::filesystem;

namespace {

// Returns the step in a checkpoint's name, or -1 if it is not the name of a checkpoint with this prefix.
int step_of(const std::string& name, const std::string& prefix) {
  const std::string number = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
  int step = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), step);
  return error == std::errc() && checkpoint_name(prefix, step) == name ? step : -1;
}

// Returns the steps of all checkpoints with this prefix in `folder`, ascending.
std::vector<int> steps_in(const fs::path& folder, const std::string& prefix) {
  std::vector<int> steps;
  if (!fs::is_directory(folder)) return steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const int step = step_of(entry.path().filename(), prefix);
    if (step >= 0 && is_checkpoint(entry.path())) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

// Flushes a file or a folder to disk.
void flush_to_disk(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool failed = file < 0 || fsync(file) != 0;
  const int error = errno;
  if (file >= 0) close(file);
  if (failed) throw std::runtime_error(path.string() + ": cannot be flushed: " + std::strerror(error));
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw std::runtime_error(path.string() + ": cannot be written: " + std::strerror(errno));
  file.close();
  flush_to_disk(path);
}

}  // namespace

std::string checkpoint_name(const std::string& prefix, int step) {
  std::string number = std::to_string(step);
  number.insert(0, std::max<std::size_t>(8, number.size()) - number.size(), '0');
  return prefix + number;
}

fs::path unfinished_name(const fs::path& checkpoint) {
  return checkpoint.parent_path() / ("." + checkpoint.filename().string());
}

void remove_unfinished(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (step_of(name, ".step-") >= 0 || step_of(name, ".best-") >= 0) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path);
}

bool is_checkpoint(const fs::path& folder) { return fs::exists(folder / "index.json"); }

std::string find_checkpoint(const fs::path& folder) {
  if (is_checkpoint(folder)) return folder;
  const std::vector<int> steps = steps_in(folder, "step-");
  return steps.empty() ? "" : (folder / checkpoint_name("step-", steps.back())).string();
}

std::string checkpoint_before(const fs::path& checkpoint) {
  const fs::path folder = checkpoint.parent_path();
  const int step = step_of(checkpoint.filename(), "step-");
  std::string before;
  for (const int other : steps_in(folder, "step-")) {
    if (other < step) before = (folder / checkpoint_name("step-", other)).string();
  }
  return before;
}

void require_room(const std::string& folder, int step) {
  std::vector<int> steps = steps_in(folder, "step-");
  if (step < 0 && steps.empty()) steps = steps_in(folder, "best-");
  if (steps.empty() || steps.back() <= step) return;
  throw std::runtime_error(folder + " already has a checkpoint of step " + std::to_string(steps.back()) +
                           ": continue from there with --resume " + folder +
                           ", or choose another folder for --checkpoints");
}

CheckpointIndex read_index(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "index.json";
  const std::string text = read_file(path, /*links=*/false);
  try {
    return parse_index(text);
  } catch (const std::runtime_error& failed) {
    throw std::runtime_error(path.string() + ": " + failed.what());
  }
}

void complete_checkpoint(const fs::path& unfinished, const fs::path& checkpoint, const CheckpointIndex& index) {
  write_text(unfinished / "index.json", to_text(index));
  flush_to_disk(unfinished);
  fs::rename(unfinished, checkpoint);
  flush_to_disk(checkpoint.parent_path());
}

void keep_newest(const fs::path& folder, const std::string& prefix, int keep) {
  const std::vector<int> steps = steps_in(folder, prefix);
  for (std::size_t i = 0; i + keep < steps.size(); ++i) {
    const fs::path checkpoint = folder / checkpoint_name(prefix, steps[i]), hidden = unfinished_name(checkpoint);
    fs::remove_all(hidden);
    fs::rename(checkpoint, hidden);
    fs::remove_all(hidden);
  }
}

}  // namespace workshop
