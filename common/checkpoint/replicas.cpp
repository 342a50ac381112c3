// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/replicas.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/crc32.h"
#include "common/checkpoint/state.h"
#include "common/device/device.h"
#include "common/nccl/gather.h"

namespace workshop {
namespace {

using Json = nlohmann::json;

unsigned checksum_of(const CheckpointState& state, const TensorPart& part) {
  std::vector<float> values(part.count());
  const std::size_t bytes = values.size() * sizeof(float);
  CUDA_CHECK(cudaMemcpyAsync(values.data(), part.values, bytes, cudaMemcpyDefault, state.stream));
  CUDA_CHECK(cudaStreamSynchronize(state.stream));
  return crc32_of(values.data(), bytes);
}

std::string text_of(const CheckpointState& state) {
  Json all = Json::array();
  for (const TensorPart& part : state.parts) {
    const Json which = {part.first, part.rows, part.columns, part.stride};
    all.push_back({part.tensor, which.dump(), checksum_of(state, part)});
  }
  return all.dump();
}

std::vector<HeldPart> parse(const std::string& text) {
  std::vector<HeldPart> parts;
  for (const Json& part : Json::parse(text)) parts.push_back({part[0], part[1], part[2]});
  return parts;
}

}  // namespace

std::string parted_replica(const std::vector<std::vector<HeldPart>>& ranks) {
  std::map<std::pair<std::string, std::string>, std::pair<std::size_t, unsigned>> first;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const HeldPart& held : ranks[rank]) {
      const auto [entry, is_new] = first.try_emplace({held.tensor, held.part}, rank, held.checksum);
      if (is_new || entry->second.second == held.checksum) continue;
      return "'" + held.tensor + "' on rank " + std::to_string(rank) + " differs from that on rank " +
             std::to_string(entry->second.first);
    }
  }
  return "";
}

void require_equal_replicas(const CheckpointState& state) {
  std::vector<std::vector<HeldPart>> ranks;
  for (const std::string& text : gather_text(text_of(state), state.comm, state.stream)) ranks.push_back(parse(text));
  const std::string parted = parted_replica(ranks);
  if (!parted.empty()) {
    fail_alike(kFailed, "after step " + std::to_string(state.step) + ", " + parted +
                            ": the replicas have parted, so they no longer train one model");
  }
}

}  // namespace workshop
