// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/save_beside.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "common/checkpoint/safetensors.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto kPoll = std::chrono::milliseconds(5);

// Returns the name of a file's note. The note says that the file is complete, how long it is, and its checksum.
fs::path note_of(const fs::path& file) { return file.string() + ".written"; }

void write_note(const fs::path& file, const CheckpointIndex::File& about) {
  const fs::path note = note_of(file), part = note.string() + ".part";
  std::ofstream out(part);
  out << Json{about.bytes, about.checksum}.dump() << std::flush;
  if (!out) throw std::runtime_error(part.string() + ": cannot be written");
  out.close();
  fs::rename(part, note);
}

CheckpointIndex::File wait_for_note(const fs::path& file) {
  const fs::path note = note_of(file);
  while (!fs::exists(note)) std::this_thread::sleep_for(kPoll);
  const Json about = Json::parse(std::ifstream(note));
  fs::remove(note);
  return {about.at(0), about.at(1)};
}

}  // namespace

SaveBeside::~SaveBeside() {
  if (thread_.joinable()) thread_.join();
}

void SaveBeside::begin(const CheckpointIndex& index, const fs::path& folder, const std::string& prefix) {
  finish();
  CUDA_CHECK(cudaEventRecord(updated_, state_.stream));
  CUDA_CHECK(cudaStreamWaitEvent(stream_, updated_));
  copy_parts();
  CUDA_CHECK(cudaEventRecord(copied_, stream_));
  thread_ = std::thread([this, index, folder, prefix, device = current_device()] {
    try {
      // Does not use CUDA_CHECK: it would overwrite the note of the call that the training's thread is in.
      cudaError_t status = cudaSetDevice(device);
      if (status == cudaSuccess) status = cudaEventSynchronize(copied_);
      if (status != cudaSuccess) throw std::runtime_error(std::string("a checkpoint: ") + cudaGetErrorString(status));
      write(index, folder, prefix);
    } catch (const std::exception& failed) {
      fail(kFailed, std::string(failed.what()));
    }
  });
}

void SaveBeside::copy_parts() {
  if (copy_.size() == 0) {
    std::int64_t count = 0;
    for (const auto& [part, owner] : state_.owned) count += owner == state_.rank ? part.count() : 0;
    copy_ = HostBuffer<float>(count);
  }
  float* to = copy_.data();
  for (const auto& [part, owner] : state_.owned) {
    if (owner != state_.rank) continue;
    CUDA_CHECK(cudaMemcpyAsync(to, part.values, part.count() * sizeof(float), cudaMemcpyDefault, stream_));
    to += part.count();
  }
}

void SaveBeside::before_update() const { CUDA_CHECK(cudaStreamWaitEvent(state_.stream, copied_)); }

void SaveBeside::write(CheckpointIndex index, const fs::path& folder, const std::string& prefix) {
  const fs::path unfinished = unfinished_name(folder);
  fs::create_directory(unfinished);  // whichever rank is first
  std::vector<NamedShape> tensors;
  std::string file;
  for (std::size_t i = 0; i < state_.owned.size(); ++i) {
    const auto& [part, owner] = state_.owned[i];
    if (owner != state_.rank) continue;
    tensors.emplace_back(index.parts[i].key, std::vector<std::int64_t>{part.rows, part.columns});
    file = index.parts[i].file;
  }
  if (!tensors.empty()) {
    SafetensorsWriter writer(unfinished / file, tensors);
    writer.write(copy_.data(), copy_.size());
    writer.finish();
    write_note(unfinished / file, {writer.bytes(), writer.checksum()});
  }
  if (state_.rank > 0) return;
  for (auto& [name, about] : index.files) about = wait_for_note(unfinished / name);
  if (is_checkpoint(folder)) {  // an earlier run has saved this step
    fs::remove_all(unfinished);
    return;
  }
  complete_checkpoint(unfinished, folder, index);
  const int keep = prefix == "best-" ? 1 : state_.options.keep;
  if (keep > 0) keep_newest(folder.parent_path(), prefix, keep);
}

void SaveBeside::finish() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace workshop
