// SPDX-License-Identifier: Apache-2.0
// CUDA's bfloat16: the upper half of a float. As in CUDA, arithmetic on two of them rounds to a bfloat16, and an
// expression with a bfloat16 and a float is ambiguous: convert one of them.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  // Rounds to the nearest; ties to even.
  __nv_bfloat16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (all & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>((is_nan ? all | 0x400000u : all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  operator int() const { return static_cast<int>(static_cast<float>(*this)); }

  std::uint16_t bits;
};

inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }

inline __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) { return __bfloat162float(a) + __bfloat162float(b); }
inline __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) { return __bfloat162float(a) - __bfloat162float(b); }
inline __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) { return __bfloat162float(a) * __bfloat162float(b); }
inline __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b) { return __bfloat162float(a) / __bfloat162float(b); }
