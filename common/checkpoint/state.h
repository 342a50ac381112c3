// SPDX-License-Identifier: Apache-2.0
// What the parts of Checkpoints share.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoints.h"
#include "common/checkpoint/index.h"

namespace workshop {

struct CheckpointState {
  const Options& options;
  int samples, replicas, rank, world;
  ncclComm_t comm;
  cudaStream_t stream;
  int step = 0, epoch = 0, batches = 0, saved = -1;  // the last step saved or loaded
  std::vector<TensorPart> parts = {};
  RandomSampler* sampler = nullptr;
  std::map<std::string, double*> numbers = {};
  // Of all ranks together, each element once, and who writes it: known from the first save on.
  struct OwnedPart {
    TensorPart part;  // its values only on the owner
    int owner;
  };
  std::vector<OwnedPart> owned = {};

  // Works on every rank. What goes wrong on one must not leave the others waiting: it ends the job for all of them.
  void attempt(int status, const std::function<void()>& work) const;
  // Returns if no rank has an error; all ranks wait for each other here. Else ends the job with the first one.
  void agree(const std::string& error, int status) const;
};

// The options without whose values the state means nothing; kOrder only within an epoch.
inline constexpr const char* kOrder = "shuffle";
std::map<std::string, std::string> settings_of(const Options& options);

// Where the elements of a part lie: f(first in the whole tensor, first in the part, count) for each of its runs.
template <typename Part, typename F>
void for_each_run(const Part& part, F f) {
  for (std::int64_t row = 0; row < part.rows; ++row)
    f(part.first + row * part.stride, row * part.columns, part.columns);
}

template <typename Part>
void copy_into_whole(std::vector<float>& whole, const Part& part, const float* values) {
  for_each_run(part, [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t count) {
    std::copy_n(values + in_part, count, whole.begin() + in_whole);
  });
}

// Loads this rank's state. Throws std::runtime_error with what is wrong.
Progress load(const CheckpointState& state, const CheckpointIndex& index, const std::string& folder);

// Writes what the ranks hold to `folder` and enters it in the index.
void write_parts(CheckpointState& state, CheckpointIndex& index, const std::string& folder);

}  // namespace workshop
