// SPDX-License-Identifier: Apache-2.0
// What the course's program does to each image before the model sees it, to the last bit: torchvision's
// Resize(256), CenterCrop(224), ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)) of an image of PIL's.
//
// torchvision.datasets.CIFAR10 gives images of PIL's, and so PIL resizes them (Pillow, src/libImaging/Resample.c):
// bilinear with antialiasing, first each row, then each column, and after each of the two the values are rounded to
// bytes. A tensor would be resized in floats, which differs by up to 0.008.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace workshop {

class ImageTransform {
 public:
  // For images of `size` pixels a side: resized to size * 256 / 224, rounded, of which it is the center.
  explicit ImageTransform(int size);
  // From pixels [3, 32, 32] to out [3, size, size], between -1 and 1.
  void operator()(const std::uint8_t* pixels, float* out) const;

 private:
  // How a value is made: of `weights.size()` values from the first on, in units of 2^-22.
  struct Taps {
    int first;
    std::vector<int> weights;
  };
  static Taps taps(int from, int to, int place);

  int size_;
  std::vector<Taps> taps_;             // of each column of the result, and of each row
  std::array<float, 256> normalized_;  // of a byte
};

}  // namespace workshop
