// SPDX-License-Identifier: Apache-2.0
// Self-test that the checker runs in `moe`: kernels that are right on a CPU, but wrong on a GPU, where the lanes of a
// warp share a row. It runs them with emulated threads of a GPU. It says nothing about code that is wrong on a CPU too,
// because the other checks know more about that.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#pragma GCC diagnostic ignored "-Wunused-function"  // only the kernels are called
#include "checker/self_tests/09_expert_parallel/expert_kernels.h"
#include "common/base/random.h"
#include "common/record/recorder.h"
#include "common/record/self_test.h"

namespace workshop {
namespace {

using namespace expert_kernels;

// Values with room for a wrong index around them. Nobody has written them yet.
template <typename T>
struct Room {
  explicit Room(int count) : count(count), memory(count + 2 * kAround, T(77)) {}
  T* data() { return memory.data() + kAround; }
  T& operator[](int i) { return data()[i]; }
  const T& operator[](int i) const { return memory[i + kAround]; }

  static constexpr int kAround = 2 * kChoices * kWidth;
  int count;
  std::vector<T> memory;
};

struct Values {
  Room<float> scores{kTokens * kExperts}, weights{kChoices}, dweights{kChoices};
  Room<int> chosen{kChoices}, places{kChoices}, row_of{kChoices}, counts{kSequences * kExperts}, starts{kNumbers};
  Room<Real> x{kTokens * kWidth}, y{kTokens * kWidth}, rows{kChoices * kWidth}, others{kChoices * kWidth},
      dlogits{kTokens * kExperts};

