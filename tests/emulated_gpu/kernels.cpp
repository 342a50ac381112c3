// SPDX-License-Identifier: Apache-2.0
// Calls of the kernels. This file is compiled four times: for plain functions and for emulated threads, in float32 and
// with WORKSHOP_BF16. Each time, `workshop` is defined as a different name, because the inline functions of the headers
// have different bodies.
#ifdef WORKSHOP_EMULATES_GPU_THREADS
#include "checker/emulated_gpu/emulated_gpu.h"
#endif

#include <iterator>

#pragma GCC diagnostic ignored "-Wunused-function"  // of the headers, only the kernels are called
#include "01_single_gpu/attention.h"
#include "01_single_gpu/blockwise_attention.h"
#include "01_single_gpu/cross_entropy.h"
#include "01_single_gpu/embedding.h"
#include "01_single_gpu/layer_norm.h"
#include "01_single_gpu/linear.h"
#include "01_single_gpu/mean_squared_error.h"
#include "01_single_gpu/optimizer.h"
#include "01_single_gpu/pooling.h"
#include "05_tensor_parallel/shards.h"
#include "05_tensor_parallel/vocabulary_parallel.h"
#include "08_context_parallel/partial_attention.h"
#include "08_context_parallel/ulysses.h"
#include "09_expert_parallel/moe.h"
#include "10_less_communication/compression.h"
#include "model/activation.h"
#include "model/clip_kernels.h"
#include "model/elementwise.h"
#include "values.h"

