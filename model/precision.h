// SPDX-License-Identifier: Apache-2.0
// Mixed precision (Micikevicius et al., 2018) with bfloat16. Most of the data (weights, activations and their
// gradients) takes two bytes per number. The optimizer's copy of the weights, its moments, the loss and every sum must
// be accurate and stay in float32.
//
// A program is built once for each precision, and --precision selects one of the two. The sources are the same: they
// use the type Real.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "common/device/launch.h"
#include "common/record/probe.h"
#ifdef WORKSHOP_BF16
#include <cuda_bf16.h>
#endif

namespace workshop {

#ifndef WORKSHOP_BF16

constexpr bool kMixedPrecision = false;

using Real = float;                             // weights, activations and gradients
using Reals = float*;                           // an array of Reals, as a kernel sees it: it reads and writes floats
using ConstReals = const float*;                // the same, read only
constexpr ncclDataType_t kReal = ncclFloat;     // NCCL's name of the type
constexpr cudaDataType kCudaReal = CUDA_R_32F;  // cuBLAS's name of it

#else

constexpr bool kMixedPrecision = true;

using Real = __nv_bfloat16;
constexpr ncclDataType_t kReal = ncclBfloat16;
constexpr cudaDataType kCudaReal = CUDA_R_16BF;

// Refers to one element of an array: converts it to float when read, and rounds a float when written.
class BFloat16Ref {
 public:
  __device__ explicit BFloat16Ref(Real* at) : at_(at) {}
  __device__ operator float() const { return __bfloat162float(*at_); }
  __device__ BFloat16Ref& operator=(float value) {
    *at_ = __float2bfloat16(value);
    return *this;
  }
  __device__ BFloat16Ref& operator=(const BFloat16Ref& other) { return *this = static_cast<float>(other); }
  __device__ BFloat16Ref& operator+=(float value) { return *this = *this + value; }
  __device__ BFloat16Ref& operator-=(float value) { return *this = *this - value; }
  __device__ BFloat16Ref& operator*=(float value) { return *this = *this * value; }
  __device__ BFloat16Ref& operator/=(float value) { return *this = *this / value; }

 private:
  Real* at_;
};

class Reals {
 public:
  using Element = Real;
  __host__ __device__ Reals(Real* data) : data_(data) {}
  __device__ BFloat16Ref operator[](std::ptrdiff_t i) const { return BFloat16Ref(data_ + i); }
  __device__ Reals operator+(std::ptrdiff_t i) const { return data_ + i; }
  __host__ __device__ Real* data() const { return data_; }

 private:
  Real* data_;
};

class ConstReals {
 public:
  using Element = const Real;
  __host__ __device__ ConstReals(const Real* data) : data_(data) {}
  __host__ __device__ ConstReals(Reals reals) : data_(reals.data()) {}
  __device__ float operator[](std::ptrdiff_t i) const { return __bfloat162float(data_[i]); }
  __device__ ConstReals operator+(std::ptrdiff_t i) const { return data_ + i; }
  __device__ bool operator==(std::nullptr_t) const { return data_ == nullptr; }
  __host__ __device__ const Real* data() const { return data_; }

 private:
  const Real* data_;
};

inline void probe(const char* todo, Label name, const Real* tensor, std::initializer_list<int> shape,
                  cudaStream_t stream, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  probe_bfloat16(todo, name, tensor, shape, stream, file, line);
}

#endif

// Returns `values` if they are floats, else null.
template <typename T>
constexpr auto* as_floats_or_null(T* values) {
  using Floats = std::conditional_t<std::is_const_v<T>, const float, float>;
  if constexpr (std::is_same_v<T, Floats>) {
    return values;
  } else {
    return static_cast<Floats*>(nullptr);
  }
}

// Returns how many Reals fill the space of `floats` floats or ints, for buffers of Reals that also hold exact values.
constexpr int reals_spanning(int floats) { return floats * static_cast<int>(sizeof(float) / sizeof(Real)); }

// Convert n numbers.
[[maybe_unused]] static __global__ void to_reals(Reals y, const float* x, int n) {
  for (int i : grid_stride(n)) y[i] = x[i];
}
[[maybe_unused]] static __global__ void to_floats(float* y, ConstReals x, int n) {
  for (int i : grid_stride(n)) y[i] = x[i];
}

}  // namespace workshop
