// SPDX-License-Identifier: Apache-2.0
// What the kernels with sums should compute, in double, with a bound of the error of float32 arithmetic.
//
// With u = 2^-24, each operation of float32 is wrong by at most a factor of 1 + u. A sum of n terms is wrong by at most
// n·u / (1 - n·u) · Σ|terms|, in any order (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). The
// error of the operands is carried through each operation. A bfloat16 is wrong by at most a factor of 1 + 2^-9; twice
// that is allowed.
#include <algorithm>
#include <cmath>
#include <limits>

#include "values.h"

namespace kernel_test {
namespace {

constexpr double kUnit = 0x1p-24, kTiny = 0x1p-126;  // below kTiny, the precision is less
constexpr double kFunction = 4 * kUnit;              // expf and logf: 2 ulp

Approximate rounded(double value, double error, double unit = kUnit) {
  return {value, error + unit * (std::fabs(value) + error) + kTiny};
}

Approximate exact(double value) { return {value, 0}; }
Approximate operator+(Approximate a, Approximate b) { return rounded(a.value + b.value, a.error + b.error); }
Approximate operator-(Approximate a, Approximate b) { return rounded(a.value - b.value, a.error + b.error); }
Approximate operator*(Approximate a, Approximate b) {
  return rounded(a.value * b.value, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error);
}
Approximate operator/(Approximate a, Approximate b) {
  const double least = std::fabs(b.value) - b.error;
  if (!(least > 0)) return {a.value / b.value, std::numeric_limits<double>::infinity()};
  return rounded(a.value / b.value, (a.error + std::fabs(a.value / b.value) * b.error) / least);
}
// A function that rises or falls, with the error of its operand.
template <typename F>
Approximate of_monotonic(Approximate a, F f) {
  const double value = f(a.value);
  return rounded(value, std::max(std::fabs(f(a.value + a.error) - value), std::fabs(f(a.value - a.error) - value)),
                 kFunction);
}
Approximate root(Approximate a) {
  return of_monotonic(a, [](double x) { return std::sqrt(std::max(x, 0.0)); });
}
Approximate exponential(Approximate a) {
  return of_monotonic(a, [](double x) { return std::exp(x); });
}
Approximate logarithm(Approximate a) {
  return of_monotonic(a, [](double x) { return std::log(std::max(x, 0.0)); });
}

template <typename Term>
Approximate sum(int n, Term term) {
  double value = 0, size = 0, error = 0;
  for (int j = 0; j < n; ++j) {
    const Approximate t = term(j);
    value += t.value;
    size += std::fabs(t.value) + t.error;
    error += t.error;
  }
  return {value, error + n * kUnit / (1 - n * kUnit) * size + kTiny};
}

// Collects what is expected of the arrays of a case.
class Collector {
 public:
  explicit Collector(const Values& values) : values_(values) {}
  std::vector<Approximate>& of(const char* name) {
    return found_.emplace_back(Expected{name, std::vector<Approximate>(values_.array(name).count)}).values;
  }
  std::vector<Expected> all() {
    for (Expected& one : found_) {
      for (Approximate& value : one.values) value = stored(one.name.c_str(), value);
    }
    return found_;
  }
  // As the array keeps it.
  Approximate stored(const char* name, Approximate a) const {
    return values_.array(name).kind == Values::Array::bfloats ? rounded(a.value, a.error, 0x1p-8) : a;
  }

