// SPDX-License-Identifier: Apache-2.0
// Small images with labels, as CIFAR-10 has them (Krizhevsky, 2009), and what the course's program makes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

class Options;

inline constexpr int kImageSide = 32;                              // pixels
inline constexpr int kImageBytes = 3 * kImageSide * kImageSide;    // all of red, then of green, then of blue
inline constexpr std::size_t kImageRecordBytes = 1 + kImageBytes;  // the label first

// Images in CIFAR-10's binary format, one record after the other.
using ImageRecords = std::vector<std::uint8_t>;

// Reads data_batch_1.bin to data_batch_5.bin in `folder`, one after the other, or test_batch.bin. Throws
// std::runtime_error, one line that names the file, where the folder or a file is missing, empty or no multiple of a
// record long, or where a label is not below `classes`.
ImageRecords read_training_images(const std::string& folder, int classes);
ImageRecords read_test_images(const std::string& folder, int classes);

// Draws `count` images from a seed, the same on every platform: each shows one of five shapes in one of two textures,
// which makes ten classes, or the first `classes` of them. Image i has label i % classes.
ImageRecords draw_images(std::uint64_t seed, int count, int classes);

// The workshop's own images: so many for training, and a fifth as many, 10 at least, for the test.
struct DrawnImages {
  DrawnImages(std::uint64_t seed, int samples, int classes);
  ImageRecords training, test;
};

// The images of a training: first those that are trained on, then those held out for validation, then those of the
// test.
struct ImageDataset {
  int trained_on = 0, held_out = 0, tested = 0;
  int classes = 10;  // every label is below it
  int size = 224;    // pixels a side that a sample has: x is [3, size, size]
  ImageRecords records = {};

  int samples() const { return trained_on + held_out + tested; }
  int label(int sample) const { return record(sample)[0]; }
  const std::uint8_t* pixels(int sample) const { return record(sample) + 1; }  // [3, kImageSide, kImageSide]

 private:
  const std::uint8_t* record(int sample) const { return records.data() + sample * kImageRecordBytes; }
};

// The images that the options ask for. What is wrong with them ends the program with status 2.
ImageDataset images_of(const Options& options);

}  // namespace workshop
