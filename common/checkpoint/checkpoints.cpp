#include "common/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "common/checkpoint/folder.h"
#include "common/checkpoint/index.h"
#include "common/device.h"
#include "common/job.h"
#include "common/record/recorder.h"
#include "common/checkpoint/safetensors.h"
#include "common/run/untrusted.h"
#include "common/watchdog/watchdog.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Where an element of a part lies: f(first in the whole tensor, first in the part, count) for each of its runs.
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

// ---- reading -------------------------------------------------------------------------------------------------------

// The files of a checkpoint, opened and checked when something of them is needed for the first time.
class Reader {
 public:
  Reader(const CheckpointIndex& index, fs::path folder) : index_(index), folder_(std::move(folder)) {
    for (const CheckpointIndex::Part& part : index.parts) parts_[part.tensor].push_back(&part);
  }

  std::vector<float> whole(const std::string& tensor) {
    std::vector<float> values(elements(index_.tensors.at(tensor)));
    for (const CheckpointIndex::Part* part : parts_[tensor]) {
      const SafetensorsFile::Tensor& stored = file(part->file)[part->key];
      if (stored.count != part->rows * part->columns) {
        throw std::runtime_error((folder_ / part->file).string() + ": its tensor " + quote(part->key) + " has " +
                                 std::to_string(stored.count) + " elements; the index says " +
                                 std::to_string(part->rows * part->columns));
      }
      copy_into_whole(values, *part, stored.values);
    }
    return values;
  }

 private:
  const SafetensorsFile& file(const std::string& name) {
    std::unique_ptr<SafetensorsFile>& file = files_[name];
    if (file != nullptr) return *file;
    const std::string path = folder_ / name;
    file = std::make_unique<SafetensorsFile>(path);
    const CheckpointIndex::File& expected = index_.files.at(name);
    if (file->bytes() != expected.bytes) {
      throw std::runtime_error(path + " has " + std::to_string(file->bytes()) + " bytes; the index says " +
                               std::to_string(expected.bytes));
    }
    if (file->checksum() != expected.checksum) {
      throw std::runtime_error(path + " is damaged: its checksum is not the one in the index");
    }
    return *file;
  }

  const CheckpointIndex& index_;
  fs::path folder_;
  std::map<std::string, std::vector<const CheckpointIndex::Part*>> parts_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

// The options without whose values the state means nothing; kOrder only within an epoch.
constexpr const char* kOrder = "shuffle";
std::map<std::string, std::string> settings_of(const Options& options) {
  const Json all = Json::parse(options.json());
  std::map<std::string, std::string> settings;
  for (const char* name :
       {"layers", "activation", "optimizer", "samples", "seed", "validation-samples", "heads", kOrder}) {
    settings[name] = all.value(name, Json(0)).dump();
  }
  return settings;
}

}  // namespace

// ---- parts ---------------------------------------------------------------------------------------------------------

TensorPart whole_tensor(const std::string& name, const std::vector<int>& shape, float* values) {
  const std::int64_t count = elements(shape);
  return {name, shape, 0, 1, count, count, values};
}

std::vector<TensorPart> range_of(const TensorPart& part, std::int64_t begin, std::int64_t end, float* values) {
  std::vector<TensorPart> parts;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t row = at / part.columns, column = at % part.columns;
    TensorPart next = part;
    next.first = part.first + row * part.stride + column;
    next.values = values + (at - begin);
    if (column == 0 && end - at >= part.columns) {
      next.rows = (end - at) / part.columns;  // whole runs
    } else {
      next.rows = 1;
      next.columns = next.stride = std::min(end - at, part.columns - column);
    }
    at += next.count();
    parts.push_back(next);
  }
  return parts;
}

