// SPDX-License-Identifier: Apache-2.0
#include "common/data/image_transform.h"

#include <algorithm>
#include <cmath>

#include "common/data/images.h"

namespace workshop {
namespace {

constexpr int kBits = 22;  // fraction bits of a weight
constexpr int kLargest = 1024;

int byte_of(int sum) { return std::clamp(sum >> kBits, 0, 255); }

}  // namespace

ImageTransform::ImageTransform(int size) : size_(size) {
  const int resized = static_cast<int>(std::lround(size * 256 / 224.0));
  const int border = static_cast<int>(std::nearbyint((resized - size) / 2.0));  // rounds halves to even, like Python
  for (int i = 0; i < size; ++i) taps_.push_back(taps(kImageSide, resized, border + i));
  for (int i = 0; i < 256; ++i) normalized_[i] = (static_cast<float>(i) / 255.0f - 0.5f) / 0.5f;
}

// Pillow's precompute_coeffs() and normalize_coeffs_8bpc(): the weights form a triangle around the position of the
// output value among the input values. On either side, the triangle is as wide as one input value or one output value,
// whichever is wider.
ImageTransform::Taps ImageTransform::taps(int from, int to, int place) {
  const double scale = static_cast<double>(from) / to, width = std::max(1.0, scale);
  const double center = (place + 0.5) * scale;
  const int first = std::max(0, static_cast<int>(std::lround(center - width)));
  const int last = std::min(from, static_cast<int>(std::lround(center + width)));
  std::vector<double> weights;
  double sum = 0;
  for (int i = first; i < last; ++i) {
    weights.push_back(std::max(0.0, 1 - std::abs((i - center + 0.5) * (1 / width))));
    sum += weights.back();
  }
  Taps taps{first, {}};
  for (const double weight : weights)
    taps.weights.push_back(static_cast<int>(std::lround(weight / sum * (1 << kBits))));
  return taps;
}

void ImageTransform::operator()(const std::uint8_t* pixels, float* out) const {
  std::array<std::uint8_t, kImageSide * kLargest> wide;  // [kImageSide, size]: one color, its rows resized
  std::array<int, kLargest> sums;
  for (int color = 0; color < 3; ++color) {
    for (int row = 0; row < kImageSide; ++row, pixels += kImageSide) {
      for (int i = 0; i < size_; ++i) {
        const Taps& of = taps_[i];
        int sum = 1 << (kBits - 1);
        for (std::size_t k = 0; k < of.weights.size(); ++k) sum += pixels[of.first + k] * of.weights[k];
        wide[row * size_ + i] = static_cast<std::uint8_t>(byte_of(sum));
      }
    }
    for (const Taps& of : taps_) {
      std::fill_n(sums.begin(), size_, 1 << (kBits - 1));
      for (std::size_t k = 0; k < of.weights.size(); ++k) {
        const std::uint8_t* row = &wide[(of.first + k) * size_];
        for (int i = 0; i < size_; ++i) sums[i] += row[i] * of.weights[k];
      }
      for (int i = 0; i < size_; ++i) out[i] = normalized_[byte_of(sums[i])];
      out += size_;
    }
  }
}

}  // namespace workshop
