// SPDX-License-Identifier: Apache-2.0
// A run that can be ended at any time: ddp.cu, with a small version of what the common layer does in every chapter.
// The ranks agree on a step to stop at, save checkpoints beside the training, and find out if their replicas have
// parted. 02_ddp/long_runs.md explains all three.
#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "01_single_gpu/models.h"
#include "01_single_gpu/optimizer.h"
#include "02_ddp/ddp.h"
#include "02_ddp/support/long_run_files.h"
#include "02_ddp/support/long_run_options.h"
#include "common/base/stop_signal.h"
#include "common/job/job.h"
#include "common/nccl/off_the_record.h"

using namespace workshop;
namespace fs = std::filesystem;

// Lets all ranks stop before the same step after a signal on any of them. No rank waits for the newest work.
class StopVote {
 public:
  // `compute`: the stream of the training.
  StopVote(const Group& world, cudaStream_t compute)
      : voters_(world.split(0, world.rank(), "vote")), compute_(compute) {}

  // Call it before each step, on every rank. `signal`: the one that this rank has got by now, or 0. Returns the signal
  // that makes all ranks stop before this step, or 0.
  int before_step(int signal) {
    const OffTheRecord off_the_record;  // the ledger counts only what the training sends
    int stop = 0;
    const int slot = step_ % kSlots;
    mine_.data()[slot] = signal;
    CUDA_CHECK(cudaMemcpyAsync(flag_.data(), mine_.data() + slot, sizeof(int), cudaMemcpyHostToDevice, stream_));
    // TODO 02.10: Combine the flags of all ranks, in place, so that every rank has the signal if any rank has it.
    //   The flag is one ncclInt at flag_.data(). Use an all-reduce over voters_.comm(), on stream_. A flag is the
    //   number of a signal, or 0; several ranks may have got one, and `stop` must still be the number of a signal.
    todo("02.10");
    // END TODO 02.10
    CUDA_CHECK(cudaMemcpyAsync(any_.data() + slot, flag_.data(), sizeof(int), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaEventRecord(known_[slot], stream_));
    if (step_ >= kLag) {
      // TODO 02.11: Set `stop` to the combined flag of kLag calls ago.
      //   This is call number step_. The combined flag of call number n is in any_.data()[n % kSlots] when the event
      //   known_[n % kSlots] has been reached. All ranks must look at the same n. Which function lets the host wait for
      //   this event, and not for what was enqueued later?
      todo("02.11");
      // END TODO 02.11
    }
    require_no_query_left();
    probe("02.10", "combined flag", flag_.data(), {1}, stream_);
    if (step_ >= kLag) probe("02.11", "flag of kLag steps ago", any_.data() + (step_ - kLag) % kSlots, {1}, compute_);
    probe("02.11", "signal to stop because of", std::array{stop});
    ++step_;
    return stop;
  }

 private:
  static constexpr int kLag = 2, kSlots = 1024;  // kSlots must be more than kLag
  Group voters_;
  cudaStream_t compute_;
  Stream stream_{"vote"};
  KnownEvents<kSlots> known_;
  DeviceBuffer<int> flag_{1, Memory::data};
  HostBuffer<int> mine_{kSlots}, any_{kSlots};
  int step_ = 0;
};

// Saves the parameters beside the training. All ranks have the same ones, so each saves only its share of them.
class Saver {
 public:
  // `compute`: the stream of the updates. Collective.
  Saver(const Model& model, const Group& world, const LongRunOptions& options, cudaStream_t compute)
      : world_(world),
        folder_(options.folder),
        options_(options),
        values_(model.values() + begin_of_share(model.count(), world.rank())),
        copy_(begin_of_share(model.count(), world.rank() + 1) - begin_of_share(model.count(), world.rank())),
        compute_(compute) {
    if (world_.rank() == 0) remove_unfinished_in(folder_);
    barrier();
  }

  // Begins to save the parameters as they will be after the work enqueued so far, which is `step` steps.
  void begin(int step) {
    // TODO 02.12: Make the copy wait for the last update.
    //   The updates run on compute_, the copy on copier_. Use the event updated_, as in TODO 02.7.
    todo("02.12");
    // END TODO 02.12
    probe("02.12", "parameters to save", values_, {size()}, copier_);
    CUDA_CHECK(cudaMemcpyAsync(copy_.data(), values_, copy_.bytes(), cudaMemcpyDeviceToHost, copier_));
    CUDA_CHECK(cudaEventRecord(copied_, copier_));
    probe("02.J", "parameters that are saved", copy_.data(), {size()}, copier_);
    steps_.push_back(step);
    call_on_host(copier_, [this, step] { write(step); });  // the next copy waits for the writing
  }

  // Call it before enqueuing an update.
  void before_update() {
    if (steps_.empty()) return;
    // TODO 02.13: Make the update wait for the copy.
    //   begin() has recorded copied_ behind the copy and before the writing. Which stream must wait? The host must not.
    todo("02.13");
    // END TODO 02.13
    probe("02.13", "what is saved, before the update", copy_.data(), {size()}, compute_);
  }

  // Waits until all files are written and all folders have their names. Collective.
  void finish() {
    copier_.synchronize();
    barrier();
    std::erase_if(steps_, [&](int step) { return !fs::exists(folder_ / folder_of(step)); });
    probe("02.14", "steps whose folders have their names", steps_);
  }