std::vector<TensorPart> range_of(const std::vector<TensorPart>& parts, std::int64_t begin, std::int64_t end,
                                 float* values) {
  std::vector<TensorPart> ranges;
  std::int64_t offset = 0;  // of the part in the array
  for (const TensorPart& part : parts) {
    const std::int64_t from = std::max(begin, offset), to = std::min(end, offset + part.count());
    if (from < to) {
      const auto range = range_of(part, from - offset, to - offset, values + (from - begin));
      ranges.insert(ranges.end(), range.begin(), range.end());
    }
    offset += part.count();
  }
  return ranges;
}

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

// ---- what the ranks tell each other --------------------------------------------------------------------------------

Checkpoints::Checkpoints(const Options& options, int replicas, ncclComm_t comm, cudaStream_t stream)
    : options_(options), replicas_(replicas), comm_(comm), stream_(stream), save_every_(options.save_every) {
  NCCL_CHECK(ncclCommUserRank(comm, &rank_));
  NCCL_CHECK(ncclCommCount(comm, &world_));
}

// The texts of all ranks, on all ranks.
std::vector<std::string> Checkpoints::exchange(const std::string& text) const {
  const OffTheRecord off_the_record;
  std::vector<unsigned long long> sizes(world_);
  sizes[rank_] = text.size();
  DeviceBuffer<unsigned long long> device_sizes(world_, Memory::data);
  device_sizes.upload(sizes, stream_);
  NCCL_CHECK(ncclAllGather(device_sizes.data() + rank_, device_sizes.data(), 1, ncclUint64, comm_, stream_));
  sizes = device_sizes.download(stream_);

  const std::size_t longest = std::max<std::size_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  std::string padded = text;
  padded.resize(longest);
  DeviceBuffer<char> mine(longest, Memory::data), all(longest * world_, Memory::data);
  mine.upload(padded.data(), stream_);
  NCCL_CHECK(ncclAllGather(mine.data(), all.data(), longest, ncclChar, comm_, stream_));
  const std::vector<char> received = all.download(stream_);
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_; ++rank) texts.emplace_back(received.data() + rank * longest, sizes[rank]);
  return texts;
}

// Works on every rank. What goes wrong on one must not leave the others waiting: it ends the job for all of them.
void Checkpoints::attempt(int status, const std::function<void()>& work) const {
  std::string error;
  try {
    work();
  } catch (const std::exception& failed) {
    error = failed.what();
  }
  agree(error, status);
}

// Returns if no rank has an error; all ranks wait for each other here. Else ends the job with the first one.
void Checkpoints::agree(const std::string& error, int status) const {
  for (const std::string& text : exchange(error)) {
    if (!text.empty()) fail_alike(status, text);
  }
}

// ---- loading -------------------------------------------------------------------------------------------------------

Progress Checkpoints::resume(LossLog& losses) {
  if (options_.checkpoints.empty() && options_.resume.empty()) return {};
  const SlowFiles slow_files;
  const std::string found = find();
  CheckpointIndex index;
  bool own = false;  // the checkpoint is in the folder that this run writes to
  attempt(kUsage, [&] {
    if (!found.empty()) index = read_index(found);
    if (rank_ > 0 || options_.checkpoints.empty()) return;
    own = !found.empty() && fs::equivalent(fs::canonical(found).parent_path(), options_.checkpoints);
    require_room(options_.checkpoints, own ? index.step : -1);
    remove_unfinished(options_.checkpoints);
  });
  step_ = index.step;
  if (!exchange(own ? "own" : "")[0].empty()) saved_ = step_;
  Progress progress;
  if (!found.empty()) {
    attempt(kUsage, [&] { progress = load(index, found); });
    print0("Resumed from %s: step %d, saved by %s on %d rank(s)\n", found.c_str(), progress.step,
           shown(index.program).c_str(), index.ranks);
  } else if (!options_.resume.empty()) {
    print0("No checkpoint in %s yet: starting at the beginning\n", options_.resume.c_str());
  }
  epoch_ = progress.epoch;
  batches_ = progress.batch;
  losses.start_at(step_);
  return progress;
}

