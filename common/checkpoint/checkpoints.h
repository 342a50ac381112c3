// SPDX-License-Identifier: Apache-2.0
// Checkpoints: what it takes to go on with a training run, on any number of ranks and with any strategy.
//
// Every rank says which parts of which tensors it holds; a checkpoint is all tensors of all ranks, each element once.
// Loading puts the tensors together again and gives every rank the parts that it asks for, so it does not matter who
// held which of them when they were saved.
//
// A checkpoint is a folder of safetensors files, of one ("full") or of one a rank ("sharded"), with an index.json that
// says where each part is, how far the training was, and how long and which checksum each file is to be. It is written
// to a folder with another name, flushed to the disk, and renamed: whenever a process dies, what has the name of a
// checkpoint is a complete one. All ranks must see the same file system.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/parts.h"
#include "common/data/dataset.h"

namespace workshop {

// How far a training run is.
struct Progress {
  int step = 0;   // optimizer steps made
  int epoch = 0;  // the epoch to go on with, and the batch in it, of those of one rank
  int batch = 0;

  int first_batch(int of_epoch) const { return of_epoch == epoch ? batch : 0; }
};

class LossLog;
class Options;
struct CheckpointState;

// Saves and restores the training state of all ranks together. Every rank makes the same calls in the same order.
// Without --checkpoints and --resume it does nothing.
//
// Bad folders and files end every rank with status 2 and one line that names the file and what is wrong with it.
class Checkpoints {
 public:
  // `samples` are those of the data set. `replicas` is the number of data-parallel replicas, which go through a batch
  // each at a time. The folder of --checkpoints is made if it is missing. It may hold the checkpoint that the run goes
  // on from and those before it, but none of another run, nor any that this one would come to again.
  Checkpoints(const Options& options, int samples, int replicas, ncclComm_t comm, cudaStream_t stream);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // ---- what belongs to the state: all of it before resume() ----
  // Parts that several ranks hold alike are saved once and loaded on each.
  void add(const TensorPart& part);
  void add(const std::vector<TensorPart>& parts);
  // The optimizer's running means of what the parts hold, which lie as the parts' values do from `values` on. Null
  // pointers, of an optimizer without such, add nothing.
  void add_adamw(const std::vector<TensorPart>& parts, const float* values, float* mean, float* square);
  // The order of the samples, where it comes from a random state.
  void add(RandomSampler& sampler);
  // A number of the run's own.
  void add(const std::string& name, double& value);

  // With --resume, loads the state and returns how far it is; else, and if there is no checkpoint yet in the folder
  // that this run writes to itself, returns the beginning. `losses` goes on counting from there.
  Progress resume(LossLog& losses);

  // Call after every optimizer step, with the batches of the epoch that are done by now. Saves if --save-every asks for
  // it.
  void step_done(int epoch, int batches, const Loader& loader);
  // Saves the end of the training, unless that is done.
  void finish();
  // Saves the state under a name of its own and removes older ones of this name: "best-".
  void save(const std::string& prefix);

 private:
  std::unique_ptr<CheckpointState> state_;
};

}  // namespace workshop