 private:
  const Values& values_;
  std::vector<Expected> found_;
};

std::vector<Expected> layer_norm_forward(const Values& v) {
  const auto &x = v.array("x"), &gamma = v.array("gamma"), &beta = v.array("beta");
  const int width = v.columns;
  std::vector<Approximate> y(x.count), means, roots;
  for (int row = 0; row < v.rows; ++row) {
    const auto in = [&](int j) { return exact(x[static_cast<std::size_t>(row) * width + j]); };
    const Approximate m = sum(width, in) / exact(width);
    const auto square = [&](int j) { return (in(j)-m) * (in(j)-m); };
    const Approximate variance = sum(width, square) / exact(width);
    const Approximate r = exact(1) / root(variance + exact(1e-5f));
    means.push_back(m);
    roots.push_back(r);
    for (int j = 0; j < width; ++j) {
      y[static_cast<std::size_t>(row) * width + j] = (in(j)-m) * r * exact(gamma[j]) + exact(beta[j]);
    }
  }
  Collector found(v);
  found.of("y") = y;
  found.of("mean") = means;
  found.of("rstd") = roots;
  return found.all();
}

std::vector<Expected> layer_norm_backward(const Values& v) {
  const auto &x = v.array("x"), &dy = v.array("dy"), &gamma = v.array("gamma"), &beside = v.array("beside");
  const auto &mean = v.array("mean"), &rstd = v.array("rstd");
  const int width = v.columns, how = static_cast<int>(v.scalar("beside is null, an array or dx"));
  Collector found(v);
  std::vector<Approximate>& dx = found.of(how == 2 ? "beside" : "dx");
  for (int row = 0; row < v.rows; ++row) {
    const std::size_t first = static_cast<std::size_t>(row) * width;
    const auto g = [&](int j) { return exact(dy[first + j]) * exact(gamma[j]); };
    const auto normed = [&](int j) { return (exact(x[first + j]) - exact(mean[row])) * exact(rstd[row]); };
    const Approximate shift = sum(width, g) / exact(width);
    const Approximate scale = sum(width, [&](int j) { return g(j) * normed(j); }) / exact(width);
    for (int j = 0; j < width; ++j) {
      dx[first + j] =
          exact(how == 0 ? 0 : beside.at_begin(first + j)) + exact(rstd[row]) * (g(j) - shift - normed(j) * scale);
    }
  }
  return found.all();
}

std::vector<Expected> layer_norm_parameter_gradients(const Values& v) {
  const auto &x = v.array("x"), &dy = v.array("dy"), &mean = v.array("mean"), &rstd = v.array("rstd");
  const auto &dgamma = v.array("dgamma"), &dbeta = v.array("dbeta");
  const bool accumulate = v.scalar("accumulate") > 0;
  std::vector<Approximate> first(v.columns), second(v.columns);
  for (int j = 0; j < v.columns; ++j) {
    const auto at = [&](int row) { return static_cast<std::size_t>(row) * v.columns + j; };
    first[j] = sum(v.rows, [&](int row) {
      return exact(dy[at(row)]) * (exact(x[at(row)]) - exact(mean[row])) * exact(rstd[row]);
    });
    second[j] = sum(v.rows, [&](int row) { return exact(dy[at(row)]); });
    if (accumulate) {
      first[j] = first[j] + exact(dgamma.at_begin(j));
      second[j] = second[j] + exact(dbeta.at_begin(j));
    }
  }
  Collector found(v);
  found.of("dgamma") = first;
  found.of("dbeta") = second;
  return found.all();
}

std::vector<Expected> causal_softmax(const Values& v) {
  const auto& scores = v.array("scores");
  const double scale = v.scalar("scale");
  const int positions = static_cast<int>(v.scalar("positions")), first = static_cast<int>(v.scalar("first"));
  const int stride = static_cast<int>(v.scalar("stride")), rows = static_cast<int>(v.scalar("rows"));
  Collector found(v);
  std::vector<Approximate> p(scores.count);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = exact(scores.at_begin(i));  // places between the rows stay
  for (int row = 0; row < rows; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * stride;
    const int seen = first + row % positions + 1;
    double largest = -INFINITY;
    for (int j = 0; j < seen; ++j) largest = std::max(largest, scores.at_begin(begin + j));
    const auto power = [&](int j) {
      const Approximate difference = exact(scores.at_begin(begin + j)) - exact(largest);
      return found.stored("scores", exponential(exact(scale) * difference));
    };
    const Approximate total = sum(seen, power);
    for (int j = 0; j < first + positions; ++j) p[begin + j] = j < seen ? power(j) / total : exact(0);
  }
  found.of("scores") = p;
  return found.all();
}

std::vector<Expected> causal_softmax_backward(const Values& v) {
  const auto &p = v.array("p"), &dp = v.array("dp");
  Collector found(v);
  std::vector<Approximate>& gradient = found.of("dp");
  const int positions = v.columns;
  for (int row = 0; row < v.rows; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * positions;
    const int seen = row % positions + 1;
    const auto of = [&](int j) { return exact(dp.at_begin(begin + j)); };
    const Approximate dot = sum(seen, [&](int j) { return exact(p[begin + j]) * of(j); });
    for (int j = 0; j < positions; ++j) {
      gradient[begin + j] = j < seen ? exact(v.scalar("scale")) * exact(p[begin + j]) * (of(j) - dot) : exact(0);
    }
  }
  return found.all();
}

// Where a row of a block of scores lies.
struct BlockRow {
  std::size_t begin, of_all;  // its first score; its place among all positions of the samples
  int seen;
};
std::vector<BlockRow> block_rows(const Values& v) {
  const auto number = [&](const char* name) { return static_cast<int>(v.scalar(name)); };
  std::vector<BlockRow> rows;
  for (int row = 0; row < number("rows"); ++row) {
    const int position = number("first") + row % number("queries");
    rows.push_back({static_cast<std::size_t>(row) * v.columns,
                    static_cast<std::size_t>(row / number("queries") * number("positions") + position),
                    std::min(position - number("begin") + 1, v.columns)});
  }
  return rows;
}

std::vector<Approximate> as_it_was(const Values::Array& array) {
  std::vector<Approximate> values(array.count);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = exact(array.at_begin(i));
  return values;
}

std::vector<Expected> softmax_of_block(const Values& v) {
  const auto& scores = v.array("scores");
  const Approximate scale = exact(v.scalar("scale")), dropout = exact(v.scalar("dropout"));
  const bool first = v.scalar("begin") == 0;
  const auto width = static_cast<std::size_t>(v.scalar("width"));
  std::vector<Approximate> p = as_it_was(scores), context = as_it_was(v.array("context")),
                           largest = as_it_was(v.array("largest")), sums = as_it_was(v.array("sums"));
  Collector found(v);
  for (const auto& [begin, at, seen] : block_rows(v)) {
    double of_block = -INFINITY;
    for (int j = 0; j < seen; ++j) of_block = std::max(of_block, scores.at_begin(begin + j));
    Approximate now = scale * exact(of_block);
    if (!first && largest[at].value > now.value) now = largest[at];
    const Approximate correction = first ? exact(0) : exponential(largest[at] - now);
    const auto power = [&, begin = begin](int j) {
      return found.stored("scores", exponential(scale * exact(scores.at_begin(begin + j)) - now));
    };
    sums[at] = (first ? exact(0) : sums[at] * correction) + sum(seen, power);
    largest[at] = now;
    for (int j = 0; j < v.columns; ++j) p[begin + j] = j < seen ? power(j) * dropout : exact(0);
    for (std::size_t j = 0; j < width && !first; ++j) context[at * width + j] = context[at * width + j] * correction;
  }
  found.of("scores") = p;
  found.of("context") = context;
  found.of("largest") = largest;
  found.of("sums") = sums;
  return found.all();
}

std::vector<Expected> complete_softmax(const Values& v) {
  const auto &values = v.array("values"), &largest = v.array("largest"), &sums = v.array("sums");
  const auto stride = static_cast<std::size_t>(v.scalar("stride")), width = static_cast<std::size_t>(v.columns);
  std::vector<Approximate> context = as_it_was(v.array("context")), log_sums = as_it_was(v.array("log_sums"));
  for (const BlockRow& row : block_rows(v)) {
    const std::size_t at = row.of_all;
    for (std::size_t j = 0; j < width; ++j) context[at * stride + j] = exact(values[at * width + j]) / exact(sums[at]);
    log_sums[at] = exact(largest[at]) + logarithm(exact(sums[at]));
  }
  Collector found(v);
  found.of("context") = context;
  found.of("log_sums") = log_sums;
  return found.all();
}

std::vector<Expected> dots_of_rows(const Values& v) {
  const auto &dcontext = v.array("dcontext"), &context = v.array("context");
  const auto stride = static_cast<std::size_t>(v.scalar("stride"));
  Collector found(v);
  std::vector<Approximate>& dots = found.of("dots");
  for (std::size_t row = 0; row < dots.size(); ++row) {
    dots[row] =
        sum(v.columns, [&](int j) { return exact(dcontext[row * stride + j]) * exact(context[row * stride + j]); });
  }
  return found.all();
}

std::vector<Expected> dots_of_run(const Values& v) {
  const auto &dcontext = v.array("dcontext"), &context = v.array("context");
  const auto number = [&](const char* name) { return static_cast<std::size_t>(v.scalar(name)); };
  const std::size_t run = number("rows of the run"), stride = number("stride");
  Collector found(v);
  std::vector<Approximate>& dots = found.of("dots");
  for (std::size_t row = 0; row < dots.size(); ++row) {
    const std::size_t at = row / run * number("rows of a sample") + number("first row of the run") + row % run;
    dots[row] =
        sum(v.columns, [&](int j) { return exact(dcontext[at * stride + j]) * exact(context[at * stride + j]); });
  }
  return found.all();
}

std::vector<Expected> choose_experts(const Values& v) {
  const auto &logits = v.array("logits"), &chosen = v.array("chosen");
  const int experts = v.columns, K = static_cast<int>(v.scalar("K"));
  std::vector<Approximate> scores(logits.count), weights(chosen.count);
  for (int token = 0; token < v.rows; ++token) {
    const std::size_t begin = static_cast<std::size_t>(token) * experts, choices = static_cast<std::size_t>(token) * K;
    double largest = -INFINITY;
    for (int e = 0; e < experts; ++e) largest = std::max(largest, logits.at_begin(begin + e));
    const auto power = [&](int e) { return exponential(exact(logits.at_begin(begin + e)) - exact(largest)); };
    const Approximate total = sum(experts, power);
    for (int e = 0; e < experts; ++e) scores[begin + e] = power(e) / total;
    const auto score = [&](int k) { return scores[begin + static_cast<std::size_t>(chosen[choices + k])]; };
    for (int k = 0; k < K; ++k) weights[choices + k] = score(k) / sum(K, score);
  }
  Collector found(v);
  found.of("logits") = scores;
  found.of("weights") = weights;
  return found.all();
}

std::vector<Expected> expert_rows(const Values& v) {
  const auto &dy = v.array("x"), &outputs = v.array("outputs"), &row_of = v.array("row_of");
  const int K = static_cast<int>(v.scalar("K")), width = static_cast<int>(v.scalar("width"));
  Collector found(v);
  std::vector<Approximate>& dweights = found.of("dweights");
  for (std::size_t choice = 0; choice < dweights.size(); ++choice) {
    if (row_of[choice] < 0) continue;
    const std::size_t row = static_cast<std::size_t>(row_of[choice]) * width, token = choice / K * width;
    dweights[choice] = sum(width, [&](int j) { return exact(dy[token + j]) * exact(outputs[row + j]); });
  }
  return found.all();
}

std::vector<Expected> choose_experts_backward(const Values& v) {
  const auto &dweights = v.array("dweights"), &weights = v.array("weights"), &scores = v.array("scores"),
             &chosen = v.array("chosen"), &counts = v.array("counts");
  const int experts = v.columns, K = static_cast<int>(v.scalar("K"));
  const auto positions = static_cast<std::size_t>(v.scalar("positions"));
  const Approximate factor = exact(v.scalar("balance_factor"));
  Collector found(v);
  std::vector<Approximate>& dlogits = found.of("dlogits");
  for (std::size_t token = 0; token < scores.count / experts; ++token) {
    const auto score = [&](std::size_t e) { return exact(scores[token * experts + e]); };
    const Approximate inner =
        sum(K, [&](int k) { return exact(weights[token * K + k]) * exact(dweights[token * K + k]); });
    const Approximate total = sum(K, [&](int k) { return score(static_cast<std::size_t>(chosen[token * K + k])); });
    const auto dscore = [&](int e) {
      Approximate gradient = exact(0);
      for (int k = 0; k < K; ++k) {
        if (chosen[token * K + k] == e) gradient = gradient + (exact(dweights[token * K + k]) - inner) / total;
      }
      const Approximate f = factor * exact(experts) * exact(counts[token / positions * experts + e]) /
                            exact(static_cast<double>(K * positions));
      return gradient + f / exact(static_cast<double>(positions));
    };
    const Approximate dot = sum(experts, [&](int e) { return score(e) * dscore(e); });
    for (int e = 0; e < experts; ++e) dlogits[token * experts + e] = score(e) * (dscore(e) - dot);
  }
  return found.all();
}

std::vector<Expected> balance_of_experts(const Values& v) {
  const auto &scores = v.array("scores"), &counts = v.array("counts");
  const int experts = v.columns, positions = static_cast<int>(v.scalar("positions"));
  Collector found(v);
  std::vector<Approximate>& balance = found.of("balance");
  for (std::size_t pair = 0; pair < balance.size(); ++pair) {
    const std::size_t first = pair / experts * positions * experts + pair % experts;
    const Approximate mean =
        sum(positions, [&](int t) { return exact(scores[first + static_cast<std::size_t>(t) * experts]); }) /
        exact(positions);
    balance[pair] = exact(experts) * exact(counts[pair]) / exact(2 * positions) * mean;
  }
  return found.all();
}

std::vector<Expected> gradient_of_block(const Values& v) {
  const auto &scores = v.array("scores"), &dp = v.array("dp"), &log_sums = v.array("log_sums"), &dots = v.array("dots");
  const Approximate scale = exact(v.scalar("scale")), dropout = exact(v.scalar("dropout"));
  Collector found(v);
  std::vector<Approximate> p(scores.count), gradient(dp.count);
  for (const auto& [begin, at, seen] : block_rows(v)) {
    for (int j = 0; j < seen; ++j) {
      const Approximate score = scale * exact(scores.at_begin(begin + j));
      const Approximate probability = exponential(score - exact(log_sums[at]));
      p[begin + j] = probability * dropout;
      gradient[begin + j] = scale * probability * (exact(dp.at_begin(begin + j)) * dropout - exact(dots[at]));
    }
  }
  found.of("scores") = p;
  found.of("dp") = gradient;
  return found.all();
}

std::vector<Expected> cross_entropy_forward(const Values& v) {
  const auto &logits = v.array("logits"), &targets = v.array("targets");
  std::vector<Approximate> losses, log_sums;
  for (int row = 0; row < v.rows; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * v.columns;
    double largest = -INFINITY;
    for (int j = 0; j < v.columns; ++j) largest = std::max(largest, logits[begin + j]);
    const Approximate total =
        sum(v.columns, [&](int j) { return exponential(exact(logits[begin + j]) - exact(largest)); });
    log_sums.push_back(exact(largest) + logarithm(total));
    losses.push_back(log_sums.back() - exact(logits[begin + static_cast<std::size_t>(targets[row])]));
  }
  Collector found(v);
  found.of("losses") = losses;
  found.of("log_sums") = log_sums;
  return found.all();
}

std::vector<Expected> row_exponentials(const Values& v) {
  const auto &logits = v.array("logits"), &maxima = v.array("maxima");
  Collector found(v);
  std::vector<Approximate>& sums = found.of("sums");
  for (int row = 0; row < v.rows; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * v.columns;
    sums[row] = sum(v.columns, [&](int j) { return exponential(exact(logits[begin + j]) - exact(maxima[row])); });
  }
  return found.all();
}

std::vector<Expected> chunk_squares(const Values& v) {
  const auto& values = v.array("values");
  const int n = static_cast<int>(values.count);
  Collector found(v);
  std::vector<Approximate>& sums = found.of("sums");
  for (int chunk = 0; chunk < static_cast<int>(sums.size()); ++chunk) {
    const int first = chunk * v.columns;
    sums[chunk] =
        sum(std::min(n - first, v.columns), [&](int i) { return exact(values[first + i]) * exact(values[first + i]); });
  }
  return found.all();
}

std::vector<Expected> add_sum(const Values& v) {
  const auto &values = v.array("values"), &total = v.array("total");
  Collector found(v);
  const Approximate all = sum(static_cast<int>(values.count), [&](int i) { return exact(values[i]); });
  found.of("total") = {exact(total.at_begin(0)) + exact(v.scalar("factor")) * all};
  return found.all();
}

std::vector<Expected> make_scale(const Values& v) {
  const auto& values = v.array("of_piece");
  const int pieces = static_cast<int>(values.count);
  Collector found(v);
  double largest = 0;
  for (int i = 0; i < pieces; ++i) largest = std::max(largest, values[i]);
  const Approximate all = sum(pieces, [&](int i) { return exact(values[i]); });
  found.of("scale of int8") = {exact(largest) / exact(127)};
  found.of("scale of sign") = {all / exact(v.scalar("n"))};
  return found.all();
}

}  // namespace

std::vector<Expected> expected(std::string_view name, const Values& values) {
  constexpr std::pair<std::string_view, std::vector<Expected> (*)(const Values&)> kKnown[] = {
      {"layer_norm_forward", layer_norm_forward},
      {"layer_norm_backward", layer_norm_backward},
      {"layer_norm_parameter_gradients", layer_norm_parameter_gradients},
      {"causal_softmax", causal_softmax},
      {"causal_softmax_backward", causal_softmax_backward},
      {"softmax_of_block", softmax_of_block},
      {"complete_softmax", complete_softmax},
      {"dots_of_rows", dots_of_rows},
      {"dots_of_run", dots_of_run},
      {"gradient_of_block", gradient_of_block},
      {"choose_experts", choose_experts},
      {"expert_rows", expert_rows},
      {"choose_experts_backward", choose_experts_backward},
      {"balance_of_experts", balance_of_experts},
      {"cross_entropy_forward", cross_entropy_forward},
      {"row_exponentials", row_exponentials},
      {"chunk_squares", chunk_squares},
      {"add_sum", add_sum},
      {"make_scale", make_scale},
  };
  for (const auto& [known, reference] : kKnown) {
    if (known == name) return reference(values);
  }
  return {};
}

}  // namespace kernel_test
