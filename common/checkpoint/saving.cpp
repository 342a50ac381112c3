// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "common/base/format.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/state.h"
#include "common/device/device.h"
#include "common/nccl/gather.h"
#include "common/nccl/nccl_calls.h"
#include "common/options/options.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void download(const CheckpointState& state, const TensorPart& part, float* host) {
  CUDA_CHECK(cudaMemcpyAsync(host, part.values, part.count() * sizeof(float), cudaMemcpyDefault, state.stream));
  CUDA_CHECK(cudaStreamSynchronize(state.stream));
}

// Sends a part to rank 0, through device memory: the part may be in host memory, from which NCCL cannot send.
void send(const CheckpointState& state, const TensorPart& part) {
  const OffTheRecord off_the_record;
  DeviceBuffer<float> staged(part.count(), Memory::data);
  CUDA_CHECK(cudaMemcpyAsync(staged.data(), part.values, staged.bytes(), cudaMemcpyDefault, state.stream));
  NCCL_CHECK(ncclSend(staged.data(), part.count(), ncclFloat, 0, state.comm, state.stream));
  CUDA_CHECK(cudaStreamSynchronize(state.stream));
}

void receive(const CheckpointState& state, const TensorPart& part, int owner, float* host) {
  const OffTheRecord off_the_record;
  DeviceBuffer<float> staged(part.count(), Memory::data);
  NCCL_CHECK(ncclRecv(staged.data(), part.count(), ncclFloat, owner, state.comm, state.stream));
  CUDA_CHECK(cudaMemcpyAsync(host, staged.data(), staged.bytes(), cudaMemcpyDefault, state.stream));
  CUDA_CHECK(cudaStreamSynchronize(state.stream));
}

// Finds the first rank that holds each part.
void find_owners(CheckpointState& state) {
  Json mine = Json::array();
  for (const TensorPart& p : state.parts) mine.push_back({p.tensor, p.shape, p.first, p.rows, p.columns, p.stride});
  using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  std::set<Key> placed;
  const std::vector<std::string> texts = gather_text(mine.dump(), state.comm, state.stream);
  for (int owner = 0; owner < state.world; ++owner) {
    const Json theirs = Json::parse(texts[owner]);
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const Json& p = theirs[i];
      float* values = owner == state.rank ? state.parts[i].values : nullptr;
      const TensorPart part{p[0], p[1].get<std::vector<int>>(), p[2], p[3], p[4], p[5], values};
      if (!placed.insert({part.tensor, part.first, part.rows, part.columns, part.stride}).second) continue;
      state.owned.push_back({part, owner});
    }
  }
  // A full file is written tensor by tensor, so parts of the same tensor must be adjacent.
  std::stable_sort(state.owned.begin(), state.owned.end(),
                   [](const CheckpointState::OwnedPart& a, const CheckpointState::OwnedPart& b) {
                     return a.part.tensor < b.part.tensor;
                   });
}

// Each rank writes the parts that it owns to its own file.
void write_sharded(CheckpointState& state, CheckpointIndex& index, const std::string& folder) {
  std::vector<NamedShape> tensors;
  std::string name;
  for (std::size_t i = 0; i < state.owned.size(); ++i) {
    const TensorPart& part = state.owned[i].part;
    if (state.owned[i].owner != state.rank) continue;
    tensors.emplace_back(index.parts[i].key, std::vector<std::int64_t>{part.rows, part.columns});
    name = index.parts[i].file;
  }
  if (tensors.empty()) return;
  SafetensorsWriter writer(fs::path(folder) / name, tensors);
  for (const auto& [part, owner] : state.owned) {
    if (owner != state.rank) continue;
    std::vector<float> values(part.count());
    download(state, part, values.data());
    writer.write(values.data(), values.size());
  }
  writer.finish();
  index.files[name] = {writer.bytes(), writer.checksum()};
}

// Rank 0 gathers and writes one tensor after the other, so that it never holds more than one.
void write_full(CheckpointState& state, CheckpointIndex& index, const std::string& folder) {
  std::optional<SafetensorsWriter> writer;
  std::string error;
  if (state.rank == 0) {
    std::vector<NamedShape> tensors;
    for (const auto& [tensor, shape] : index.tensors) {
      tensors.emplace_back(tensor, std::vector<std::int64_t>(shape.begin(), shape.end()));
    }
    try {
      writer.emplace(fs::path(folder) / "model.safetensors", tensors);
    } catch (const std::runtime_error& failed) {
      error = failed.what();
    }
  }
  state.agree(error, kFailed);
  std::vector<float> whole, values;
  for (std::size_t i = 0; i < state.owned.size(); ++i) {
    const auto& [part, owner] = state.owned[i];
    if (state.rank > 0) {
      if (state.rank == owner) send(state, part);
      continue;
    }
    whole.resize(elements(part.shape));
    values.resize(part.count());
    owner == 0 ? download(state, part, values.data()) : receive(state, part, owner, values.data());
    copy_into_whole(whole, part, values.data());
    const bool complete = i + 1 == state.owned.size() || state.owned[i + 1].part.tensor != part.tensor;
    if (!complete || !error.empty()) continue;
    try {
      writer->write(whole.data(), whole.size());
    } catch (const std::runtime_error& failed) {
      error = failed.what();  // do not throw yet, because the other ranks keep sending
    }
  }
  if (!error.empty()) throw std::runtime_error(error);
  if (state.rank > 0) return;
  writer->finish();
  index.files["model.safetensors"] = {writer->bytes(), writer->checksum()};
}

}  // namespace

void place_parts(CheckpointState& state, CheckpointIndex& index) {
  if (state.owned.empty()) find_owners(state);
  for (const auto& [part, owner] : state.owned) {
    index.tensors[part.tensor] = part.shape;
    if (state.writes_one_file()) continue;
    const std::string file = "rank-" + std::to_string(owner) + "-of-" + std::to_string(state.world) + ".safetensors";
    const std::string key = part.tensor + "[" + std::to_string(part.first) + "]";
    index.parts.push_back({part.tensor, part.first, part.rows, part.columns, part.stride, file, key});
    index.files[file];
  }
  if (!state.writes_one_file()) return;
  for (const auto& [tensor, shape] : index.tensors) {
    const std::int64_t count = elements(shape);
    index.parts.push_back({tensor, 0, 1, count, count, "model.safetensors", tensor});
  }
  index.files["model.safetensors"];
}

void write_parts(CheckpointState& state, CheckpointIndex& index, const std::string& folder) {
  CUDA_CHECK(cudaStreamSynchronize(state.stream));
  place_parts(state, index);
  state.attempt(kFailed, [&] {
    state.writes_one_file() ? write_full(state, index, folder) : write_sharded(state, index, folder);
  });
  Json mine = Json::object();
  for (const auto& [name, file] : index.files) {
    if (file.bytes > 0) mine[name] = {file.bytes, file.checksum};
  }
  for (const std::string& text : gather_text(mine.dump(), state.comm, state.stream)) {
    const Json theirs = Json::parse(text);
    for (const auto& [name, file] : theirs.items()) index.files[name] = {file[0], file[1]};
  }
}

}  // namespace workshop
