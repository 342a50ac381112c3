// SPDX-License-Identifier: Apache-2.0
// Writes the workshop's own images as the files of CIFAR-10: the same that --model alexnet trains on without --images.
//
//   draw_images FOLDER [SAMPLES [SEED [CLASSES]]]
//
// SAMPLES of the training, in five files, and a fifth as many of the test.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>

#include "common/data/images.h"

namespace {

namespace fs = std::filesystem;
using namespace workshop;

void write(const fs::path& path, std::span<const std::uint8_t> records) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(records.data()), static_cast<std::streamsize>(records.size())).flush();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

int number(int argc, char** argv, int place, int otherwise, int least, int most) {
  if (place >= argc) return otherwise;
  std::size_t read = 0;
  const std::string text = argv[place];
  const int value = std::stoi(text, &read);
  if (read != text.size() || value < least || value > most) throw std::invalid_argument(text);
  return value;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 5) throw std::invalid_argument("FOLDER");
  const fs::path folder = argv[1];
  const int samples = number(argc, argv, 2, 4096, 5, 1'000'000), seed = number(argc, argv, 3, 1138, 0, 1 << 30),
            classes = number(argc, argv, 4, 10, 2, 10);
  fs::create_directories(folder);
  const DrawnImages images(seed, samples, classes);
  for (int i = 0; i < 5; ++i) {
    const std::size_t first = static_cast<std::size_t>(samples) * i / 5,
                      last = static_cast<std::size_t>(samples) * (i + 1) / 5;
    write(folder / ("data_batch_" + std::to_string(i + 1) + ".bin"),
          std::span(images.training).subspan(first * kImageRecordBytes, (last - first) * kImageRecordBytes));
  }
  write(folder / "test_batch.bin", images.test);
} catch (const std::logic_error&) {
  std::fprintf(stderr, "usage: draw_images FOLDER [SAMPLES, at least 5 [SEED [CLASSES, 2 to 10]]]\n");
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
