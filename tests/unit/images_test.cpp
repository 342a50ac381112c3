// SPDX-License-Identifier: Apache-2.0
// CIFAR-10's files, good and bad; the images that are drawn; and torchvision's transforms of an image.
#include "common/data/images.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/data/image_transform.h"
#include "common/options/options.h"

namespace workshop {
namespace {

namespace fs = std::filesystem;

class ReadImages : public testing::Test {
 protected:
  ReadImages() {
    for (int i = 0; i < 5; ++i) write(batch(i + 1), draw_images(i, 3 + i, 10));
    write("test_batch.bin", draw_images(9, 4, 10));
  }
  ~ReadImages() override { fs::remove_all(folder_); }

  static std::string batch(int number) { return "data_batch_" + std::to_string(number) + ".bin"; }
  void write(const std::string& name, const ImageRecords& records) const {
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(records.data()), static_cast<std::streamsize>(records.size()));
  }

  // Expects that the files cannot be read, with this error; @ stands for the folder.
  void expect_error(std::string expected, int classes = 10) const {
    expected.replace(expected.find('@'), 1, folder_.string());
    try {
      read_training_images(folder_.string(), classes);
      read_test_images(folder_.string(), classes);
      ADD_FAILURE() << "expected: " << expected;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), expected);
    }
  }

  static fs::path made(const fs::path& folder) {
    fs::create_directories(folder);
    return folder;
  }
  const fs::path folder_ = made(fs::path(testing::TempDir()) / ("images." + std::to_string(getpid())));
};

TEST_F(ReadImages, ReadsWhatWasWritten) {
  ImageRecords all;
  for (int i = 0; i < 5; ++i) {
    const ImageRecords records = draw_images(i, 3 + i, 10);
    all.insert(all.end(), records.begin(), records.end());
  }
  EXPECT_EQ(read_training_images(folder_.string(), 10), all);
  EXPECT_EQ(read_test_images(folder_.string(), 10), draw_images(9, 4, 10));
}

TEST_F(ReadImages, MissesAFolder) {
  fs::remove_all(folder_);
  expect_error("@: there is no such folder");
}

TEST_F(ReadImages, MissesAFile) {
  fs::remove(folder_ / batch(3));
  expect_error("@/data_batch_3.bin: cannot be read: No such file or directory");
  write(batch(3), draw_images(1, 1, 10));
  fs::remove(folder_ / "test_batch.bin");
  expect_error("@/test_batch.bin: cannot be read: No such file or directory");
}

TEST_F(ReadImages, RefusesAnEmptyFile) {
  write(batch(5), {});
  expect_error("@/data_batch_5.bin: it is empty");
}

TEST_F(ReadImages, RefusesAFolderAndAPipeForAFile) {
  fs::remove(folder_ / batch(1));
  fs::create_directory(folder_ / batch(1));
  expect_error("@/data_batch_1.bin: it is not a regular file of at most 100 MB");
}

TEST_F(ReadImages, RefusesATruncatedFileAtAnyByte) {
  for (int bytes : {1, 3072, 3074, 2 * 3073 - 1, 3 * 3073 - 1}) {
    ImageRecords records = draw_images(1, 3, 10);
    records.resize(bytes);
    write(batch(2), records);
    expect_error("@/data_batch_2.bin: " + std::to_string(bytes) +
                 " bytes are not a whole number of images of 3073 bytes each");
  }
}

TEST_F(ReadImages, RefusesALabelThatIsNoClass) {
  ImageRecords records = draw_images(1, 3, 10);
  records[2 * kImageRecordBytes] = 10;
  write("test_batch.bin", records);
  expect_error("@/test_batch.bin: image 2 has the label 10; expected less than the 10 of --classes");
  EXPECT_EQ(read_test_images(folder_.string(), 11), records);
  expect_error("@/data_batch_1.bin: image 1 has the label 1; expected less than the 1 of --classes", 1);
}