// The checkpoint to go on from; empty if there is none. Makes the folder to write to.
std::string Checkpoints::find() const {
  // Rank 0 looks, so that all ranks choose the same one.
  std::string found;
  attempt(kUsage, [&] {
    if (rank_ > 0) return;
    const std::string &target = options_.checkpoints, &source = options_.resume;
    try {
      if (!source.empty()) found = find_checkpoint(source);
      if (found.empty() && !source.empty() && source != target)
        throw std::runtime_error("--resume is '" + source + "'; there is no checkpoint");
      if (!target.empty()) fs::create_directories(target);
    } catch (const fs::filesystem_error& failed) {
      throw std::runtime_error(failed.path1().string() + ": " + failed.code().message());
    }
  });
  return exchange(found)[0];
}

// Loads this rank's state. Throws std::runtime_error with what is wrong.
Progress Checkpoints::load(const CheckpointIndex& index, const std::string& folder) {
  for (const auto& [name, value] : settings_of(options_)) {
    if (name == kOrder && index.samples == 0) continue;
    const auto saved = index.settings.find(name);
    const std::string other = saved == index.settings.end() ? "none" : saved->second;
    if (value != other) {
      throw std::runtime_error("--" + name + " is " + value + "; the checkpoint " + folder + " was made with " +
                               shown(other));
    }
  }
  if (index.epoch > options_.epochs || index.samples >= options_.samples) {
    throw std::runtime_error("the checkpoint " + folder + " is " + std::to_string(index.samples) +
                             " samples into epoch " + std::to_string(index.epoch) + "; --epochs is " +
                             std::to_string(options_.epochs) + ", --samples " + std::to_string(options_.samples));
  }
  Progress progress{index.step, index.epoch, 0};
  const std::int64_t at_once = std::int64_t{options_.batch_size} * replicas_;
  if (index.samples % at_once != 0) {
    throw std::runtime_error("the checkpoint " + folder + " is " + std::to_string(index.samples) +
                             " samples into an epoch, which is no multiple of the " + std::to_string(at_once) +
                             " samples that --batch-size " + std::to_string(options_.batch_size) + " and " +
                             std::to_string(replicas_) + " replica(s) go through at once");
  }
  progress.batch = static_cast<int>(index.samples / at_once);
  if (index.samples > 0 && options_.shuffle && index.random.empty() != (sampler_ == nullptr)) {
    throw std::runtime_error("the checkpoint " + folder + " is " + std::to_string(index.samples) +
                             " samples into an epoch whose order " + shown(index.program) + " shuffled, and " +
                             options_.program() + " shuffles in another way; the end of an epoch fits both");
  }
  for (const auto& [name, value] : numbers_) {
    if (index.numbers.contains(name)) *value = index.numbers.at(name);
  }
  if (sampler_ != nullptr) sampler_->go_to(index.epoch, index.random);
  load_parts(index, folder);
  return progress;
}

void Checkpoints::load_parts(const CheckpointIndex& index, const std::string& folder) {
  std::map<std::string, std::vector<const TensorPart*>> mine;
  for (const TensorPart& part : parts_) mine[part.tensor].push_back(&part);
  Reader reader(index, folder);
  for (const auto& [tensor, parts] : mine) {
    const auto saved = index.tensors.find(tensor);
    if (saved == index.tensors.end()) throw std::runtime_error("the checkpoint " + folder + " has no '" + tensor + "'");
    if (saved->second != parts[0]->shape) {
      throw std::runtime_error("'" + tensor + "' has another shape in the checkpoint " + folder);
    }
    const std::vector<float> whole = reader.whole(tensor);
    for (const TensorPart* part : parts) {
      std::vector<float> values(part->count());
      for_each_run(*part, [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t count) {
        std::copy_n(whole.begin() + in_whole, count, values.begin() + in_part);
      });
      const std::size_t bytes = values.size() * sizeof(float);
      CUDA_CHECK(cudaMemcpyAsync(part->values, values.data(), bytes, cudaMemcpyDefault, stream_));
      CUDA_CHECK(cudaStreamSynchronize(stream_));
    }
  }
}