namespace workshop {
namespace {

using kernel_test::Case;
using kernel_test::Values;

// Like launch() of common/device/launch.h.
template <typename... Parameters, typename... Arguments>
void launch_for_test([[maybe_unused]] Values& v, [[maybe_unused]] const char* name, void (*kernel)(Parameters...),
                     int elements, Arguments... arguments) {
  v.keep();
  if (elements <= 0) return;
#ifdef WORKSHOP_EMULATES_GPU_THREADS
  const int needed = (elements - 1) / kThreadsPerBlock + 1;
  const emulated_gpu::Grid grid{needed < v.shape.most_blocks ? needed : v.shape.most_blocks, kThreadsPerBlock,
                                static_cast<emulated_gpu::Order>(v.shape.order), v.shape.seed};
  emulated_gpu::run(name, grid, kernel, arguments...);
#else
  kernel(arguments...);
#endif
}
#define LAUNCH(kernel, ...) launch_for_test(v, #kernel, kernel, __VA_ARGS__)

// ---- chapter 01: language model -------------------------------------------------------------------------------------

void layer_norm_forward_of(Values& v) {
  const int rows = v.rows, width = v.columns, n = rows * width;
  const Real* x = v.numbers<Real>("x", n);
  const Real *gamma = v.numbers<Real>("gamma", width), *beta = v.numbers<Real>("beta", width);
  Real* y = v.unset<Real>("y", n);
  float *mean = v.unset<float>("mean", rows), *rstd = v.unset<float>("rstd", rows);
  LAUNCH(layer_norm_forward, n, y, mean, rstd, x, gamma, beta, rows, width);
}

void layer_norm_backward_of(Values& v) {
  const int rows = v.rows, width = v.columns, n = rows * width, how = v.random(3);
  v.scalar("beside is null, an array or dx", static_cast<float>(how));
  const Real *dy = v.numbers<Real>("dy", n), *x = v.numbers<Real>("x", n), *gamma = v.numbers<Real>("gamma", width);
  const float *mean = v.numbers<float>("mean", rows), *rstd = v.positive<float>("rstd", rows);
  Real *beside = v.numbers<Real>("beside", n), *dx = v.unset<Real>("dx", n);
  LAUNCH(layer_norm_backward, n, how == 2 ? beside : dx, how == 0 ? nullptr : beside, dy, x, mean, rstd, gamma, rows,
         width);
}

void layer_norm_parameter_gradients_of(Values& v) {
  const int rows = v.rows, width = v.columns, n = rows * width;
  const Real *dy = v.numbers<Real>("dy", n), *x = v.numbers<Real>("x", n);
  const float *mean = v.numbers<float>("mean", rows), *rstd = v.positive<float>("rstd", rows);
  Real *dgamma = v.numbers<Real>("dgamma", width), *dbeta = v.numbers<Real>("dbeta", width);
  const float accumulate = v.scalar("accumulate", static_cast<float>(v.random(2)));
  LAUNCH(layer_norm_parameter_gradients, n, dgamma, dbeta, dy, x, mean, rstd, rows, width, accumulate);
}

// Whole rows of `columns` scores or, one time in three, rows of a few new positions.
void causal_softmax_of(Values& v) {
  const int keys = v.columns, news = v.random(3) == 0 ? 1 + v.random(keys) : keys, first = keys - news;
  const int rows = v.rows, stride = keys + (first > 0 ? v.random(3) : 0);
  for (const auto& [name, value] : {std::pair{"rows", rows}, {"positions", news}, {"first", first}, {"stride", stride}})
    v.scalar(name, static_cast<float>(value));
  Real* scores = v.numbers<Real>("scores", rows * stride);
  LAUNCH(causal_softmax, rows * keys, scores, v.scalar("scale", 0.75f), rows, news, first, stride);
}

void causal_softmax_backward_of(Values& v) {
  const int rows = v.rows, positions = v.columns, n = rows * positions;
  Real* dp = v.numbers<Real>("dp", n);
  const Real* p = v.positive<Real>("p", n);
  LAUNCH(causal_softmax_backward, n, dp, p, v.scalar("scale", 0.75f), rows, positions);
}

// The scores of `keys` keys for about `rows` rows of several samples. Some rows see only a part of the keys.
struct SampleBlocks {
  ScoreBlock block;
  int samples;
  int rows() const { return samples * block.queries; }
  int positions() const { return samples * block.positions; }
};
SampleBlocks blocks_of(Values& v, int keys) {
  const int samples = 1 + v.random(3), queries = (v.rows - 1) / samples + 1;
  const int begin = v.random(3) == 0 ? 0 : 1 + v.random(5), first = begin + v.random(keys + 3);
  const ScoreBlock block{first, queries, begin, keys, first + queries + v.random(2)};
  v.scalar("queries", static_cast<float>(queries));
  v.scalar("begin", static_cast<float>(begin));
  v.scalar("first", static_cast<float>(first));
  v.scalar("positions", static_cast<float>(block.positions));
  v.scalar("rows", static_cast<float>(samples * queries));
  return {block, samples};
}

// Dropout that drops nothing, but scales.
BlockDropout block_dropout(Values& v) {
  const bool active = v.random(2) == 0;
  return {active, {1, 0, 1, 0, /*threshold=*/0, v.scalar("dropout", active ? 4.0f / 3 : 1.0f)}, 0, 1};
}

void softmax_of_block_of(Values& v) {
  const SampleBlocks of = blocks_of(v, v.columns);
  const int rows = of.rows(), all = of.positions(), width = 1 + v.random(v.columns < 300 ? 70 : 1);
  v.scalar("width", static_cast<float>(width));
  Real* scores = v.numbers<Real>("scores", rows * v.columns);
  float *context = v.numbers<float>("context", all * width), *largest = v.numbers<float>("largest", all);
  float* sums = v.positive<float>("sums", all);
  LAUNCH(softmax_of_block, rows * v.columns, scores, context, largest, sums, v.scalar("scale", 0.75f), of.block, rows,
         width, block_dropout(v));
}

void complete_softmax_of(Values& v) {
  const SampleBlocks of = blocks_of(v, /*keys=*/1 + v.random(100));
  const int rows = of.rows(), all = of.positions(), width = v.columns, stride = width + v.random(5);
  v.scalar("stride", static_cast<float>(stride));
  Real* context = v.numbers<Real>("context", all * stride);
  const float *values = v.numbers<float>("values", all * width), *largest = v.numbers<float>("largest", all);
  const float* sums = v.positive<float>("sums", all);
  float* log_sums = v.numbers<float>("log_sums", all);
  LAUNCH(complete_softmax, rows * width, context, log_sums, values, largest, sums, of.block, rows, width, stride, 1);
}

void dots_of_rows_of(Values& v) {
  const int stride = v.columns + v.random(5), n = v.rows * stride;
  v.scalar("stride", static_cast<float>(stride));
  const Real *a = v.numbers<Real>("dcontext", n), *b = v.numbers<Real>("context", n);
  LAUNCH(dots_of_rows, v.rows * v.columns, v.unset<float>("dots", v.rows), a, b, v.rows, v.columns, stride);
}

void gradient_of_block_of(Values& v) {
  const SampleBlocks of = blocks_of(v, v.columns);
  const int rows = of.rows(), all = of.positions();
  Real *scores = v.numbers<Real>("scores", rows * v.columns), *dp = v.numbers<Real>("dp", rows * v.columns);
  const float *log_sums = v.numbers<float>("log_sums", all), *dots = v.numbers<float>("dots", all);
  LAUNCH(gradient_of_block, rows * v.columns, scores, dp, log_sums, dots, v.scalar("scale", 0.75f), of.block, rows, 1,
         block_dropout(v));
}

void copy_rows_of(Values& v) {
  const int width = v.columns, stride = width + v.random(5);
  const float* from = v.numbers<float>("from", v.rows * width);
  LAUNCH(copy_rows, v.rows * width, v.unset<Real>("to", v.rows * stride), from, v.rows, width, stride);
}

void cross_entropy_forward_of(Values& v) {
  const int rows = v.rows, words = v.columns, n = rows * words;
  const Real* logits = v.numbers<Real>("logits", n);
  const std::int32_t* targets = v.integers("targets", rows, words);
  float *losses = v.unset<float>("losses", rows), *log_sums = v.unset<float>("log_sums", rows);
  LAUNCH(cross_entropy_forward, n, losses, log_sums, logits, targets, rows, words);
}

void cross_entropy_backward_of(Values& v) {
  const int rows = v.rows, words = v.columns, n = rows * words;
  const Real* logits = v.numbers<Real>("logits", n);
  const float* log_sums = v.positive<float>("log_sums", rows);
  const std::int32_t* targets = v.integers("targets", rows, words);
  Real* gradient = v.unset<Real>("gradient", n);
  LAUNCH(cross_entropy_backward, n, gradient, logits, log_sums, targets, rows, words, rows + 1);
}

void mark_correct_of(Values& v) {
  const int rows = v.rows, words = v.columns;
  const Real* logits = v.numbers<Real>("logits", rows * words);
  const std::int32_t* targets = v.integers("targets", rows, words);
  float* correct = v.unset<float>("correct", rows);
  LAUNCH(mark_correct, rows * words, correct, logits, targets, rows, words);
}

void embedding_forward_of(Values& v) {
  const int rows = v.rows, width = v.columns, words = 1 + v.random(20), context = 1 + v.random(40);
  const std::int32_t* tokens = v.integers("tokens", rows, words);
  const Real *values = v.numbers<Real>("words", words * width),
             *positions = v.numbers<Real>("positions", context * width);
  Real* y = v.unset<Real>("y", rows * width);
  // Of one row, a new position; of more, all positions.
  const Positions at = rows == 1 ? Positions(context, 1, v.random(context)) : Positions(context);
  LAUNCH(embedding_forward, rows * width, y, tokens, values, positions, at, rows, width);
}

void embedding_backward_of(Values& v) {
  const int rows = v.rows, width = v.columns, words = 1 + v.random(50), context = 1 + v.random(40);
  const int first = v.random(words), count = 1 + v.random(words - first);  // of this rank's words
  const std::int32_t* tokens = v.integers("tokens", rows, words);
  const Real* dy = v.numbers<Real>("dy", rows * width);
  Real *of_words = v.numbers<Real>("gradients of words", count * width),
       *of_positions = v.numbers<Real>("gradients of positions", context * width);
  v.scalar("first word", static_cast<float>(first));
  const SameWord same{v.unset<std::int32_t>("is_first", rows), v.unset<std::int32_t>("next", rows)};
  LAUNCH(link_same_words, rows * width, same, tokens, rows);
  LAUNCH(word_gradients, rows * width, of_words, dy, tokens, same, first, count, rows, width);
  LAUNCH(position_gradients, context * width, of_positions, dy, Positions(context), rows, width);
}

void drop_of(Values& v) {
  const int width = v.columns, n = v.rows * width;
  Real *x = v.numbers<Real>("x", n), *y = v.random(2) == 0 ? x : v.unset<Real>("y", n);
  const int whole = 1 + v.random(3);
  const DropoutMask mask{whole * width, v.random(100), 3, std::uint64_t{1} << 60 | v.random(1 << 30),
                         1u << 22,      4.0f / 3};
  LAUNCH(drop, n, y, x, n, DropoutPart{width, whole * width, v.random(whole) * width}, whole * width, mask);
}

// ---- chapter 08 ----------------------------------------------------------------------------------------------------

// The rows of a run among those of some samples: `rows` rows, and `all` rows of the samples.
struct RunOfSamples {
  Positions at;
  int rows, all;
};
RunOfSamples run_of(Values& v) {
  const int samples = 1 + v.random(3), run = (v.rows - 1) / samples + 1, runs = 1 + v.random(2);
  const RunOfSamples of{{runs * run, run, v.random(runs) * run}, samples * run, samples * runs * run};
  v.scalar("rows", static_cast<float>(of.rows));
  v.scalar("rows of a sample", static_cast<float>(of.at.whole));
  v.scalar("rows of the run", static_cast<float>(of.at.count));
  v.scalar("first row of the run", static_cast<float>(of.at.first));
  return of;
}

void merge_part_of(Values& v) {
  const RunOfSamples of = run_of(v);
  const int width = v.columns, features = width + v.random(5), heads = 1 + v.random(3);
  const bool first = v.random(3) == 0;
  float *context = v.numbers<float>("context", of.all * features),
        *log_sums = v.numbers<float>("log_sums", of.rows * heads);
  const float *values = v.numbers<float>("values", of.rows * width), *largest = v.numbers<float>("largest", of.rows);
  const float* sums = v.positive<float>("sums", of.rows);
  LAUNCH(merge_part, of.rows * width, context, log_sums, values, largest, sums, first, of.at, heads, of.rows, width,
         features);
}

void dots_of_run_of(Values& v) {
  const RunOfSamples of = run_of(v);
  const int stride = v.columns + v.random(5), n = of.all * stride;
  v.scalar("stride", static_cast<float>(stride));
  const Real *a = v.numbers<Real>("dcontext", n), *b = v.numbers<Real>("context", n);
  LAUNCH(dots_of_run, of.rows * v.columns, v.unset<float>("dots", of.rows), a, b, of.at, of.rows, v.columns, stride);
}

void rows_of_a_run(Values& v) {
  const RunOfSamples of = run_of(v);
  const int width = v.columns, stride = width + v.random(5);
  float* sums = v.numbers<float>("sums", of.all * stride);
  const Real* from = v.numbers<Real>("from", of.rows * width);
  LAUNCH(add_to_run<ConstReals>, of.rows * width, sums, ConstReals(from), of.at, of.rows, width, stride);
}

void exchanged_heads(Values& v) {
  const HeadExchange e{1 + v.random(4), 1 + v.random(3), v.rows, 1 + v.random(3), 1 + v.columns % 7};
  const int n = e.count();
  const Real *rows = v.numbers<Real>("rows", n), *heads = v.numbers<Real>("heads", n);
  Real *by_rank = v.unset<Real>("by rank", n), *heads_by_rank = v.unset<Real>("heads by rank", n);
  LAUNCH(rows_to_ranks, n, by_rank, rows, e, n);
  LAUNCH(ranks_to_heads, n, v.unset<Real>("heads of ranks", n), by_rank, e, n);
  LAUNCH(heads_to_ranks, n, heads_by_rank, heads, e, n);
  LAUNCH(ranks_to_rows, n, v.unset<Real>("rows of ranks", n), heads_by_rank, e, n);
}

// ---- chapter 09 ----------------------------------------------------------------------------------------------------

void choose_experts_of(Values& v) {
  const int tokens = v.rows, experts = v.columns, K = 1 + v.random(experts < 4 ? experts : 4);
  v.scalar("K", static_cast<float>(K));
  float *logits = v.numbers<float>("logits", tokens * experts), *weights = v.unset<float>("weights", tokens * K);
  LAUNCH(choose_experts, tokens * experts, logits, v.unset<std::int32_t>("chosen", tokens * K), weights, tokens,
         experts, K);
}

// From the choices to the rows of the experts, and back.
void expert_rows_of(Values& v) {
  const int sequences = 1 + v.random(3), positions = (v.rows - 1) / sequences + 1, tokens = sequences * positions;
  const int experts = 1 + v.columns % 40, width = 1 + v.columns % 70, K = 1 + v.random(experts < 3 ? experts : 3);
  const int choices = tokens * K, places_of_expert = 1 + v.random(positions), numbers = experts * sequences + 1;
  v.scalar("K", static_cast<float>(K));
  v.scalar("width", static_cast<float>(width));
  const std::int32_t* chosen = v.integers("chosen", choices, experts);
  std::int32_t *places = v.unset<std::int32_t>("places", choices),
               *counts = v.unset<std::int32_t>("counts", sequences * experts);
  std::int32_t *starts = v.unset<std::int32_t>("starts", numbers), *row_of = v.unset<std::int32_t>("row_of", choices);
  const Real *x = v.numbers<Real>("x", tokens * width), *outputs = v.numbers<Real>("outputs", choices * width);
  const float* weights = v.numbers<float>("weights", choices);
  Real *rows = v.unset<Real>("rows", choices * width), *doutputs = v.unset<Real>("doutputs", choices * width);
  float* dweights = v.unset<float>("dweights", choices);
  LAUNCH(take_places, sequences * experts * kWarp, places, counts, chosen, sequences, positions, experts, K,
         places_of_expert);
  LAUNCH(first_rows, numbers * kWarp, starts, counts, sequences, experts, places_of_expert);
  LAUNCH(permute, choices * width, rows, row_of, x, places, chosen, starts, tokens, positions, K, width);
  LAUNCH(combine, tokens * width, v.unset<Real>("y", tokens * width), outputs, row_of, weights, tokens, K, width);
  LAUNCH(combine_backward, choices * width, doutputs, dweights, x, outputs, row_of, weights, tokens, K, width);
  LAUNCH(permute_backward, tokens * width, v.unset<Real>("dx", tokens * width), doutputs, row_of, tokens, K, width);
}

void choose_experts_backward_of(Values& v) {
  const int sequences = 1 + v.random(3), positions = (v.rows - 1) / sequences + 1, tokens = sequences * positions;
  const int experts = v.columns, K = 1 + v.random(experts < 4 ? experts : 4);
  v.scalar("K", static_cast<float>(K));
  v.scalar("positions", static_cast<float>(positions));
  const float factor = v.scalar("balance_factor", static_cast<float>(v.random(2)) / 4);
  const float *dweights = v.numbers<float>("dweights", tokens * K), *weights = v.numbers<float>("weights", tokens * K);
  const float* scores = v.positive<float>("scores", tokens * experts);
  const std::int32_t *chosen = v.integers("chosen", tokens * K, experts),
                     *counts = v.integers("counts", sequences * experts, positions * K + 1);
  LAUNCH(choose_experts_backward, tokens * experts, v.unset<Real>("dlogits", tokens * experts), dweights, scores,
         weights, chosen, counts, tokens, positions, experts, K, factor);
}

void balance_of_experts_of(Values& v) {
  const int sequences = 1 + v.random(3), positions = (v.rows - 1) / sequences + 1, experts = v.columns, K = 2;
  v.scalar("positions", static_cast<float>(positions));
  const float* scores = v.positive<float>("scores", sequences * positions * experts);
  const std::int32_t* counts = v.integers("counts", sequences * experts, positions * K + 1);
  std::int32_t* loads = v.integers("loads", experts, 1000);
  LAUNCH(balance_of_experts, sequences * experts * kWarp, v.unset<float>("balance", sequences * experts), scores,
         counts, sequences, positions, experts, K);
  LAUNCH(add_loads, experts, loads, counts, sequences, experts);
}

// ---- chapter 01: others ---------------------------------------------------------------------------------------------

void add_bias_of(Values& v) {
  const int n = v.rows * v.columns;
  Real* y = v.numbers<Real>("y", n);
  const Real* bias = v.numbers<Real>("bias", v.columns);
  LAUNCH(add_bias, n, y, bias, v.rows, v.columns);
}

void updates_of(Values& v) {
  const int n = v.rows * v.columns;
  float *value = v.numbers<float>("value", n), *other = v.numbers<float>("other value", n);
  const Real* grad = v.numbers<Real>("grad", n);
  float *first = v.numbers<float>("first", n), *second = v.positive<float>("second", n);
  LAUNCH(sgd, n, value, grad, 0.1f, 0.01f, n);
  LAUNCH(adamw, n, other, grad, first, second, AdamWStep{0.999f, 0.1f, 0.001f, 0.999f, 0.01f, 0.3f, 1e-8f}, n);
}

void elementwise_of(Values& v) {
  const int n = v.rows * v.columns;
  Real *x = v.numbers<Real>("x", n), *y = v.unset<Real>("y", n), *z = v.numbers<Real>("z", n);
  Real *a = v.unset<Real>("a", n), *b = v.unset<Real>("b", n);
  float *floats = v.unset<float>("floats", n), *difference = v.unset<float>("difference", n);
  LAUNCH(fill, n, y, 0.3f, n);
  LAUNCH(add_scaled, n, y, x, 0.7f, n);
  LAUNCH(to_floats, n, floats, x, n);
  LAUNCH(subtract, n, difference, y, floats, n);
  LAUNCH(add_floats, n, floats, difference, 0.7f, n);
  LAUNCH(to_reals, n, y, floats, n);
  LAUNCH(relu_forward, n, a, z, n);
  LAUNCH(gelu_forward, n, b, z, n);
  LAUNCH(relu_backward, n, a, a, z, n);
  LAUNCH(gelu_backward, n, b, b, z, n);
}

// A map of at most about rows·columns values, and windows on it.
struct Convolved {
  explicit Convolved(Values& v, bool padded) {
    samples = 1 + v.random(3);
    in.channels = 1 + (v.columns - 1) % 70;
    const int most = v.rows * v.columns / (samples * in.channels);
    in.height = 1 + v.random(most < 20 ? most + 1 : 20);
    in.width = 1 + v.random(most / in.height < 20 ? most / in.height + 1 : 20);
    in.channels_last = !padded || v.random(2) == 0;
    const int side = in.height < in.width ? in.height : in.width;
    windows.size = 1 + v.random(side < 5 ? side : 5);
    windows.stride = 1 + v.random(windows.size);
    windows.padding = padded ? v.random(windows.size) : 0;
    out = {in.channels, windows.count(in.height), windows.count(in.width)};
  }
  int samples;
  Map in{};
  Windows windows{};
  Map out{};
};

void windows_of_maps(Values& v) {
  const Convolved c(v, true);
  const int n = c.samples * c.out.pixels() * c.in.channels * c.windows.size * c.windows.size;
  const Real* maps = v.numbers<Real>("maps", c.samples * c.in.size());
  Real *rows = v.unset<Real>("rows", n), *dx = v.unset<Real>("dx", c.samples * c.in.size());
  LAUNCH(gather_windows, n, rows, maps, c.in, c.out, c.windows, c.samples);
  LAUNCH(add_windows, n, dx, rows, c.in, c.out, c.windows, c.samples);
}

void pools_of_maps(Values& v) {
  const Convolved c(v, false);
  const int n = c.samples * c.in.size(), m = c.samples * c.out.size(), cells = 1 + v.random(4);
  const Real *x = v.numbers<Real>("x", n), *dy = v.numbers<Real>("dy", m);
  Real *y = v.unset<Real>("y", m), *dx = v.unset<Real>("dx", n);
  std::int32_t* from = v.unset<std::int32_t>("from", m);
  LAUNCH(max_pool_forward, m * c.windows.size * c.windows.size, y, from, x, c.in, c.out, c.windows, c.samples);
  LAUNCH(max_pool_backward, n, dx, dy, from, c.in, c.out, c.windows, c.samples);
  const int averages = c.samples * c.in.channels * cells * cells;
  const Real* gradient = v.numbers<Real>("gradient of averages", averages);
  Real *mean = v.unset<Real>("averages", averages), *below = v.unset<Real>("gradient below", n);
  LAUNCH(average_pool_forward, averages, mean, x, c.in, cells, c.samples);
  LAUNCH(average_pool_backward, n, below, gradient, c.in, cells, c.samples);
}

// ---- model/ ---------------------------------------------------------------------------------------------------------

void chunk_squares_of(Values& v) {
  const int n = v.rows * v.columns - v.random(v.columns), length = v.columns;
  Real *values = v.numbers<Real>("values", n), *clipped = v.numbers<Real>("clipped", n);
  float* sums = v.unset<float>("sums", (n + length - 1) / length);
  float* norm = v.positive<float>("norm", 1);
  LAUNCH(chunk_squares, n, sums, values, n, length);
  LAUNCH(square_root, 1, norm);
  LAUNCH(clip_to, n, clipped, norm, 0.8f, n);
}

void add_sum_of(Values& v) {
  const int n = v.rows * v.columns;
  float* total = v.numbers<float>("total", 1);
  const float* values = v.numbers<float>("values", n);
  LAUNCH(add_sum, 1, total, values, v.scalar("factor", 0.3f), n);
}

// ---- chapter 05 -----------------------------------------------------------------------------------------------------

void vocabulary_of(Values& v) {
  const int rows = v.rows, width = v.columns, all = 2 + v.random(50), context = 1 + v.random(40);
  const int first = v.random(all);
  const VocabRange vocab{first, 1 + v.random(all - first)};
  const std::int32_t* tokens = v.integers("tokens", rows, all);
  const Real *words = v.numbers<Real>("words", vocab.count * width),
             *positions = v.numbers<Real>("positions", context * width);
  Real* share = v.unset<Real>("share", rows * width);
  LAUNCH(embed_vocab_range, rows * width, share, tokens, words, vocab, rows, width);
  LAUNCH(add_positions, rows * width, share, positions, v.random(context), context, rows, width);
  const int stride = width + v.random(9), begin = v.random(stride - width + 1);
  Real* whole = v.numbers<Real>("whole", rows * stride);
  LAUNCH(place_runs, rows * width, whole, share, begin, width, stride, rows * width);
}

void sharded_cross_entropy_of(Values& v) {
  const int rows = v.rows, words = v.columns, n = rows * words;
  const VocabRange vocab{v.random(7), words};
  const Real* logits = v.numbers<Real>("logits", n);
  const std::int32_t* targets = v.integers("targets", rows, vocab.first + words + 3);
  float *found = v.unset<float>("maxima found", rows), *losses = v.unset<float>("losses", rows);
  const float* maxima = v.positive<float>("maxima", rows);
  float* log_sums = v.positive<float>("log_sums", rows);
  Real* gradient = v.unset<Real>("gradient", n);
  LAUNCH(row_maxima, n, found, logits, rows, words);
  LAUNCH(local_target_logits, rows, losses, logits, targets, vocab, rows);
  LAUNCH(sharded_losses, rows, losses, log_sums, maxima, rows);
  LAUNCH(sharded_cross_entropy_backward, n, gradient, logits, log_sums, targets, vocab, rows, rows + 1);
}

void row_exponentials_of(Values& v) {
  const int rows = v.rows, words = v.columns, n = rows * words;
  const Real* logits = v.numbers<Real>("logits", n);
  const float* maxima = v.positive<float>("maxima", rows);
  float* sums = v.unset<float>("sums", rows);
  LAUNCH(row_exponentials, n, sums, logits, maxima, rows, words);
}

// ---- chapter 10 -----------------------------------------------------------------------------------------------------

template <typename T>
T* structs(Values& v, const char* name, int count) {
  return reinterpret_cast<T*>(v.unset<std::int32_t>(name, count * (sizeof(T) / sizeof(std::int32_t))));
}

void largest_values_of(Values& v) {
  const int all = v.rows * v.columns, n = all > 30 && v.random(10) > 0 ? 30 : all, k = 1 + v.random(n);
  const Pieces pieces(n);
  const float* values = v.numbers<float>("values", n);
  std::int32_t *digits = v.unset<std::int32_t>("digits", 256 * pieces.count),
               *places = v.unset<std::int32_t>("places", k);
  auto* threshold = structs<Threshold>(v, "threshold", 1);
  auto* counts = structs<Counts>(v, "counts", pieces.count);
  auto* offsets = structs<Offsets>(v, "offsets", pieces.count);
  Real* picked = v.unset<Real>("picked", k);
  LAUNCH(start_threshold, 1, threshold, k);
  for (int shift = 24; shift >= 0; shift -= 8) {
    LAUNCH(count_digits, pieces.count, digits, values, threshold, shift, pieces);
    LAUNCH(add_counts, 256, digits, pieces.count);
    LAUNCH(choose_digit, 1, threshold, digits, shift);
  }
  LAUNCH(count_largest, pieces.count, counts, values, threshold, pieces);
  LAUNCH(place_largest, 1, offsets, counts, threshold, pieces.count);
  LAUNCH(take_largest, pieces.count, picked, places, values, threshold, offsets, pieces);
}

void random_places_of(Values& v) {
  const int n = v.rows * v.columns, k = 1 + v.random(n);
  float* values = v.numbers<float>("values", n);
  std::int32_t* places = v.unset<std::int32_t>("places", k);
  Real* picked = v.unset<Real>("picked", k);
  LAUNCH(draw_places, k, places, std::uint64_t{1} << 50 | v.random(1 << 30), k, n);
  LAUNCH(take_at, k, picked, values, places, v.random(2) == 0, k, n);
  LAUNCH(add_at, k, values, picked, places, 0.4f, k);
  LAUNCH(take_away_at, k, values, picked, places, k);
}

void codes_of(Values& v) {
  const int n = v.rows * v.columns;
  const Pieces pieces(n);
  const float *values = v.numbers<float>("values", n), *scale = v.positive<float>("scale", 1);
  float *decoded = v.numbers<float>("decoded", n), *of_piece = v.unset<float>("of_piece", 2 * pieces.count);
  for (Code code : {Code::int8, Code::sign}) {
    std::uint8_t* bytes = v.unset<std::uint8_t>(code == Code::sign ? "signs" : "bytes", code_bytes(code, n));
    LAUNCH(largest_or_sum, pieces.count, of_piece + (code == Code::sign ? pieces.count : 0), values, code, pieces);
    LAUNCH(encode, code_bytes(code, n), bytes, values, scale, code, n);
    LAUNCH(add_decoded, n, decoded, bytes, scale, 0.6f, code, n);
  }
}

void make_scale_of(Values& v) {
  const int pieces = v.columns;
  const float* of_piece = v.positive<float>("of_piece", pieces);
  float *int8 = v.unset<float>("scale of int8", 1), *sign = v.unset<float>("scale of sign", 1);
  const int n = v.rows * pieces;
  v.scalar("n", static_cast<float>(n));
  LAUNCH(make_scale, 1, int8, of_piece, Code::int8, pieces, n);
  LAUNCH(make_scale, 1, sign, of_piece, Code::sign, pieces, n);
}

constexpr Case kCases[] = {
    {"layer_norm_forward", layer_norm_forward_of},
    {"layer_norm_backward", layer_norm_backward_of},
    {"layer_norm_parameter_gradients", layer_norm_parameter_gradients_of},
    {"causal_softmax", causal_softmax_of},
    {"causal_softmax_backward", causal_softmax_backward_of},
    {"softmax_of_block", softmax_of_block_of},
    {"complete_softmax", complete_softmax_of},
    {"dots_of_rows", dots_of_rows_of},
    {"merge_part", merge_part_of},
    {"dots_of_run", dots_of_run_of},
    {"rows_of_a_run", rows_of_a_run},
    {"exchanged_heads", exchanged_heads},
    {"choose_experts", choose_experts_of},
    {"expert_rows", expert_rows_of},
    {"choose_experts_backward", choose_experts_backward_of},
    {"balance_of_experts", balance_of_experts_of},
    {"gradient_of_block", gradient_of_block_of},
    {"copy_rows", copy_rows_of},
    {"cross_entropy_forward", cross_entropy_forward_of},
    {"cross_entropy_backward", cross_entropy_backward_of},
    {"mark_correct", mark_correct_of},
    {"embedding_forward", embedding_forward_of},
    {"embedding_backward", embedding_backward_of},
    {"drop", drop_of},
    {"add_bias", add_bias_of},
    {"updates", updates_of},
    {"elementwise", elementwise_of},
    {"windows", windows_of_maps},
    {"pools", pools_of_maps},
    {"chunk_squares", chunk_squares_of},
    {"add_sum", add_sum_of},
    {"vocabulary", vocabulary_of},
    {"sharded_cross_entropy", sharded_cross_entropy_of},
    {"row_exponentials", row_exponentials_of},
    {"largest_values", largest_values_of},
    {"random_places", random_places_of},
    {"codes", codes_of},
    {"make_scale", make_scale_of},
};

}  // namespace

kernel_test::Cases cases() { return {kCases, std::size(kCases)}; }

}  // namespace workshop
