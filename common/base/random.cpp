// SPDX-License-Identifier: Apache-2.0
#include "common/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace workshop {
namespace {

constexpr std::size_t kBlock = 16;  // torch.randn draws 16 or more values in blocks of 16

// Applies Box-Muller to one block, in place: uniform values 0 to 7 give the radii, 8 to 15 the angles.
void normal_block(float* block) {
  constexpr std::size_t kHalf = kBlock / 2;
  constexpr float kTwoPi = static_cast<float>(2 * std::numbers::pi);
  for (std::size_t i = 0; i < kHalf; ++i) {
    const float u1 = 1 - block[i];  // in (0, 1], so the logarithm is finite
    const float radius = std::sqrt(-2 * std::log(u1));
    const float angle = kTwoPi * block[i + kHalf];
    block[i] = radius * std::cos(angle);
    block[i + kHalf] = radius * std::sin(angle);
  }
}

}  // namespace

void Generator::manual_seed(std::uint64_t seed) {
  engine_.seed(static_cast<std::uint32_t>(seed));
  next_normal_.reset();
}

std::string Generator::state() const {
  std::ostringstream text;
  text << engine_ << ' ' << next_normal_.has_value();
  if (next_normal_) text << ' ' << std::bit_cast<std::uint64_t>(*next_normal_);
  return text.str();
}

namespace {

// The engine's state is state_size words and the number of words used so far. operator>> accepts any value for the
// latter, so its range is checked here.
bool within_state(const std::string& text) {
  std::istringstream stream(text);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i <= std::mt19937::state_size; ++i) stream >> word;
  return stream && word <= std::mt19937::state_size;
}

}  // namespace

void Generator::set_state(const std::string& text) {
  std::istringstream stream(text);
  std::mt19937 engine;
  bool has_normal = false;
  std::uint64_t normal = 0;
  stream >> engine >> has_normal;
  if (has_normal) stream >> normal;
  if (!within_state(text) || !stream || stream.peek() != std::istringstream::traits_type::eof()) {
    throw std::runtime_error("the random state is not a state of this generator");
  }
  engine_ = engine;
  next_normal_.reset();
  if (has_normal) next_normal_ = std::bit_cast<double>(normal);
}

std::uint32_t Generator::random32() { return static_cast<std::uint32_t>(engine_()); }

std::uint64_t Generator::random64() {
  const std::uint64_t high = random32();
  return high << 32 | random32();
}

double Generator::uniform_double() {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 53) - 1;
  return static_cast<double>(random64() & kMask) * 0x1p-53;
}

void Generator::uniform(float* out, std::size_t count, double from, double to) {
  const float low = static_cast<float>(from);
  const float range = static_cast<float>(to) - low;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = std::fma(static_cast<float>(random32() & 0xffffff) * 0x1p-24f, range, low);
  }
}

double Generator::normal_double() {
  if (next_normal_) return *std::exchange(next_normal_, std::nullopt);
  const double u1 = uniform_double();
  const double u2 = uniform_double();
  const double radius = std::sqrt(-2 * std::log1p(-u2));
  const double angle = 2 * std::numbers::pi * u1;
  next_normal_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

void Generator::randn(float* out, std::size_t count) {
  if (count < kBlock) {
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(normal_double());
    return;
  }
  uniform(out, count, 0, 1);
  for (std::size_t i = 0; i + kBlock <= count; i += kBlock) normal_block(out + i);
  if (count % kBlock != 0) {
    // The last block overlaps the one before it; PyTorch redraws all 16 values.
    float* last = out + count - kBlock;
    uniform(last, kBlock, 0, 1);
    normal_block(last);
  }
}

std::vector<int> Generator::randperm(int count) {
  std::vector<int> permutation(count);
  std::iota(permutation.begin(), permutation.end(), 0);
  for (int i = 0; i + 1 < count; ++i) {
    std::swap(permutation[i], permutation[i + random32() % static_cast<std::uint32_t>(count - i)]);
  }
  return permutation;
}

void init_linear(Generator& generator, int in, int out, float* weight, float* bias) {
  // init.kaiming_uniform_(weight, a=sqrt(5)), in PyTorch's order of operations. Mathematically, it is 1 / sqrt(in).
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2 / (1 + slope * slope));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(in)));
  generator.uniform(weight, static_cast<std::size_t>(in) * out, -bound, bound);
  if (bias == nullptr) return;
  const double bias_bound = 1 / std::sqrt(static_cast<double>(in));
  generator.uniform(bias, out, -bias_bound, bias_bound);
}

}  // namespace workshop