// ---- saving --------------------------------------------------------------------------------------------------------

void Checkpoints::finish() {
  if (!options_.checkpoints.empty() && saved_ != step_) save("step-");
}

void Checkpoints::save(const std::string& prefix) {
  if (options_.checkpoints.empty()) return;
  const fs::path folder = fs::path(options_.checkpoints) / checkpoint_name(prefix, step_);
  const fs::path unfinished = unfinished_name(folder);
  const bool full = options_.checkpoint_format == "full";
  CheckpointIndex index = describe();
  const SlowFiles slow_files;
  bool there = false;  // of a run that came as far as here before
  attempt(kFailed, [&] {
    if (rank_ > 0) return;
    there = is_checkpoint(folder);
    if (there) return;
    fs::remove_all(unfinished);
    fs::create_directory(unfinished);
  });
  if (!exchange(there ? "there" : "")[0].empty()) return;

  CUDA_CHECK(cudaStreamSynchronize(stream_));
  place_parts(index);
  attempt(kFailed, [&] { full ? write_full(index, unfinished) : write_sharded(index, unfinished); });
  Json mine = Json::object();
  for (const auto& [name, file] : index.files) {
    if (file.bytes > 0) mine[name] = {file.bytes, file.checksum};
  }
  for (const std::string& text : exchange(mine.dump())) {
    const Json theirs = Json::parse(text);
    for (const auto& [name, file] : theirs.items()) index.files[name] = {file[0], file[1]};
  }
  attempt(kFailed, [&] {
    if (rank_ > 0) return;
    complete_checkpoint(unfinished, folder, index);
    if (prefix == "best-") keep_newest(options_.checkpoints, prefix, 1);
    if (prefix == "step-" && options_.keep > 0) keep_newest(options_.checkpoints, prefix, options_.keep);
  });
  if (prefix == "step-") saved_ = step_;
}

// The training, without what it holds.
CheckpointIndex Checkpoints::describe() const {
  CheckpointIndex index;
  index.program = options_.program();
  index.ranks = world_;
  index.step = step_;
  index.epoch = epoch_;
  index.samples = batches_ * options_.batch_size * replicas_;
  if (sampler_ != nullptr) index.random = sampler_->state(index.epoch);
  index.settings = settings_of(options_);
  for (const auto& [name, value] : numbers_) index.numbers[name] = *value;
  return index;
}

// Decides who writes which parts, the first rank that holds them, and to which file; the same on every rank.
void Checkpoints::place_parts(CheckpointIndex& index) {
  if (owned_.empty()) {
    Json mine = Json::array();
    for (const TensorPart& p : parts_) mine.push_back({p.tensor, p.shape, p.first, p.rows, p.columns, p.stride});
    using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
    std::set<Key> placed;
    const std::vector<std::string> texts = exchange(mine.dump());
    for (int owner = 0; owner < world_; ++owner) {
      const Json theirs = Json::parse(texts[owner]);
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        const Json& p = theirs[i];
        float* values = owner == rank_ ? parts_[i].values : nullptr;
        const TensorPart part{p[0], p[1].get<std::vector<int>>(), p[2], p[3], p[4], p[5], values};
        if (!placed.insert({part.tensor, part.first, part.rows, part.columns, part.stride}).second) continue;
        owned_.push_back({part, owner});
      }
    }
    // A full file is written tensor by tensor.
    std::stable_sort(owned_.begin(), owned_.end(),
                     [](const OwnedPart& a, const OwnedPart& b) { return a.part.tensor < b.part.tensor; });
  }
  for (const auto& [part, owner] : owned_) {
    index.tensors[part.tensor] = part.shape;
    if (options_.checkpoint_format == "full") continue;
    const std::string file = "rank-" + std::to_string(owner) + "-of-" + std::to_string(world_) + ".safetensors";
    const std::string key = part.tensor + "[" + std::to_string(part.first) + "]";
    index.parts.push_back({part.tensor, part.first, part.rows, part.columns, part.stride, file, key});
    index.files[file];
  }
  if (options_.checkpoint_format != "full") return;
  for (const auto& [tensor, shape] : index.tensors) {
    const std::int64_t count = elements(shape);
    index.parts.push_back({tensor, 0, 1, count, count, "model.safetensors", tensor});
  }
  index.files["model.safetensors"];
}

