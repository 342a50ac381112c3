// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace workshop {

struct CheckpointState;

// Ends the job with one line if ranks that hold the same part of a tensor do not hold the same bits (--check-replicas).
// Replicas that differ cause no error: a rank that starts from other weights, misses an average or drops different
// values continues the training, and its losses look fine. Collective, and waits for the device.
void require_equal_replicas(const CheckpointState& state);

// A part of a tensor that a rank holds: which part it is, and the checksum of its values.
struct HeldPart {
  std::string tensor, part;
  unsigned checksum;
};

// Returns "'0.weight' on rank 2 differs from that on rank 0", or "" if all that hold the same part agree. `ranks`: what
// each rank holds.
std::string parted_replica(const std::vector<std::vector<HeldPart>>& ranks);

}  // namespace workshop
