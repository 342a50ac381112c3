// SPDX-License-Identifier: Apache-2.0
// PyTorch's random numbers on the CPU, so that a chapter starts from the same weights and data as its PyTorch
// counterpart. Follows torch/include/ATen/core/MT19937RNGEngine.h, CPUGeneratorImpl.cpp and the distribution kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace workshop {

// torch.Generator on the CPU: MT19937 over the low 32 bits of the seed.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) { manual_seed(seed); }
  void manual_seed(std::uint64_t seed);  // also forgets the cached normal

  // Everything that future draws depend on, as text. set_state() throws std::runtime_error on any other text.
  std::string state() const;
  void set_state(const std::string& text);

  std::uint32_t random32();
  std::uint64_t random64();  // the first draw is the high half

  // Tensor.uniform_(from, to), float32: each value is 24 random bits scaled with one fused multiply-add.
  void uniform(float* out, std::size_t count, double from, double to);
  // torch.randn(count), float32. Fewer than 16 values are drawn in pairs, by Box-Muller in double precision; if the
  // second value of a pair is left over, the next such call returns it first. 16 or more are drawn in blocks of 16.
  void randn(float* out, std::size_t count);
  // torch.randperm(count).
  std::vector<int> randperm(int count);

 private:
  double uniform_double();
  double normal_double();

  std::mt19937 engine_;
  std::optional<double> next_normal_;
};

// SplitMix64 (Steele et al., 2014): 64 random bits from any 64, in kernels, too. It has no state: to use it as a
// generator, hash a counter that increases by kSplitMix64Step.
inline constexpr std::uint64_t kSplitMix64Step = 0x9e3779b97f4a7c15u;
// clang-format off
#ifdef __CUDACC__
__host__ __device__
#endif
inline std::uint64_t splitmix64(std::uint64_t x) {
  // clang-format on
  std::uint64_t z = x + kSplitMix64Step;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// nn.Linear(in, out).reset_parameters(): weight [out, in] first, then bias [out] unless it is null.
void init_linear(Generator& generator, int in, int out, float* weight, float* bias);

}  // namespace workshop
