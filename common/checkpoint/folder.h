// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders: DIR/step-00000400, DIR/best-00000300, each with an index.json. A folder without one is not a
// checkpoint. All functions throw std::runtime_error, which names the file and says what is wrong with it, or
// std::filesystem::filesystem_error.
#pragma once

#include <filesystem>
#include <string>

#include "common/checkpoint/index.h"

namespace workshop {

// Returns the name for a prefix and a step: "step-" and 400 give "step-00000400".
std::string checkpoint_name(const std::string& prefix, int step);

bool is_checkpoint(const std::filesystem::path& folder);

// Returns the checkpoint that --resume refers to: `folder` itself or the newest "step-" in it; empty if neither exists.
std::string find_checkpoint(const std::filesystem::path& folder);

// Returns the last checkpoint before this one in the same folder; empty if this is the first.
std::string checkpoint_before(const std::filesystem::path& checkpoint);

// Throws if `folder` contains checkpoints that a run saving there would mistake for its own: those of another run, and
// those of steps that it has yet to reach. `step`: the step of the checkpoint in `folder` that the run resumes from; -1
// if it does not resume from one in `folder`.
void require_room(const std::string& folder, int step);

// Returns the hidden folder, next to the final one, where a checkpoint is until it is complete.
std::filesystem::path unfinished_name(const std::filesystem::path& checkpoint);

// Removes from `folder` what is left of checkpoints whose processes died while writing or removing them. Call this
// before writing there, with the folder locked.
void remove_unfinished(const std::filesystem::path& folder);

CheckpointIndex read_index(const std::filesystem::path& checkpoint);

// Completes a checkpoint: writes the index to `unfinished`, whose other files must be on disk, and renames the folder
// to `checkpoint`. Returns when the rename is on disk too.
void complete_checkpoint(const std::filesystem::path& unfinished, const std::filesystem::path& checkpoint,
                         const CheckpointIndex& index);

// Removes all checkpoints with this prefix except the newest `keep`. If the process dies meanwhile, no half-removed
// checkpoint keeps its name.
void keep_newest(const std::filesystem::path& folder, const std::string& prefix, int keep);

}  // namespace workshop
