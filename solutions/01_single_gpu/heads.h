// SPDX-License-Identifier: Apache-2.0
// The matrices of multi-head attention, and where they lie.
#pragma once

#include "model/blas.h"

namespace workshop {

// The heads that a rank holds; samples have `positions` positions.
struct Heads {
  int positions, count, width;  // T; H, or this rank's share of them; E/H
  int block = 0;                // keys whose scores exist at a time (blockwise_attention.h); 0: all T (attention.h)

  int features() const { return count * width; }                       // of all these heads
  int probabilities() const { return count * positions * positions; }  // per sample
};

// The results of the forward pass, or their gradients.
struct AttentionValues {
  Real* qkv;      // [B·T, 3·features]: queries, keys and values side by side, and within each the heads side by side
  Real* p;        // [B, H, T, T]: probabilities; in blocks of keys, room for log_sums() (Attention::kept())
  Real* context;  // [B·T, features]: p v of each head
  float* log_sums() const { return reinterpret_cast<float*>(p); }  // [B, H, T]: of the rows' sums of e^score
};

// The matrices of one head, one per sample: q, k, v, context [T, width], p [T, T]. q, p and context begin at position
// `first`.
struct Head {
  Head() = default;
  Head(const Heads& heads, const AttentionValues& values, int h, int first = 0) {
    const int features = heads.features(), T = heads.positions;
    const auto projection = [&](int which, int from) {
      return Matrices{values.qkv + from * 3 * features + which * features + h * heads.width, 3 * features,
                      3LL * features * T};
    };
    q = projection(0, first);
    k = projection(1, 0);
    v = projection(2, 0);
    p = {values.p + (h * T + first) * T, T, static_cast<long long>(heads.count) * T * T};
    context = {values.context + first * features + h * heads.width, features, static_cast<long long>(features) * T};
  }
  Matrices q{}, k{}, v{}, p{}, context{};
};

}  // namespace workshop
