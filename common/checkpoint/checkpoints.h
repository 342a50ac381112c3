// SPDX-License-Identifier: Apache-2.0
// Checkpoints: everything needed to resume a training run, on any number of ranks and with any strategy.
//
// Every rank lists the parts of tensors that it holds. A checkpoint contains the tensors of all ranks, each element
// once. Loading assembles the tensors and gives every rank the parts that it lists, so it does not matter which rank
// held a part when it was saved.
//
// A checkpoint is a folder with one safetensors file ("full") or one per rank ("sharded"), and an index.json. The index
// says where each part is, how far the training had got, and the size and checksum of each file. The checkpoint is
// written to a folder with another name, flushed to disk, and renamed. So a folder with the name of a checkpoint is
// always complete, no matter when a process dies. All ranks must see the same file system.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/parts.h"
#include "common/data/dataset.h"

namespace workshop {

// The progress of a training run.
struct Progress {
  int step = 0;   // optimizer steps made
  int epoch = 0;  // the epoch to continue in
  int batch = 0;  // the next batch in this epoch, counted per rank

  int first_batch(int of_epoch) const { return of_epoch == epoch ? batch : 0; }
};

class LossLog;
class Options;
struct CheckpointState;
class SaveBeside;

// Saves and restores the training state of all ranks together. Every rank must make the same calls in the same order.
// Does nothing without --checkpoints, --resume and --check-replicas.
//
// A bad folder or file ends every rank with status 2 and one line that names the file and says what is wrong with it.
class Checkpoints {
 public:
  // `samples`: size of the data set. `replicas`: number of data-parallel replicas; each processes one batch at
  // a time. The folder of --checkpoints is created if it is missing. It may contain the checkpoint that the run resumes
  // from and earlier ones, but no checkpoints of other runs and no later ones, which this run would reach again.
  Checkpoints(const Options& options, int samples, int replicas, ncclComm_t comm, cudaStream_t stream);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // ---- the state; add all of it before resume() ----
  // Adds the parts that this rank holds. A part that several ranks hold is saved once and loaded on each of them.
  void add(const TensorPart& part);
  void add(const std::vector<TensorPart>& parts);
  // Adds AdamW's first moments, `mean`, and second moments, `square`, of the parts. They have the same layout as the
  // parts' values, whose array starts at `values`. If `mean` is null, because the optimizer has no moments, adds
  // nothing.
  void add_adamw(const std::vector<TensorPart>& parts, const float* values, float* mean, float* square);
  // Adds the random state that determines the order of the samples.
  void add(RandomSampler& sampler);
  // Adds a number that the program wants saved and restored, such as the lowest validation loss.
  void add(const std::string& name, double& value);

  // With --resume, loads the state and returns its progress. Returns step 0 without --resume, or if --resume and
  // --checkpoints name the same folder and it has no checkpoint yet. `losses` numbers its steps from there on.
  Progress resume(LossLog& losses);

  // Call this after every optimizer step. `batches`: how many batches of the epoch are done. Saves if --save-every asks
  // for it, and compares the replicas if --check-replicas does.
  void step_done(int epoch, int batches, const Loader& loader);
  // Call this before enqueuing an update on the stream: if values are still being copied for a checkpoint
  // (--checkpoint-mode async), the stream waits for that.
  void before_update() const;
  // Saves the final state, unless it has been saved already. Returns when it is on disk.
  void finish();
  // Saves the state under the name `prefix` + step. Of checkpoints with the prefix "best-", keeps only the newest.
  void save(const std::string& prefix);

 private:
  std::unique_ptr<CheckpointState> state_;
  std::unique_ptr<SaveBeside> beside_;  // null unless --checkpoint-mode is async
};

}  // namespace workshop
