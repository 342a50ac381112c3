// SPDX-License-Identifier: Apache-2.0
// The state of Checkpoints, which its source files share.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/run_lock.h"
#include "common/checkpoint/checkpoints.h"
#include "common/checkpoint/folder.h"
#include "common/checkpoint/index.h"
#include "common/options/options.h"

namespace workshop {

struct CheckpointState {
  const Options& options;
  int samples, replicas, rank, world;
  ncclComm_t comm;
  cudaStream_t stream;
  int step = 0, epoch = 0, batches = 0, saved = -1;  // `saved`: the last step saved or loaded
  std::vector<TensorPart> parts = {};
  RandomSampler* sampler = nullptr;
  std::map<std::string, double*> numbers = {};
  std::optional<RunLock> lock = {};  // on rank 0: of the folder to save to
  // The parts of all ranks, each element once, and the rank that writes each part. Filled by the first save.
  struct OwnedPart {
    TensorPart part;  // `values` is null except on the owner
    int owner;
  };
  std::vector<OwnedPart> owned = {};

  // Whether to save beside the training. Each rank then writes a file of its own, whatever the format: to gather all
  // parts in one file, the ranks would have to wait for each other.
  bool beside() const { return options.checkpoint_mode == "async"; }
  bool writes_one_file() const { return options.checkpoint_format == "full" && !beside(); }

  // Runs `work` on every rank. If it throws on a rank, ends the job for all ranks with `status`, because the others
  // would otherwise wait for that rank.
  void attempt(int status, const std::function<void()>& work) const;
  // Returns if no rank has an error; otherwise ends the job with the first error. All ranks wait for each other here.
  void agree(const std::string& error, int status) const;
};

// The options that must have the same values when the state is loaded, besides the model. kOrder must be the same only
// if the checkpoint was saved in the middle of an epoch.
inline constexpr const char* kModel = "model";
inline constexpr const char* kOrder = "shuffle";
inline constexpr std::array kSettings = {"layers",  "activation", "optimizer",          "samples", "seed",
                                         "context", "blocks",     "validation-samples", "heads",   kOrder};
// Returns the values of these options and the model, as JSON.
std::map<std::string, std::string> settings_of(const Options& options);

// Calls f(first element in the whole tensor, first element in the part, count) for each run of a part.
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

// Loads this rank's state. Throws std::runtime_error that says what is wrong.
Progress load(const CheckpointState& state, const CheckpointIndex& index, const std::string& folder);

// Decides which rank writes each part (the first one that holds it), and to which file, and adds both to the index.
// Collective when it is first called.
void place_parts(CheckpointState& state, CheckpointIndex& index);

// Writes the tensors of all ranks to `folder` and adds them to the index.
void write_parts(CheckpointState& state, CheckpointIndex& index, const std::string& folder);

}  // namespace workshop
