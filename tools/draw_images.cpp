// SPDX-License-Identifier: Apache-2.0
// Writes the workshop's own images, which --model alexnet trains on without --images, in CIFAR-10's files and format.
//
//   draw_images FOLDER [SAMPLES [SEED [CLASSES]]]
//
// Writes SAMPLES training samples, in five files, and a fifth as many test samples.
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>

#include "common/data/images.h"
#include "tools/shared/arguments.h"

namespace {

namespace fs = std::filesystem;
using namespace workshop;

void write(const fs::path& path, std::span<const std::uint8_t> records) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(records.data()), static_cast<std::streamsize>(records.size())).flush();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

void draw(const fs::path& folder, int samples, int seed, int classes) {
  fs::create_directories(folder);
  const DrawnImages images(seed, samples, classes);
  for (int i = 0; i < 5; ++i) {
    const std::size_t first = static_cast<std::size_t>(samples) * i / 5,
                      last = static_cast<std::size_t>(samples) * (i + 1) / 5;
    write(folder / ("data_batch_" + std::to_string(i + 1) + ".bin"),
          std::span(images.training).subspan(first * kImageRecordBytes, (last - first) * kImageRecordBytes));
  }
  write(folder / "test_batch.bin", images.test);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  int samples = 4096, seed = 1138, classes = 10;
  tools::Arguments arguments("draw_images", "Writes the images that --model alexnet trains on as CIFAR-10's files.");
  arguments.require("FOLDER", folder, "where to write them");
  arguments.add("SAMPLES", samples, "training samples, in five files; the test has a fifth as many", 5, 1'000'000);
  arguments.add("SEED", seed, "seed of the images", 0, 1 << 30);
  arguments.add("CLASSES", classes, "number of classes", 2, 10);
  return arguments.run(argc, argv, [&] {
    draw(folder, samples, seed, classes);
    return 0;
  });
}
