// SPDX-License-Identifier: Apache-2.0
#include "common/data/images.h"

#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/format.h"
#include "common/data/file_kind.h"
#include "common/options/options.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;

// Appends the records of a file. Throws as read_training_images() does.
void append(ImageRecords& records, const std::string& path, int classes) {
  const std::string bytes = read_file(path, /*links=*/true);
  if (bytes.empty()) throw std::runtime_error(path + ": it is empty");
  // Images may begin with any bytes, so the size decides first.
  if (bytes.size() % kImageRecordBytes != 0) require_data(path, std::string_view(bytes).substr(0, kFileBeginning));
  if (bytes.size() % kImageRecordBytes != 0) {
    throw_error("%s: %zu bytes are not a whole number of images of %zu bytes each", path.c_str(), bytes.size(),
                kImageRecordBytes);
  }
  for (std::size_t i = 0; i < bytes.size(); i += kImageRecordBytes) {
    const int label = static_cast<std::uint8_t>(bytes[i]);
    if (label >= classes) {
      throw_error("%s: image %zu has the label %d; expected less than the %d of --classes", path.c_str(),
                  i / kImageRecordBytes, label, classes);
    }
  }
  records.insert(records.end(), bytes.begin(), bytes.end());
}

void require_folder(const std::string& folder) {
  std::error_code unusable;
  if (!fs::is_directory(folder, unusable)) throw std::runtime_error(folder + ": there is no such folder");
}

std::string in(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

int count(const ImageRecords& records) { return static_cast<int>(records.size() / kImageRecordBytes); }

}  // namespace

ImageRecords read_training_images(const std::string& folder, int classes) {
  require_folder(folder);
  ImageRecords records;
  for (const char number : {'1', '2', '3', '4', '5'}) {
    append(records, in(folder, std::string("data_batch_") + number + ".bin"), classes);
  }
  return records;
}

ImageRecords read_test_images(const std::string& folder, int classes) {
  require_folder(folder);
  ImageRecords records;
  append(records, in(folder, "test_batch.bin"), classes);
  return records;
}

ImageDataset images_of(const Options& options) try {
  const ImageOptions& o = options.images;
  ImageDataset images{.classes = o.classes, .size = o.size};
  ImageRecords test;
  if (o.folder.empty()) {
    DrawnImages drawn(options.seed, options.samples, o.classes);
    images.records = std::move(drawn.training);
    test = std::move(drawn.test);
  } else {
    images.records = read_training_images(o.folder, o.classes);
    test = read_test_images(o.folder, o.classes);
  }
  images.held_out = options.validation_samples;
  images.trained_on = count(images.records) - images.held_out;
  images.tested = count(test);
  if (images.trained_on < 1) {
    usage_error("--validation-samples is '%d'; expected fewer than the %d images of %s", images.held_out,
                count(images.records), o.folder.c_str());
  }
  images.records.insert(images.records.end(), test.begin(), test.end());
  return images;
} catch (const std::runtime_error& error) {
  usage_error("%s", error.what());
}

}  // namespace workshop
