// SPDX-License-Identifier: Apache-2.0
// Saves a checkpoint beside the training (--checkpoint-mode async).
#pragma once

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/checkpoint/index.h"
#include "common/checkpoint/state.h"
#include "common/device/device.h"

namespace workshop {

// Saving has two parts. Copying the values from the device to pinned memory is short, and no update may change them
// meanwhile. Writing the copy to disk is long, and holds up nothing. So a separate stream makes the copy after the last
// update, beside the next forward and backward pass. The next update waits for the copy. A thread writes it to disk.
//
// Every rank writes the parts that it owns to a file, and then a note beside it. Rank 0 gives the folder its name when
// all notes are there. The ranks need no collective for it, which would have to wait for the slowest disk. What goes
// wrong on a rank ends the job with one line.
class SaveBeside {
 public:
  explicit SaveBeside(const CheckpointState& state) : state_(state) {}
  ~SaveBeside();
  SaveBeside(const SaveBeside&) = delete;
  SaveBeside& operator=(const SaveBeside&) = delete;

  // Begins to save the values as they are after the work enqueued so far. Waits if the last checkpoint is still being
  // written. `index`: with all parts. `folder`: the checkpoint's name; `prefix`: the beginning of it.
  void begin(const CheckpointIndex& index, const std::filesystem::path& folder, const std::string& prefix);

  // Makes the stream of the training wait until the values have been copied. Call it before enqueuing an update.
  void before_update() const;

  // Waits until this rank's part is on disk and, on rank 0, until the folder has its name.
  void finish();

 private:
  void copy_parts();
  void write(CheckpointIndex index, const std::filesystem::path& folder, const std::string& prefix);

  const CheckpointState& state_;
  Stream stream_{"checkpoint"};
  Event updated_, copied_;
  HostBuffer<float> copy_;  // the parts that this rank owns, one after the other
  std::thread thread_;
};

}  // namespace workshop
