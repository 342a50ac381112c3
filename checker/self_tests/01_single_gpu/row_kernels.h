// SPDX-License-Identifier: Apache-2.0
// Calls of the kernels of a language model whose rows are shared by the lanes of a warp. gpt_rows.cu calls them as
// plain functions; gpt_rows_on_threads.cu, where `workshop` has a different name, with emulated threads of a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "01_single_gpu/attention.h"
#include "01_single_gpu/blockwise_attention.h"
#include "01_single_gpu/cross_entropy.h"
#include "01_single_gpu/layer_norm.h"

namespace row_kernels {

using Real = workshop::Real;  // the same type in both

constexpr int kRows = 10, kWidth = 34;  // two columns more than lanes
constexpr int kSize = kRows * kWidth, kFirst = kWidth - kRows;
constexpr int kPositions = 1 + kWidth;  // of the sample whose second block of keys has kWidth
constexpr float kScale = 0.5f;

enum Kernel {
  kNormForward,
  kNormBackward,
  kSoftmax,
  kSoftmaxBackward,
  kSoftmaxOfBlock,
  kCompleteSoftmax,
  kGradientOfBlock,
  kLoss,
  kLossGradient,
  kKernels
};
constexpr const char* kTodos[kKernels] = {"01.10", "01.11", "01.12", "01.13", "01.26",
                                          "01.27", "01.28", "01.17", "01.18"};

// The first matrix is the result, or what the kernel works on in place.
struct Arrays {
  Real* matrices[3];      // [kRows, kWidth]
  Real* vectors[2];       // [kWidth]
  float* of_rows[3];      // [kPositions]; most kernels use only kRows
  float* floats;          // [kPositions, kWidth]
  std::int32_t* targets;  // [kRows]
};

// The outcome of a kernel that runs on emulated threads.
struct Outcome {
  bool open = false;  // its TODO is not filled in
  std::string fault;  // empty: none
};
Outcome on_threads(Kernel which, int blocks, const Arrays& arrays);

}  // namespace row_kernels

namespace workshop {

// Calls run(kernel, arguments…).
template <typename Run>
void call_row_kernel(row_kernels::Kernel which, const row_kernels::Arrays& a, Run run) {
  using namespace row_kernels;
  const auto& [m, v, r, floats, targets] = a;
  const ScoreBlock block{1 + kFirst, kRows, 1, kWidth, kPositions}, all{0, kRows, 0, kRows, kRows};
  switch (which) {
    case kNormForward:
      return run(layer_norm_forward, m[0], r[0], r[1], m[1], v[0], v[1], kRows, kWidth);
    case kNormBackward:
      return run(layer_norm_backward, m[0], m[0], m[1], m[2], r[0], r[1], v[0], kRows, kWidth);
    case kSoftmax:
      return run(causal_softmax, m[0], kScale, kRows, kRows, kFirst, kWidth);
    case kSoftmaxBackward:
      return run(causal_softmax_backward, m[0], m[1], kScale, kRows, kWidth);
    case kSoftmaxOfBlock:
      return run(softmax_of_block, m[0], floats, r[0], r[1], kScale, block, kRows, kWidth, BlockDropout{});
    case kCompleteSoftmax:
      return run(complete_softmax, m[0], r[0], floats, r[2], r[1], all, kRows, kWidth, kWidth, 1);
    case kGradientOfBlock:
      return run(gradient_of_block, m[1], m[0], r[0], r[2], kScale, block, kRows, 1, BlockDropout{});
    case kLoss:
      return run(cross_entropy_forward, r[0], r[1], m[1], targets, kRows, kWidth);
    case kLossGradient:
      return run(cross_entropy_backward, m[0], m[1], r[0], targets, kRows, kWidth, kRows);
    default:
      return;
  }
}

}  // namespace workshop
