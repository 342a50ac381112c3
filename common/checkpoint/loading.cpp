// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <memory>

#include "common/base/format.h"
#include "common/base/untrusted.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/state.h"
#include "common/options/options.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;

// Reads tensors of a checkpoint. Opens and checks each file when it is first needed.
class Reader {
 public:
  Reader(const CheckpointIndex& index, fs::path folder) : index_(index), folder_(std::move(folder)) {
    for (const CheckpointIndex::StoredPart& part : index.parts) parts_[part.tensor].push_back(&part);
  }

  std::vector<float> whole(const std::string& tensor) {
    std::vector<float> values(elements(index_.tensors.at(tensor)));
    for (const CheckpointIndex::StoredPart* part : parts_[tensor]) {
      const SafetensorsFile::Tensor& stored = file(part->file)[part->key];
      if (stored.count != part->rows * part->columns) {
        throw_error("%s: its tensor %s has %" PRId64 " elements; the index says %" PRId64,
                    (folder_ / part->file).c_str(), quote(part->key).c_str(), stored.count, part->rows * part->columns);
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
      throw_error("%s has %" PRIu64 " bytes; the index says %" PRIu64, path.c_str(), file->bytes(), expected.bytes);
    }
    if (file->checksum() != expected.checksum) {
      throw_error("%s is damaged: its checksum is not the one in the index", path.c_str());
    }
    return *file;
  }

  const CheckpointIndex& index_;
  fs::path folder_;
  std::map<std::string, std::vector<const CheckpointIndex::StoredPart*>> parts_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

void load_parts(const CheckpointState& state, const CheckpointIndex& index, const std::string& folder) {
  std::map<std::string, std::vector<const TensorPart*>> mine;
  for (const TensorPart& part : state.parts) mine[part.tensor].push_back(&part);
  Reader reader(index, folder);
  for (const auto& [tensor, parts] : mine) {
    const auto saved = index.tensors.find(tensor);
    if (saved == index.tensors.end()) throw_error("the checkpoint %s has no '%s'", folder.c_str(), tensor.c_str());
    if (saved->second != parts[0]->shape) {
      throw_error("'%s' has a different shape in the checkpoint %s", tensor.c_str(), folder.c_str());
    }
    const std::vector<float> whole = reader.whole(tensor);
    for (const TensorPart* part : parts) {
      std::vector<float> values(part->count());
      for_each_run(*part, [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t count) {
        std::copy_n(whole.begin() + in_whole, count, values.begin() + in_part);
      });
      const std::size_t bytes = values.size() * sizeof(float);
      CUDA_CHECK(cudaMemcpyAsync(part->values, values.data(), bytes, cudaMemcpyDefault, state.stream));
      CUDA_CHECK(cudaStreamSynchronize(state.stream));
    }
  }
}

// `order`: whether the samples must have the same order too.
void require_same_settings(const std::map<std::string, std::string>& run,
                           const std::map<std::string, std::string>& saved, const std::string& folder, bool order) {
  // A program that lacks an option behaves as if it were 0. Old checkpoints have no model.
  const auto value = [](const auto& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? "0" : found->second;
  };
  if (saved.contains(kModel) && saved.at(kModel) != run.at(kModel)) {
    throw_error("the checkpoint %s has the model %s; this run trains %s", folder.c_str(),
                shown(saved.at(kModel)).c_str(), run.at(kModel).c_str());
  }
  for (const char* name : kSettings) {
    if (std::string_view(name) == kOrder && !order) continue;
    if (value(run, name) == value(saved, name)) continue;
    throw_error("--%s is %s; the checkpoint %s was made with %s", name, value(run, name).c_str(), folder.c_str(),
                shown(value(saved, name)).c_str());
  }
}

}  // namespace

Progress load(const CheckpointState& state, const CheckpointIndex& index, const std::string& folder) {
  require_same_settings(settings_of(state.options), index.settings, folder, index.samples > 0);
  const Options& options = state.options;
  if (index.epoch > options.epochs || index.samples >= state.samples) {
    throw_error("the checkpoint %s is %d samples into epoch %d; --epochs is %d, --samples %d", folder.c_str(),
                index.samples, index.epoch, options.epochs, state.samples);
  }
  const std::int64_t at_once = std::int64_t{options.batch_size} * state.replicas;
  if (index.samples % at_once != 0) {
    throw_error("the checkpoint %s is %d samples into an epoch, which is not a multiple of the %" PRId64
                " samples that --batch-size %d and %d replica(s) process at once",
                folder.c_str(), index.samples, at_once, options.batch_size, state.replicas);
  }
  if (index.samples > 0 && options.shuffle && index.random.empty() != (state.sampler == nullptr)) {
    throw_error(
        "the checkpoint %s is %d samples into an epoch shuffled by %s, and %s shuffles differently; "
        "use a checkpoint from the end of an epoch",
        folder.c_str(), index.samples, shown(index.program).c_str(), options.program().c_str());
  }
  for (const auto& [name, value] : state.numbers) {
    if (index.numbers.contains(name)) *value = index.numbers.at(name);
  }
  if (state.sampler != nullptr) state.sampler->go_to(index.epoch, index.random);
  load_parts(state, index, folder);
  return {index.step, index.epoch, static_cast<int>(index.samples / at_once)};
}

}  // namespace workshop
