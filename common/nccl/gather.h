// SPDX-License-Identifier: Apache-2.0
// What every rank of a communicator has, told to all of them. All its ranks make these calls, which wait for the stream
// and enter neither ledger nor timeline.
#pragma once

#include <nccl.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace workshop {

// All ranks' bytes, as many of each, one after the other.
std::vector<char> gather_bytes(std::string_view mine, ncclComm_t comm, cudaStream_t stream);

// All ranks' values, by rank.
template <typename T>
std::vector<T> gather_values(const T& mine, ncclComm_t comm, cudaStream_t stream) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<char> bytes = gather_bytes({reinterpret_cast<const char*>(&mine), sizeof mine}, comm, stream);
  std::vector<T> values(bytes.size() / sizeof mine);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// All ranks' texts, by rank: on all ranks, or on rank 0 alone and none on the others.
std::vector<std::string> gather_text(const std::string& text, ncclComm_t comm, cudaStream_t stream,
                                     bool on_all_ranks = true);

}  // namespace workshop