// Each rank writes what it owns to a file of its own.
void Checkpoints::write_sharded(CheckpointIndex& index, const std::string& folder) {
  std::vector<NamedShape> tensors;
  std::string name;
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const TensorPart& part = owned_[i].part;
    if (owned_[i].owner != rank_) continue;
    tensors.emplace_back(index.parts[i].key, std::vector<std::int64_t>{part.rows, part.columns});
    name = index.parts[i].file;
  }
  if (tensors.empty()) return;
  SafetensorsWriter writer(fs::path(folder) / name, tensors);
  for (const auto& [part, owner] : owned_) {
    if (owner != rank_) continue;
    std::vector<float> values(part.count());
    download(part, values.data());
    writer.write(values.data(), values.size());
  }
  writer.finish();
  index.files[name] = {writer.bytes(), writer.checksum()};
}

// Rank 0 gathers and writes tensor by tensor, so that it never holds more than one of them.
void Checkpoints::write_full(CheckpointIndex& index, const std::string& folder) {
  std::optional<SafetensorsWriter> writer;
  std::string error;
  if (rank_ == 0) {
    std::vector<NamedShape> tensors;
    for (const auto& [tensor, shape] : index.tensors) {
      tensors.emplace_back(tensor, std::vector<std::int64_t>(shape.begin(), shape.end()));
    }
    try {
      writer.emplace(fs::path(folder) / "model.safetensors", tensors);
    } catch (const std::runtime_error& failed) {
      error = failed.what();
    }
  }
  agree(error, kFailed);
  std::vector<float> whole, values;
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    const auto& [part, owner] = owned_[i];
    if (rank_ > 0) {
      if (rank_ == owner) send(part);
      continue;
    }
    whole.resize(elements(part.shape));
    values.resize(part.count());
    owner == 0 ? download(part, values.data()) : receive(part, owner, values.data());
    copy_into_whole(whole, part, values.data());
    const bool complete = i + 1 == owned_.size() || owned_[i + 1].part.tensor != part.tensor;
    if (!complete || !error.empty()) continue;
    try {
      writer->write(whole.data(), whole.size());
    } catch (const std::runtime_error& failed) {
      error = failed.what();  // the others go on sending
    }
  }
  if (!error.empty()) throw std::runtime_error(error);
  if (rank_ > 0) return;
  writer->finish();
  index.files["model.safetensors"] = {writer->bytes(), writer->checksum()};
}

void Checkpoints::download(const TensorPart& part, float* host) {
  CUDA_CHECK(cudaMemcpyAsync(host, part.values, part.count() * sizeof(float), cudaMemcpyDefault, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

// The part may be in the host's memory, from which NCCL does not send.
void Checkpoints::send(const TensorPart& part) {
  const OffTheRecord off_the_record;
  DeviceBuffer<float> staged(part.count(), Memory::data);
  CUDA_CHECK(cudaMemcpyAsync(staged.data(), part.values, staged.bytes(), cudaMemcpyDefault, stream_));
  NCCL_CHECK(ncclSend(staged.data(), part.count(), ncclFloat, 0, comm_, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void Checkpoints::receive(const TensorPart& part, int owner, float* host) {
  const OffTheRecord off_the_record;
  DeviceBuffer<float> staged(part.count(), Memory::data);
  NCCL_CHECK(ncclRecv(staged.data(), part.count(), ncclFloat, owner, comm_, stream_));
  CUDA_CHECK(cudaMemcpyAsync(host, staged.data(), staged.bytes(), cudaMemcpyDefault, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

}  // namespace workshop
