// SPDX-License-Identifier: Apache-2.0
// Transforms an image as the course's program does, bit for bit: torchvision's Resize(256), CenterCrop(224),
// ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), applied to a PIL image.
//
// torchvision.datasets.CIFAR10 returns PIL images, so PIL resizes them (Pillow, src/libImaging/Resample.c): bilinear
// with antialiasing, first each row, then each column, and the values are rounded to bytes after each of the two. A
// tensor would be resized in floats, which differs by up to 0.008.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace workshop {

class ImageTransform {
 public:
  // For a result of size x size pixels: resizes to size * 256 / 224 (rounded), then crops to the center.
  explicit ImageTransform(int size);
  // Transforms pixels [3, 32, 32] to out [3, size, size], with values from -1 to 1.
  void operator()(const std::uint8_t* pixels, float* out) const;

 private:
  // How to compute an output value: `weights` (in units of 2^-22) of the input values from index `first` on.
  struct Taps {
    int first;
    std::vector<int> weights;
  };
  static Taps taps(int from, int to, int place);

  int size_;
  std::vector<Taps> taps_;             // by column of the result, and also by row
  std::array<float, 256> normalized_;  // by byte
};

}  // namespace workshop
