// SPDX-License-Identifier: Apache-2.0
// Gathers what every rank of a communicator has. These calls are collective and wait for the stream. They are recorded
// in neither the ledger nor the timeline (common/record/README.md).
#pragma once

#include <nccl.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace workshop {

// Returns the bytes of all ranks, concatenated in the order of the ranks. All ranks must pass the same number of bytes.
std::vector<char> gather_bytes(std::string_view mine, ncclComm_t comm, cudaStream_t stream);

// Returns the values of all ranks, indexed by rank.
template <typename T>
std::vector<T> gather_values(const T& mine, ncclComm_t comm, cudaStream_t stream) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<char> bytes = gather_bytes({reinterpret_cast<const char*>(&mine), sizeof mine}, comm, stream);
  std::vector<T> values(bytes.size() / sizeof mine);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Returns the texts of all ranks, indexed by rank. Without `on_all_ranks`, only rank 0 gets them, and other ranks must
// not use the result.
std::vector<std::string> gather_text(const std::string& text, ncclComm_t comm, cudaStream_t stream,
                                     bool on_all_ranks = true);

}  // namespace workshop
