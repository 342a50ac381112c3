// SPDX-License-Identifier: Apache-2.0
// Self-test that the checker runs in `gpt`: kernels that are right on a CPU, but wrong on a GPU, where the lanes of a
// warp share a row. It runs them with emulated threads of a GPU. It says nothing about code that is wrong on a CPU too,
// because the other checks know more about that.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#pragma GCC diagnostic ignored "-Wunused-function"  // only the kernels are called
#include "checker/self_tests/01_single_gpu/row_kernels.h"
#include "common/base/random.h"
#include "common/record/recorder.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

using namespace row_kernels;

// The arrays of one call, the same ones each time. Around each of them is room for a wrong index.
class Inputs {
 public:
  Inputs() {
    for (int i = 0; i < 3; ++i) arrays.matrices[i] = reals(kSize);
    for (int i = 0; i < 2; ++i) arrays.vectors[i] = reals(kWidth);
    for (std::vector<float>& numbers : floats_) numbers = random(kPositions * kWidth + 2 * kAround);
    for (float& rstd : floats_[1]) rstd = 1 + rstd * rstd;  // as a sum of exponentials, too, it is larger than 1
    for (int i = 0; i < 3; ++i) arrays.of_rows[i] = floats_[i].data() + kAround;
    arrays.floats = floats_[3].data() + kAround;
    for (int row = -kAround; row < kRows + kAround; ++row) targets_.push_back((7 * row + 7 * kAround) % kWidth);
    arrays.targets = targets_.data() + kAround;
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  Arrays arrays;

 private:
  static constexpr int kAround = 2 * kSize;

  std::vector<float> random(int count) {
    std::vector<float> values(count);
    generator_.randn(values.data(), values.size());
    return values;
  }
  Real* reals(int count) {
    const std::vector<float> values = random(count + 2 * kAround);
    reals_.emplace_back(values.begin(), values.end());
    return reals_.back().data() + kAround;
  }

  Generator generator_{1};
  std::vector<std::vector<Real>> reals_;
  std::vector<float> floats_[4];
  std::vector<std::int32_t> targets_;
};

double at(const Real* matrix, int row, int j) { return static_cast<float>(matrix[row * kWidth + j]); }

template <typename Term>
double sum(int n, Term term) {
  double sum = 0;
  for (int j = 0; j < n; ++j) sum += term(j);
  return sum;
}

// Everything that a kernel should write: the first matrix, or the numbers of the rows.
std::vector<double> expected(Kernel which) {
  const Inputs inputs;
  const auto& [m, v, r, floats, targets] = inputs.arrays;
  std::vector<double> result;
  for (int row = 0; row < kRows; ++row) {
    const auto of = [&, row, m = m](int matrix) { return [=](int j) { return at(m[matrix], row, j); }; };
    const auto x = of(0), y = of(1), z = of(2);
    const auto gamma = [&, v = v](int j) { return at(v[0], 0, j); };
    const int seen = row + 1 + (which == kSoftmax ? kFirst : 0), block_seen = row + 1 + kFirst;
    if (which == kNormForward) {
      const double mean = sum(kWidth, y) / kWidth;
      const double variance = sum(kWidth, [&](int j) { return (y(j) - mean) * (y(j) - mean); }) / kWidth;
      for (int j = 0; j < kWidth; ++j) {
        result.push_back((y(j) - mean) / std::sqrt(variance + 1e-5) * gamma(j) + at(v[1], 0, j));
      }
    } else if (which == kNormBackward) {
      const double mean = r[0][row], rstd = r[1][row];
      const auto g = [&](int j) { return y(j) * gamma(j); };
      const auto normed = [&](int j) { return (z(j) - mean) * rstd; };
      const double shift = sum(kWidth, g) / kWidth;
      const double scale = sum(kWidth, [&](int j) { return g(j) * normed(j); }) / kWidth;
      for (int j = 0; j < kWidth; ++j) result.push_back(x(j) + rstd * (g(j) - shift - normed(j) * scale));
    } else if (which == kSoftmax) {
      const double total = sum(seen, [&](int j) { return std::exp(kScale * x(j)); });
      for (int j = 0; j < kWidth; ++j) result.push_back(j < seen ? std::exp(kScale * x(j)) / total : 0);
    } else if (which == kSoftmaxBackward) {
      const double dot = sum(seen, [&](int j) { return y(j) * x(j); });
      for (int j = 0; j < kWidth; ++j) result.push_back(j < seen ? kScale * y(j) * (x(j) - dot) : 0);
    } else if (which == kSoftmaxOfBlock) {
      double largest = r[0][1 + kFirst + row];
      for (int j = 0; j < block_seen; ++j) largest = std::max(largest, kScale * x(j));
      for (int j = 0; j < kWidth; ++j) result.push_back(j < block_seen ? std::exp(kScale * x(j) - largest) : 0);
    } else if (which == kCompleteSoftmax) {
      for (int j = 0; j < kWidth; ++j) result.push_back(floats[row * kWidth + j] / r[1][row]);
    } else if (which == kGradientOfBlock) {
      const int at = 1 + kFirst + row;
      const auto p = [&](int j) { return std::exp(kScale * y(j) - r[0][at]); };
      for (int j = 0; j < kWidth; ++j) result.push_back(j < block_seen ? kScale * p(j) * (x(j) - r[2][at]) : 0);
    } else if (which == kLoss) {
      result.push_back(std::log(sum(kWidth, [&](int j) { return std::exp(y(j)); })) - y(targets[row]));
    } else {
      for (int j = 0; j < kWidth; ++j) {
        result.push_back((std::exp(y(j) - r[0][row]) - (j == targets[row] ? 1 : 0)) / kRows);
      }
    }
  }
  return result;
}

bool is_right(Kernel which, const Inputs& inputs, const std::vector<double>& expected, double tolerance) {
  double largest = 0;
  for (double value : expected) largest = std::max(largest, std::fabs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double found =
        which == kLoss ? inputs.arrays.of_rows[0][i] : static_cast<float>(inputs.arrays.matrices[0][i]);
    if (!(std::fabs(found - expected[i]) <= tolerance * largest)) return false;
  }
  return true;
}

std::string what_is_wrong(const std::string& fault) {
  if (fault.find("diverge") != std::string::npos) {
    return "all lanes must call sum_of() and max_of() together, so not in a loop over lanes(), nor where only some of "
           "them get to.";
  }
  if (fault.find("race") != std::string::npos) {
    return "one lane writes a value of the row that another lane uses. lanes(n) gives each lane values of its own.";
  }
  return "the result is different. In a loop over lanes(), each lane has only every 32nd value of the row.";
}

const SelfTest rows_on_gpu([](const Options&, cudaStream_t) {
  constexpr double kTolerance = kMixedPrecision ? 0.03 : 1e-4;
  for (int i = 0; i < kKernels; ++i) {
    const Kernel which = static_cast<Kernel>(i);
    const std::vector<double> values = expected(which);
    Outcome outcome;
    bool right = true;
    for (int blocks : {2, 1}) {  // of eight warps each: one row per warp, then several
      const Inputs threads;
      outcome = on_threads(which, blocks, threads.arrays);
      right = outcome.open || (outcome.fault.empty() && is_right(which, threads, values, 2 * kTolerance));
      if (!right) break;
    }
    if (right) continue;
    const Inputs plain;
    call_row_kernel(which, plain.arrays, [](auto kernel, auto... arguments) { kernel(arguments...); });
    if (!is_right(which, plain, values, kTolerance)) continue;
    finish_probes(std::chrono::seconds(1));  // those of the other self-tests may show what else is wrong
    end_alike(kFailed, std::string("TODO ") + kTodos[which] +
                           " is right on a CPU, but not on a GPU, where the 32 lanes of a warp share a row: " +
                           what_is_wrong(outcome.fault));
  }
});

}  // namespace
}  // namespace workshop
