// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/base/print.h"
#include "common/base/untrusted.h"
#include "common/checkpoint/folder.h"
#include "common/checkpoint/replicas.h"
#include "common/checkpoint/save_beside.h"
#include "common/checkpoint/state.h"
#include "common/nccl/gather.h"
#include "common/options/options.h"
#include "common/record/loss_log.h"
#include "common/watchdog/watchdog.h"

namespace workshop {

namespace fs = std::filesystem;

std::map<std::string, std::string> settings_of(const Options& options) {
  const auto all = nlohmann::json::parse(options.json());
  std::map<std::string, std::string> settings;
  for (const char* name : kSettings) {
    if (all.contains(name)) settings[name] = all.at(name).dump();
  }
  settings[kModel] = nlohmann::json(options.model_name()).dump();
  return settings;
}

void CheckpointState::attempt(int status, const std::function<void()>& work) const {
  std::string error;
  try {
    work();
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  agree(error, status);
}

void CheckpointState::agree(const std::string& error, int status) const {
  for (const std::string& text : gather_text(error, comm, stream)) {
    if (!text.empty()) fail_alike(status, text);
  }
}

namespace {

// Returns the checkpoint to resume from, or "" to start from the beginning. Creates and locks the folder of
// --checkpoints.
std::string find(CheckpointState& state) {
  // Only rank 0 searches, so that all ranks use the same checkpoint.
  std::string found;
  state.attempt(kUsage, [&] {
    if (state.rank > 0) return;
    const std::string &target = state.options.checkpoints, &source = state.options.resume;
    const Claim claim{"is saving its checkpoints to " + target, "choose another folder for --checkpoints"};
    const std::string prefix = (fs::path(target) / ".").string();
    try {
      if (!target.empty() && fs::is_directory(target))
        state.lock.emplace(prefix, claim);  // before looking what is there
      if (!source.empty()) found = find_checkpoint(source);
      if (found.empty() && !source.empty() && source != target)
        throw std::runtime_error("--resume is '" + source + "', but there is no checkpoint there");
      if (target.empty() || state.lock) return;
      fs::create_directories(target);
      state.lock.emplace(prefix, claim);
    } catch (const fs::filesystem_error& failed) {
      throw std::runtime_error(failed.path1().string() + ": " + failed.code().message());
    }
  });
  return gather_text(found, state.comm, state.stream)[0];
}

// Describes the run, without its tensors.
CheckpointIndex describe(const CheckpointState& state) {
  CheckpointIndex index;
  index.program = state.options.program();
  index.ranks = state.world;
  index.step = state.step;
  index.epoch = state.epoch;
  index.samples = state.batches * state.options.batch_size * state.replicas;
  if (state.sampler != nullptr) index.random = state.sampler->state(index.epoch);
  index.settings = settings_of(state.options);
  for (const auto& [name, value] : state.numbers) index.numbers[name] = *value;
  return index;
}

// Calls `read`. If a file of the checkpoint is damaged, adds the name of the previous checkpoint to the error.
template <typename Read>
void read_files(const std::string& checkpoint, Read read) {
  try {
    read();
  } catch (const std::runtime_error& failed) {
    const std::string message = failed.what(), before = checkpoint_before(checkpoint);
    const bool of_file =
        message.find("index.json: ") != std::string::npos || message.find(".safetensors") != std::string::npos;
    if (!of_file || before.empty()) throw;
    throw std::runtime_error(message + "; remove " + checkpoint + " to resume from the previous one, " + before);
  }
}

}  // namespace

Checkpoints::Checkpoints(const Options& options, int samples, int replicas, ncclComm_t comm, cudaStream_t stream)
    : state_(new CheckpointState{options, samples, replicas, 0, 1, comm, stream}) {
  NCCL_CHECK(ncclCommUserRank(comm, &state_->rank));
  NCCL_CHECK(ncclCommCount(comm, &state_->world));
  if (!options.checkpoints.empty() && state_->beside()) beside_ = std::make_unique<SaveBeside>(*state_);
}

Checkpoints::~Checkpoints() = default;

void Checkpoints::add(const TensorPart& part) { state_->parts.push_back(part); }
void Checkpoints::add(const std::vector<TensorPart>& parts) {
  for (const TensorPart& part : parts) add(part);
}
void Checkpoints::add(RandomSampler& sampler) { state_->sampler = &sampler; }
void Checkpoints::add(const std::string& name, double& value) { state_->numbers[name] = &value; }

void Checkpoints::add_adamw(const std::vector<TensorPart>& parts, const float* values, float* mean, float* square) {
  if (mean == nullptr) return;
  for (TensorPart part : parts) {
    const std::string tensor = part.tensor;
    const std::ptrdiff_t offset = part.values - values;
    part.tensor = "exp_avg." + tensor;
    part.values = mean + offset;
    add(part);
    part.tensor = "exp_avg_sq." + tensor;
    part.values = square + offset;
    add(part);
  }
}

Progress Checkpoints::resume(LossLog& losses) {
  CheckpointState& state = *state_;
  if (state.options.checkpoints.empty() && state.options.resume.empty()) return {};
  const SlowFiles slow_files;
  const std::string found = find(state);
  CheckpointIndex index;
  bool own = false;  // whether the checkpoint is in the folder that this run writes to
  state.attempt(kUsage, [&] {
    if (!found.empty()) read_files(found, [&] { index = read_index(found); });
    if (state.rank > 0 || state.options.checkpoints.empty()) return;
    own = !found.empty() && fs::equivalent(fs::canonical(found).parent_path(), state.options.checkpoints);
    require_room(state.options.checkpoints, own ? index.step : -1);
    remove_unfinished(state.options.checkpoints);
  });
  state.step = index.step;
  if (gather_values<char>(own, state.comm, state.stream)[0]) state.saved = state.step;
  Progress progress;
  if (!found.empty()) {
    state.attempt(kUsage, [&] { read_files(found, [&] { progress = load(state, index, found); }); });
    print0("Resumed from %s: step %d, saved by %s on %d rank(s)\n", found.c_str(), progress.step,
           shown(index.program).c_str(), index.ranks);
  } else if (!state.options.resume.empty()) {
    print0("No checkpoint in %s yet: starting from the beginning\n", state.options.resume.c_str());
  }
  state.epoch = progress.epoch;
  state.batches = progress.batch;
  losses.start_at(state.step);
  return progress;
}

void Checkpoints::step_done(int epoch, int batches, const Loader& loader) {
  const bool epoch_done = batches >= loader.steps();
  const int every = state_->options.save_every;
  ++state_->step;
  state_->epoch = epoch_done ? epoch + 1 : epoch;
  state_->batches = epoch_done ? 0 : batches;
  const int check_every = state_->options.check_replicas;
  if (check_every > 0 && state_->step % check_every == 0) require_equal_replicas(*state_);
  if (every > 0 && state_->step % every == 0) save("step-");
}

void Checkpoints::before_update() const {
  if (beside_) beside_->before_update();
}

void Checkpoints::finish() {
  if (state_->saved != state_->step) save("step-");
  if (!beside_) return;
  const SlowFiles slow_files;
  state_->attempt(kFailed, [&] { beside_->finish(); });
}

void Checkpoints::save(const std::string& prefix) {
  CheckpointState& state = *state_;
  if (state.options.checkpoints.empty()) return;
  const fs::path folder = fs::path(state.options.checkpoints) / checkpoint_name(prefix, state.step);
  const fs::path unfinished = unfinished_name(folder);
  CheckpointIndex index = describe(state);
  const SlowFiles slow_files;
  if (beside_) {
    place_parts(state, index);
    beside_->begin(index, folder, prefix);
    if (prefix == "step-") state.saved = state.step;
    return;
  }
  bool there = false;  // whether an earlier run has saved this step
  state.attempt(kFailed, [&] {
    if (state.rank > 0) return;
    there = is_checkpoint(folder);
    if (there) return;
    remove_unfinished(state.options.checkpoints);  // from saves that were killed
    fs::create_directory(unfinished);
  });
  if (gather_values<char>(there, state.comm, state.stream)[0]) return;
  write_parts(state, index, unfinished);
  state.attempt(kFailed, [&] {
    if (state.rank > 0) return;
    complete_checkpoint(unfinished, folder, index);
    if (prefix == "best-") keep_newest(state.options.checkpoints, prefix, 1);
    if (prefix == "step-" && state.options.keep > 0) keep_newest(state.options.checkpoints, prefix, state.options.keep);
  });
  if (prefix == "step-") state.saved = state.step;
}

}  // namespace workshop
