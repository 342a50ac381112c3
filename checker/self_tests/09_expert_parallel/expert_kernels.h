// SPDX-License-Identifier: Apache-2.0
// Calls of the kernels of a mixture of experts, whose rows are shared by the lanes of a warp. moe_rows.cu calls them as
// plain functions; moe_rows_on_threads.cu, where `workshop` has a different name, with emulated threads of a GPU.
#pragma once

#include <string>

#include "09_expert_parallel/moe.h"

namespace expert_kernels {

using Real = workshop::Real;  // the same type in both

constexpr int kSequences = 2, kPositions = 12, kTokens = kSequences * kPositions;
constexpr int kExperts = 34, kWidth = 34;  // two more than lanes
constexpr int K = 3, kChoices = kTokens * K, kPlaces = 2;
constexpr int kNumbers = kExperts * kSequences + 1;
constexpr float kBalance = 0.5f;

enum Kernel {
  kChoose,
  kTakePlaces,
  kFirstRows,
  kPermute,
  kCombine,
  kCombineBackward,
  kPermuteBackward,
  kChooseBackward,
  kBalanceBackward,  // the same kernel with the auxiliary loss
  kKernels
};
constexpr const char* kTodos[kKernels] = {"09.1", "09.3", "09.4", "09.5", "09.7", "09.8", "09.9", "09.10", "09.11"};
constexpr const char* kWeights = "weights of the choices";  // what faults call them

struct Arrays {
  float* scores;                  // [kTokens, kExperts]
  float *weights, *dweights;      // [kTokens, K]
  int *chosen, *places, *row_of;  // [kTokens, K]
  int* counts;                    // [kSequences, kExperts]
  int* starts;                    // [kNumbers]
  Real *x, *y;                    // [kTokens, kWidth]
  Real *rows, *others;            // [kChoices, kWidth], at most
  Real* dlogits;                  // [kTokens, kExperts]
};

// The outcome of a kernel that runs on emulated threads.
struct Outcome {
  bool open = false;  // its TODO is not filled in
  std::string fault;  // empty: none
};
Outcome on_threads(Kernel which, int blocks, const Arrays& arrays);

}  // namespace expert_kernels

namespace workshop {

// Calls run(kernel, arguments…).
template <typename Run>
void call_expert_kernel(expert_kernels::Kernel which, const expert_kernels::Arrays& a, Run run) {
  using namespace expert_kernels;
  switch (which) {
    case kChoose:
      return run(choose_experts, a.scores, a.chosen, a.weights, kTokens, kExperts, K);
    case kTakePlaces:
      return run(take_places, a.places, a.counts, a.chosen, kSequences, kPositions, kExperts, K, kPlaces);
    case kFirstRows:
      return run(first_rows, a.starts, a.counts, kSequences, kExperts, kPlaces);
    case kPermute:
      return run(permute, a.rows, a.row_of, a.x, a.places, a.chosen, a.starts, kTokens, kPositions, K, kWidth);
    case kCombine:
      return run(combine, a.y, a.rows, a.row_of, a.weights, kTokens, K, kWidth);
    case kCombineBackward:
      return run(combine_backward, a.others, a.dweights, a.x, a.rows, a.row_of, a.weights, kTokens, K, kWidth);
    case kPermuteBackward:
      return run(permute_backward, a.y, a.rows, a.row_of, kTokens, K, kWidth);
    case kChooseBackward:
    case kBalanceBackward:
      return run(choose_experts_backward, a.dlogits, a.dweights, a.scores, a.weights, a.chosen, a.counts, kTokens,
                 kPositions, kExperts, K, which == kBalanceBackward ? kBalance : 0.0f);
    default:
      return;
  }
}

}  // namespace workshop