  Arrays arrays() {
    return {scores.data(), weights.data(), dweights.data(), chosen.data(), places.data(), row_of.data(), counts.data(),
            starts.data(), x.data(),       y.data(),        rows.data(),   others.data(), dlogits.data()};
  }
};

template <typename T>
void draw(Generator& generator, Room<T>& values) {
  std::vector<float> numbers(values.count);
  generator.randn(numbers.data(), numbers.size());
  for (int i = 0; i < values.count; ++i) values[i] = T(numbers[i]);
}

// The values that a call is given and, at the same places, those that it should leave there.
struct Call {
  Values given, expected;
};

// The router's decisions about random logits.
Values routing(Generator& generator, const Room<float>& logits) {
  Values v;
  v.scores = logits;
  for (int token = 0; token < kTokens; ++token) {
    float *scores = &v.scores[token * kExperts], *weights = &v.weights[token * K];
    int* chosen = &v.chosen[token * K];
    double sum = 0, chosen_sum = 0;
    for (int e = 0; e < kExperts; ++e) sum += std::exp(static_cast<double>(scores[e]));
    for (int e = 0; e < kExperts; ++e) scores[e] = static_cast<float>(std::exp(static_cast<double>(scores[e])) / sum);
    for (int k = 0; k < K; ++k) {
      int best = -1;
      for (int e = 0; e < kExperts; ++e) {
        if (std::find(chosen, chosen + k, e) == chosen + k && (best < 0 || scores[e] > scores[best])) best = e;
      }
      chosen[k] = best;
      chosen_sum += scores[best];
    }
    for (int k = 0; k < K; ++k) weights[k] = static_cast<float>(scores[chosen[k]] / chosen_sum);
  }
  std::fill_n(v.counts.data(), v.counts.count, 0);
  for (int c = 0; c < kChoices; ++c) {
    int& count = v.counts[c / (kPositions * K) * kExperts + v.chosen[c]];
    v.places[c] = count < kPlaces ? count : -1;
    ++count;
  }
  v.starts[0] = 0;
  for (int i = 0; i + 1 < kNumbers; ++i) {
    v.starts[i + 1] = v.starts[i] + std::min(kPlaces, v.counts[i % kSequences * kExperts + i / kSequences]);
  }
  for (int c = 0; c < kChoices; ++c) {
    v.row_of[c] = v.places[c] < 0 ? -1 : v.starts[v.chosen[c] * kSequences + c / (kPositions * K)] + v.places[c];
  }
  draw(generator, v.x);
  draw(generator, v.rows);
  draw(generator, v.dweights);
  return v;
}

Call call_of(Kernel which) {
  Generator generator{1};
  const Values unwritten;
  Room<float> logits{kTokens * kExperts};
  draw(generator, logits);
  Values given = routing(generator, logits), expected = given;
  const auto each = [&](auto visit) {  // choice with a row, column
    for (int c = 0; c < kChoices; ++c) {
      for (int j = 0; j < kWidth && given.row_of[c] >= 0; ++j) visit(c, given.row_of[c] * kWidth + j, j);
    }
  };
  const auto sums = [&](auto term) {
    std::vector<double> sum(kTokens * kWidth);
    each([&](int c, int at, int j) { sum[c / K * kWidth + j] += term(c) * static_cast<float>(given.rows[at]); });
    for (int i = 0; i < kTokens * kWidth; ++i) expected.y[i] = Real(static_cast<float>(sum[i]));
  };
  switch (which) {
    case kChoose:
      given.scores = logits;
      given.chosen = unwritten.chosen;
      given.weights = unwritten.weights;
      break;
    case kTakePlaces:
      given.places = unwritten.places;
      given.counts = unwritten.counts;
      break;
    case kFirstRows:
      given.starts = unwritten.starts;
      break;
    case kPermute:
      each([&](int c, int at, int j) { expected.rows[at] = given.x[c / K * kWidth + j]; });
      given.row_of = unwritten.row_of;
      break;
    case kCombine:
      sums([&](int c) { return given.weights[c]; });
      break;
    case kPermuteBackward:
      sums([](int) { return 1; });
      break;
    case kCombineBackward: {
      std::vector<double> dots(kChoices);
      each([&](int c, int at, int j) {
        const float dy = static_cast<float>(given.x[c / K * kWidth + j]);
        dots[c] += dy * static_cast<float>(given.rows[at]);
        expected.others[at] = Real(given.weights[c] * dy);
      });
      for (int c = 0; c < kChoices; ++c) expected.dweights[c] = static_cast<float>(dots[c]);
      given.dweights = unwritten.dweights;
      break;
    }
    default:
      for (int token = 0; token < kTokens; ++token) {
        std::vector<double> gradient(kExperts);
        double inner = 0, sum = 0, dot = 0;
        for (int c = token * K; c < (token + 1) * K; ++c) {
          inner += given.weights[c] * given.dweights[c];
          sum += given.scores[token * kExperts + given.chosen[c]];
        }
        for (int c = token * K; c < (token + 1) * K; ++c)
          gradient[given.chosen[c]] += (given.dweights[c] - inner) / sum;
        for (int e = 0; e < kExperts; ++e) {
          const int count = given.counts[token / kPositions * kExperts + e];
          if (which == kBalanceBackward) gradient[e] += kBalance * kExperts * count / (K * kPositions) / kPositions;
          dot += given.scores[token * kExperts + e] * gradient[e];
        }
        for (int e = 0; e < kExperts; ++e) {
          const int at = token * kExperts + e;
          expected.dlogits[at] = Real(static_cast<float>(given.scores[at] * (gradient[e] - dot)));
        }
      }
  }
  return {given, expected};
}

template <typename T>
bool alike(const Room<T>& found, const Room<T>& expected, double tolerance) {
  double largest = 0;
  for (int i = 0; i < found.count; ++i) {
    const double value = std::fabs(static_cast<float>(expected[i]));
    if (value < 70) largest = std::max(largest, value);  // what is not written is larger
  }
  for (int i = 0; i < found.count; ++i) {
    const double difference = static_cast<float>(found[i]) - static_cast<float>(expected[i]);
    if (!(std::fabs(difference) <= tolerance * largest)) return false;
  }
  return true;
}

bool is_right(const Values& found, const Values& expected) {
  constexpr double kTolerance = kMixedPrecision ? 0.03 : 1e-4;
  const auto same = [](const Room<int>& a, const Room<int>& b) { return alike(a, b, 0); };
  const auto close = [](const auto& a, const auto& b) { return alike(a, b, kTolerance); };
  return same(found.chosen, expected.chosen) && same(found.places, expected.places) &&
         same(found.row_of, expected.row_of) && same(found.counts, expected.counts) &&
         same(found.starts, expected.starts) && close(found.scores, expected.scores) &&
         close(found.weights, expected.weights) && close(found.dweights, expected.dweights) &&
         close(found.x, expected.x) && close(found.y, expected.y) && close(found.rows, expected.rows) &&
         close(found.others, expected.others) && close(found.dlogits, expected.dlogits);
}

// Two TODOs share a kernel: the first one chooses, the second one divides the weights.
const char* todo_of(Kernel which, const Outcome& outcome, const Values& found, const Values& expected) {
  const bool chosen = outcome.fault.empty() ? alike(found.chosen, expected.chosen, 0)
                                            : outcome.fault.find(kWeights) != std::string::npos;
  return which == kChoose && chosen ? "09.2" : kTodos[which];
}

std::string what_is_wrong(const std::string& fault) {
  if (fault.find("diverge") != std::string::npos) {
    return "all lanes must call sum_of(), max_of(), first_of() and number() together, so not in a loop over lanes(), "
           "nor where only some of them get to.";
  }
  if (fault.find("race") != std::string::npos) {
    return "one lane writes a value that another lane uses. sync_lanes() waits until all have come to it, and lanes(n) "
           "gives each lane values of its own.";
  }
  return "the result is different. In a loop over lanes(), each lane has only every 32nd value of the row.";
}

const SelfTest experts_on_gpu([](const Options&, cudaStream_t) {
  for (int i = 0; i < kKernels; ++i) {
    const Kernel which = static_cast<Kernel>(i);
    const Call call = call_of(which);
    for (int blocks : {2, 1}) {  // of eight warps each: one row or more per warp, then several
      Values threads = call.given;
      const Outcome outcome = on_threads(which, blocks, threads.arrays());
      if (outcome.open || (outcome.fault.empty() && is_right(threads, call.expected))) continue;
      Values plain = call.given;
      call_expert_kernel(which, plain.arrays(), [](auto kernel, auto... arguments) { kernel(arguments...); });
      if (!is_right(plain, call.expected)) break;
      finish_probes(std::chrono::seconds(1));  // those of the other self-tests may show what else is wrong
      end_alike(kFailed, std::string("TODO ") + todo_of(which, outcome, threads, call.expected) +
                             " is right on a CPU, but not on a GPU, where the 32 lanes of a warp share a row: " +
                             what_is_wrong(outcome.fault));
    }
  }
});

}  // namespace
}  // namespace workshop
