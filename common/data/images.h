// SPDX-License-Identifier: Apache-2.0
// Small images with labels, in the format of CIFAR-10 (Krizhevsky, 2009).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

class Options;

inline constexpr int kImageSide = 32;                              // pixels
inline constexpr int kImageBytes = 3 * kImageSide * kImageSide;    // all of red, then of green, then of blue
inline constexpr std::size_t kImageRecordBytes = 1 + kImageBytes;  // the label comes first

// Contiguous records in CIFAR-10's binary format.
using ImageRecords = std::vector<std::uint8_t>;

// Read data_batch_1.bin to data_batch_5.bin in `folder`, in this order, or test_batch.bin. Throw std::runtime_error
// with one line that names the file if the folder or a file is missing, if a file is empty or not a whole number of
// records, or if a label is not less than `classes`.
ImageRecords read_training_images(const std::string& folder, int classes);
ImageRecords read_test_images(const std::string& folder, int classes);

// Draws `count` images from a seed, the same on every platform. Each shows one of five shapes in one of two textures,
// which makes ten classes; only the first `classes` of these are used. Image i has label i % min(classes, 10).
ImageRecords draw_images(std::uint64_t seed, int count, int classes);

// The workshop's own images: `samples` for training, and a fifth of that, but at least 10, for the test.
struct DrawnImages {
  DrawnImages(std::uint64_t seed, int samples, int classes);
  ImageRecords training, test;
};

// The images of a training run: first those to train on, then those held out for validation, then those of the test.
struct ImageDataset {
  int trained_on = 0, held_out = 0, tested = 0;
  int classes = 10;  // every label is less than this
  int size = 224;    // side of a sample in pixels: x is [3, size, size]
  ImageRecords records = {};

  int samples() const { return trained_on + held_out + tested; }
  int label(int sample) const { return record(sample)[0]; }
  const std::uint8_t* pixels(int sample) const { return record(sample) + 1; }  // [3, kImageSide, kImageSide]

 private:
  const std::uint8_t* record(int sample) const { return records.data() + sample * kImageRecordBytes; }
};

// Returns the images that the options ask for. Ends the program with status 2 if they are invalid.
ImageDataset images_of(const Options& options);

}  // namespace workshop
