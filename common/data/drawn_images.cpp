// SPDX-License-Identifier: Apache-2.0
// The workshop's own images. The ten classes are five shapes in two textures. Each image has different colors, a
// different place of the shape, and noise.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "common/data/images.h"

namespace workshop {
namespace {

// Draws only whole numbers and uses no std:: distribution, because distributions differ between standard libraries.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  int from_to(int least, int most) { return least + static_cast<int>(engine_() % (most - least + 1)); }

 private:
  std::mt19937_64 engine_;
};

enum Shape { disc, square, triangle, cross, ring };

// Returns whether a pixel at distance (dx, dy) from the center is inside a shape of this radius.
bool inside(int shape, int dx, int dy, int radius) {
  const int from_center = dx * dx + dy * dy, farther = std::max(std::abs(dx), std::abs(dy));
  switch (shape) {
    case disc:
      return from_center <= radius * radius;
    case square:
      return farther <= radius - 1;
    case triangle:
      return std::abs(dy) <= radius && 2 * std::abs(dx) <= dy + radius;
    case cross:
      return farther <= radius && 3 * std::min(std::abs(dx), std::abs(dy)) <= radius;
    default:
      return from_center <= radius * radius && 3 * from_center >= radius * radius;
  }
}

struct Texture {
  bool checked;   // otherwise striped
  int direction;  // of the stripes: 0 to 3
  int width, shift;

  // Returns which of the shape's two colors a pixel has.
  int color(int x, int y) const {
    const std::array<int, 4> across = {x, y, x + y, x - y + kImageSide};
    if (checked) return ((x + shift) / width + (y + shift) / width) % 2;
    return (across[direction] + shift) / width % 2;
  }
};

void draw_image(Draw& draw, int label, std::uint8_t* pixels) {
  const int shape = label / 2, radius = draw.from_to(9, 12);
  const int x0 = draw.from_to(13, 18), y0 = draw.from_to(13, 18);
  const Texture texture{label % 2 == 1, draw.from_to(0, 3), draw.from_to(2, 3), draw.from_to(0, 5)};
  for (int color = 0; color < 3; ++color) {
    const std::array<int, 3> levels = {draw.from_to(16, 80), draw.from_to(176, 240), draw.from_to(104, 152)};
    for (int y = 0; y < kImageSide; ++y) {
      for (int x = 0; x < kImageSide; ++x) {
        const int level = inside(shape, x - x0, y - y0, radius) ? texture.color(x, y) : 2;
        *pixels++ = static_cast<std::uint8_t>(levels[level] + draw.from_to(-15, 15));
      }
    }
  }
}

}  // namespace

ImageRecords draw_images(std::uint64_t seed, int count, int classes) {
  Draw draw(seed);
  ImageRecords records(count * kImageRecordBytes);
  for (int i = 0; i < count; ++i) {
    std::uint8_t* record = records.data() + i * kImageRecordBytes;
    const int label = i % std::min(classes, 10);
    record[0] = static_cast<std::uint8_t>(label);
    draw_image(draw, label, record + 1);
  }
  return records;
}

DrawnImages::DrawnImages(std::uint64_t seed, int samples, int classes)
    : training(draw_images(seed, samples, classes)), test(draw_images(~seed, std::max(10, samples / 5), classes)) {}

}  // namespace workshop
