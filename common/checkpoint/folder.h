// SPDX-License-Identifier: Apache-2.0
// The folders that hold checkpoints: DIR/step-00000400, DIR/best-00000300, each with an index.json. What has none is no
// checkpoint. All functions throw std::runtime_error that names the file and what is wrong with it, or
// std::filesystem::filesystem_error.
#pragma once

#include <filesystem>
#include <string>

#include "common/checkpoint/index.h"

namespace workshop {

// "step-" and 400 give step-00000400.
std::string checkpoint_name(const std::string& prefix, int step);

bool is_checkpoint(const std::filesystem::path& folder);

// The checkpoint that --resume means: `folder` itself, or the newest "step-" in it; empty if there is none.
std::string find_checkpoint(const std::filesystem::path& folder);

// The checkpoint beside this one that was saved before it; empty if there is none.
std::string checkpoint_before(const std::filesystem::path& checkpoint);

// Throws if `folder` holds checkpoints that a run to be saved there would take for its own: those of another run, and
// those that it would come to again. `step` is that of its own from which it goes on, -1 if there is none.
void require_room(const std::string& folder, int step);

// Where a checkpoint is until it is complete: beside it, hidden.
std::filesystem::path unfinished_name(const std::filesystem::path& checkpoint);

// Removes what processes that died while they wrote or removed a checkpoint have left in `folder`. Call before
// the first checkpoint is written there; runs at the same time need folders of their own.
void remove_unfinished(const std::filesystem::path& folder);

CheckpointIndex read_index(const std::filesystem::path& checkpoint);

// Completes a checkpoint: writes the index to `unfinished`, whose other files are on the disk, and gives it the name
// `checkpoint`. Returns when that is on the disk too.
void complete_checkpoint(const std::filesystem::path& unfinished, const std::filesystem::path& checkpoint,
                         const CheckpointIndex& index);

// Removes all checkpoints with this prefix but the newest `keep`. A process that dies meanwhile leaves no half of one.
void keep_newest(const std::filesystem::path& folder, const std::string& prefix, int keep);

}  // namespace workshop