TEST_F(ReadImages, MakesADataSetOfAllOfThem) {
  Options options("04_pipeline/pipeline", "test");
  options.images = {.folder = folder_.string(), .classes = 10, .size = 64};
  options.validation_samples = 5;
  const ImageDataset images = images_of(options);
  EXPECT_EQ(images.trained_on, 20);
  EXPECT_EQ(images.held_out, 5);
  EXPECT_EQ(images.tested, 4);
  EXPECT_EQ(images.samples(), 29);
  EXPECT_EQ(images.label(3), 0);  // from the second file
  EXPECT_EQ(images.label(27), 2);
  const ImageRecords test = draw_images(9, 4, 10);
  EXPECT_TRUE(
      std::equal(test.begin() + 2 * kImageRecordBytes + 1, test.begin() + 3 * kImageRecordBytes, images.pixels(27)));
}

TEST_F(ReadImages, EndsAProgramWithOneLine) {
  Options options("04_pipeline/pipeline", "test");
  options.images.folder = folder_.string();
  options.validation_samples = 25;
  EXPECT_EXIT(images_of(options), testing::ExitedWithCode(2),
              "^error: --validation-samples is '25'; expected fewer than the 25 images of [^\n]*\n$");
  write("test_batch.bin", {});
  EXPECT_EXIT(images_of(options), testing::ExitedWithCode(2), "^error: [^\n]*/test_batch.bin: it is empty\n$");
}

TEST(DrawImages, AreTheSameOnEveryPlatform) {
  const ImageRecords images = draw_images(1138, 100, 10);
  EXPECT_EQ(crc32_z(0, images.data(), images.size()), 2704036580u);
}

TEST(DrawImages, DependOnTheSeedAndNotOnTheirNumber) {
  ImageRecords ten = draw_images(1, 10, 10);
  EXPECT_NE(ten, draw_images(2, 10, 10));
  ten.resize(4 * kImageRecordBytes);
  EXPECT_EQ(ten, draw_images(1, 4, 10));
}

TEST(DrawImages, HaveAsManyClassesAsAreAskedFor) {
  for (const auto& [asked, expected] : {std::pair{10, 10}, {3, 3}, {200, 10}}) {
    const ImageDataset images{.trained_on = 40, .records = draw_images(1, 40, asked)};
    std::set<int> labels;
    for (int i = 0; i < 40; ++i) labels.insert(images.label(i));
    EXPECT_EQ(static_cast<int>(labels.size()), expected);
    EXPECT_EQ(*labels.rbegin(), expected - 1);
  }
}

TEST(ImagesOf, DrawsTrainingAndTestApart) {
  Options options("04_pipeline/pipeline", "test");
  options.samples = 100;
  options.validation_samples = 30;
  const ImageDataset images = images_of(options);
  EXPECT_EQ(images.trained_on, 70);
  EXPECT_EQ(images.held_out, 30);
  EXPECT_EQ(images.tested, 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(std::equal(images.pixels(i), images.pixels(i) + kImageBytes, images.pixels(100 + i)));
  }
}

TEST(ImageTransform, IsTorchvisions) {
  std::vector<std::uint8_t> pixels;
  for (int i = 0; i < kImageBytes; ++i) pixels.push_back(static_cast<std::uint8_t>(i * (i + 7919) / 16 % 256));
  std::ifstream file(GOLDEN_IMAGES);
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["sizes"].size(), 5);
  for (const auto& expected : golden["sizes"]) {
    const int size = expected["size"], stride = expected["stride"];
    std::vector<float> values(3 * size * size);
    ImageTransform{size}(pixels.data(), values.data());
    double sum = 0;
    for (float value : values) sum += value;
    EXPECT_NEAR(sum, expected["sum"], 1e-3) << "size " << size;
    double error = 0;
    const std::vector<double> kept = expected["values"];
    ASSERT_EQ(kept.size(), (values.size() + stride - 1) / stride);
    for (std::size_t i = 0; i < kept.size(); ++i) error = std::max(error, std::abs(values[i * stride] - kept[i]));
    EXPECT_LE(error, 1e-6) << "size " << size;
  }
}

TEST(ImageTransform, KeepsAnEvenImage) {
  const std::vector<std::uint8_t> pixels(kImageBytes, 200);
  std::vector<float> values(3 * 224 * 224);
  ImageTransform{224}(pixels.data(), values.data());
  for (float value : values) ASSERT_EQ(value, (200 / 255.0f - 0.5f) / 0.5f);
}

}  // namespace
}  // namespace workshop