 private:
  // Writes this rank's share of the parameters after `step` steps.
  void write(int step) {
    const int rank = world_.rank(), ranks = world_.size();
    const fs::path folder = folder_ / folder_of(step), unfinished = folder.string() + kUnfinished;
    if (rank == 0) fs::remove_all(folder);  // of an earlier run
    fs::create_directories(unfinished);
    write_file(unfinished / file_of(rank), copy_.data(), copy_.bytes(), options_.slow_disk_of(rank, ranks, step));
    // TODO 02.14: Give the folder its name when the files of all ranks are complete.
    //   A program that finds `folder` assumes that the files of all ranks in it are complete. `unfinished / file_of(r)`
    //   is the file of rank r, 0 … ranks - 1; it has this name only when it is complete. fs::exists(file) says whether
    //   it is there, wait_a_moment() sleeps for 2 ms, and fs::rename(unfinished, folder) gives the name. Only one rank
    //   may do that.
    todo("02.14");
    // END TODO 02.14
    if (rank == 0 && fs::exists(folder)) require_all_files(folder, ranks);
  }

  int begin_of_share(int count, int rank) const { return static_cast<int>(1LL * count * rank / world_.size()); }
  int size() const { return static_cast<int>(copy_.size()); }
  void barrier() const {
    const OffTheRecord off_the_record;
    world_.gather(0);
  }

  Group world_;
  fs::path folder_;
  const LongRunOptions& options_;
  Real* values_;  // this rank's share
  HostBuffer<Real> copy_;
  cudaStream_t compute_;
  Stream copier_{"copier"};
  Event updated_, copied_;
  std::vector<int> steps_;  // saved so far
};

// Finds out whether all replicas have the same bits.
class ReplicaCheck {
 public:
  ReplicaCheck(const Model& model, const Group& world, cudaStream_t stream)
      : model_(model), world_(world), stream_(stream), values_(model.count()), sums_(world.size(), Memory::data) {}

  // Returns the first rank whose parameters differ from those of rank 0, or -1. Collective, and waits for the device.
  int parted() {
    const OffTheRecord off_the_record;
    int sum = 0;  // this rank's checksum
    CUDA_CHECK(cudaMemcpyAsync(values_.data(), model_.values(), values_.bytes(), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    sum = checksum(values_.data(), values_.bytes());
    int* mine = sums_.data() + world_.rank();
    CUDA_CHECK(cudaMemcpyAsync(mine, &sum, sizeof sum, cudaMemcpyHostToDevice, stream_));
    // TODO 02.15: Gather the checksums of all ranks in sums_.data(), on every rank.
    //   That of this rank is there already, at `mine`: one ncclInt. Use a collective over world_.comm(), on stream_, in
    //   place. What is its count (docs/calls.md)? Would a sum or a maximum say as much?
    todo("02.15");
    // END TODO 02.15
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    probe("02.K", "parameters of the checksum", values_.data(), {model_.count()}, stream_);
    const std::vector<int> sums = sums_.download(stream_);
    std::vector<int> same;
    for (const int other : sums) same.push_back(other == sum);
    probe("02.15", "whether each rank's checksum is that of this rank", same);
    const auto differs = std::ranges::find_if(sums, [&](int other) { return other != sums[0]; });
    return differs == sums.end() ? -1 : static_cast<int>(differs - sums.begin());
  }

 private:
  const Model& model_;
  Group world_;
  cudaStream_t stream_;
  HostBuffer<Real> values_;
  DeviceBuffer<int> sums_;  // one per rank
};

int main(int argc, char** argv) {
  Options options("02_ddp/long_run", "Trains with data parallelism, and can be stopped at any time.",
                  Sampling::distributed);
  LongRunOptions long_run;
  long_run.add_to(options);
  options.parse(argc, argv);
  Job job(options);
  long_run.take_from(options);
  if (!long_run.folder.empty()) catch_stop_signals();  // otherwise stopping would lose everything

  const Stream stream;
  const Network network = make_network(options);
  Model model(network, options.batch_size, stream);
  if (job.rank() == 0) model.initialize(options.model_seed);
  broadcast_parameters(model, job.group(), stream);
  Activations activations = model.make_activations();
  Optimizer optimizer(options, model.count(), stream);
  StopVote vote(job.group(), stream);
  Saver saver(model, job.group(), long_run, stream);
  ReplicaCheck replicas(model, job.group(), stream);

  Training training(options, job, {.replicas = job.world(), .replica = job.rank()}, network.data(), stream);
  int step = 0, signal = 0;  // steps so far; the signal that ends the training
  while (signal == 0 && training.next_epoch()) {
    while ((signal = vote.before_step(long_run.signal(job.ranks(), step))) == 0 && training.next_step()) {
      const Batch batch = training.batch();
      model.forward(batch, activations);
      model.loss(activations, batch.y, training.samples(), training.loss());
      model.backward(activations, /*accumulate=*/false);
      average_gradients(model, job.group(), stream);
      saver.before_update();
      optimizer.step(model.values(), model.grads(), training.lr_factor());
      ++step;
      if (long_run.damages(job.rank(), step)) CUDA_CHECK(cudaMemsetAsync(model.values(), 1, 1, stream));
      if (long_run.saves_after(step)) saver.begin(step);
      if (!long_run.checks_after(step)) continue;
      if (const int rank = replicas.parted(); rank >= 0) {
        fail_alike(kFailed,
                   formatted("after step %d, the parameters on rank %d differ from those on rank 0", step, rank));
      }
    }
    average_losses(training.losses(), job.group(), stream);
    training.end_epoch();
  }
  if (long_run.saves_at_the_end(step)) saver.begin(step);
  saver.finish();
  if (signal != 0) print0("Stopped after step %d because of %s\n", step, stop_signal_name(signal));
  if (signal != 0 && !long_run.folder.empty()) set_end_status(kSaved);
  record_parameters(model, job.rank(), stream);
}
