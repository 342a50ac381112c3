// SPDX-License-Identifier: Apache-2.0
// Attention from a rank's own positions to those of one rank at a time. Each such part has its own softmax: a context,
// and the logarithm of its sum of e^score. Parts are merged by these logarithms, as chapter 01 takes blocks of keys
// into one softmax: the result is that of all keys at once. ring_attention.h and gather_kv.h bring the keys and values.
//
// A rank has n = T/c of the T positions of each sample, for c ranks. E: features of this rank's heads. Its positions
// are one run of consecutive ones, or two (sequence.h). A run of queries sees a run of keys fully or not at all. But if
// both are the same positions, each query sees its own and the earlier ones.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "01_single_gpu/blockwise_attention.h"
#include "08_context_parallel/sequence.h"
#include "common/device/device.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Copies the keys and values out of qkv[rows, 3·features] to kv[rows, 2·features].
static __global__ void pack_keys_and_values(Reals kv, ConstReals qkv, int rows, int features) {
  for_each_element(rows, 2 * features,
                   [=](int i, int column) { kv[i] = qkv[i / (2 * features) * 3 * features + features + column]; });
}

// Merges a part of the attention of one head, of some queries, into what earlier parts have given. The part has the
// sums of p·v, [rows, width], and each row's sum of p = e^(score - largest). `context` and `log_sums` begin at the
// head: row i has its context at context + at.row_of_whole(i)·features, and its log_sum at log_sums + i / m · heads · m
// + i mod m, where m is at.count. `first`: there is no earlier part. A warp shares a row.
static __global__ void merge_part(float* context, float* log_sums, const float* sums_of_values, const float* largest,
                                  const float* sums, bool first, Positions at, int heads, int rows, int width,
                                  int features) {
  for (int row : warp_stride(rows)) {
    float* to = context + static_cast<std::ptrdiff_t>(at.row_of_whole(row)) * features;
    float* log_sum = log_sums + row / at.count * heads * at.count + row % at.count;
    const float* values = sums_of_values + static_cast<std::ptrdiff_t>(row) * width;
    const float before = first ? -INFINITY : *log_sum, part = largest[row] + logf(sums[row]);
    float now = 0, keep = 0, add = 0;
    // TODO 08.4: Compute `now`, the log_sum of both, and the factors `keep` and `add` of the two contexts.
    //   `before` is the logarithm of the sum of e^score over all earlier keys, -INFINITY if there are none; `part` is
    //   that of this part. The new context is keep · (context so far) + add · (this part's context). Both contexts are
    //   means, each over its own keys. No exponential may overflow, however large the logarithms are.
    todo("08.4");
    // END TODO 08.4
    sync_lanes();  // all lanes have read *log_sum
    *log_sum = now;
    for (int j : lanes(width)) to[j] = (first ? 0.0f : keep * to[j]) + add * (values[j] / sums[row]);
  }
}

// For each row of a run, the sum of dcontext·context over a head's width: dots[rows]. A warp shares a row.
static __global__ void dots_of_run(float* dots, ConstReals dcontext, ConstReals context, Positions at, int rows,
                                   int width, int features) {
  for (int row : warp_stride(rows)) {
    const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(at.row_of_whole(row)) * features;
    dots[row] = sum_of(width, [=](int j) { return dcontext[begin + j] * context[begin + j]; });
  }
}

// Adds from[rows, width] to the rows of a run in sums, whose rows are `stride` values apart.
template <typename From>
static __global__ void add_to_run(float* sums, From from, Positions at, int rows, int width, int stride) {
  for_each_element(rows, width, [=](int i, int column) {
    sums[static_cast<std::ptrdiff_t>(at.row_of_whole(i / width)) * stride + column] += from[i];
  });
}

// ---- parts ---------------------------------------------------------------------------------------------------------

// Computes the attention of this rank's queries part by part, in the compute stream.
class PartialAttention {
 public:
  // `heads` has n positions. `attention_block`: keys whose scores exist at a time; 0: as many as a run has.
  PartialAttention(const Heads& heads, const SequenceCut& cut, int rank, int attention_block)
      : all_(heads), run_(heads), cut_(cut), rank_(rank) {
    run_.positions = cut.of(rank).run;
    run_.block = attention_block > 0 ? std::min(attention_block, run_.positions) : run_.positions;
  }

  int kept() const { return reals_spanning(all_.count * all_.positions); }  // Reals per sample: the log_sums
  void allocate(int max_samples) {
    if (sums_.size() > 0) return;  // all blocks share this
    const int n = all_.positions, E = all_.features();
    room_ = DeviceBuffer<Real>(max_samples * BlockwiseRoom::size(run_), Memory::activations);
    sums_ = DeviceBuffer<float>(max_samples * n * E, Memory::activations);
    dots_ = DeviceBuffer<float>(max_samples * n * all_.count, Memory::activations);
    part_ = DeviceBuffer<Real>(2 * max_samples * run_.positions * all_.width, Memory::activations);
  }

  // Copies this rank's keys and values to kv[samples·n, 2E].
  void pack(Real* kv, const AttentionValues& values, int samples, cudaStream_t stream) const {
    const int rows = samples * all_.positions, E = all_.features();
    launch(pack_keys_and_values, rows * 2 * E, stream, kv, values.qkv, rows, E);
  }

  // Run `query` of this rank's queries and run `key` of a rank's keys: the query in row i of its run sees the keys in
  // rows 0 to i + ahead of their run.
  struct Pair {
    int query, key, ahead;
  };

  // Returns the pairs in which at least one query sees a key of rank `source`.
  std::vector<Pair> pairs_with(int source) const {
    const std::vector<int> mine = cut_.runs(rank_), theirs = cut_.runs(source);
    std::vector<Pair> pairs;
    for (int a = 0; a < static_cast<int>(mine.size()); ++a) {
      for (int b = 0; b < static_cast<int>(theirs.size()); ++b) {
        int ahead = 0;
        bool skip = false;
        // TODO 08.2: Set `ahead` and `skip`.
        //   The queries begin at position mine[a], the keys at theirs[b]; both runs are equally long, and they are the
        //   same positions or have none in common. A position sees itself and those before it: the query in row i of
        //   its run sees the keys in rows 0 to i + ahead of their run. `ahead` may be larger than the run: then the
        //   query sees all of its keys. `skip`: no query of the run sees any of these keys, so there is nothing to
        //   compute.
        todo("08.2");
        // END TODO 08.2
        if (!skip) pairs.push_back({a, b, ahead});
      }
    }
    probe_pairs(pairs);
    return pairs;
  }

  // Begins the forward pass of a batch.
  void begin() { started_ = {}; }

  // Merges what this rank's queries see among kv, the keys and values of rank `source`, into the context.
  void attend(const Blas& blas, const AttentionValues& values, const Real* kv, int source, int samples,
              const Dropout& dropout) {
    const cudaStream_t stream = blas.stream();
    const int rows = samples * run_.positions, d = all_.width, E = all_.features();
    probe("08.B", "given to parts_.attend: rank of the keys", std::array{source});
    probe("08.B", "given to parts_.attend: keys and values", kv, {samples * all_.positions, 2 * E}, stream);
    BlockwiseRoom in(run_, room_.data(), samples);
    for (const Pair& pair : pairs_with(source)) {
      const int a = pair.query, b = pair.key;
      in.ahead = pair.ahead;
      for (int h = 0; h < all_.count; ++h) {
        sum_over_blocks(blas, run_, in, head(values, kv, a, b, h), samples, 0, run_.positions,
                        mask(dropout, source, a, b, h));
        launch(merge_part, rows * d, stream, sums_.data() + h * d, log_sums(values, samples, a) + h * run_.positions,
               in.accumulated.data, in.largest, in.sums, !started_[a], run(a), all_.count, rows, d, E);
      }
      started_[a] = true;
    }
    probe("08.4", "logarithms of the sums so far", values.log_sums(), {samples, all_.count, all_.positions}, stream);
    probe("08.4", "context so far", sums_.data(), {samples * all_.positions, E}, stream);
  }

  // Writes the context of all parts to values.context.
  void finish(const AttentionValues& values, int samples, cudaStream_t stream) const {
    const int rows = samples * all_.positions, E = all_.features();
    launch(copy_rows, rows * E, stream, values.context, sums_.data(), rows, E, E);
  }

  // Begins the backward pass of a batch, with the gradient of the context.
  void begin_backward(const AttentionValues& values, const AttentionValues& gradients, int samples,
                      cudaStream_t stream) {
    const int rows = samples * run_.positions, d = all_.width, E = all_.features();
    for (int a = 0; a < static_cast<int>(cut_.runs(rank_).size()); ++a) {
      for (int h = 0; h < all_.count; ++h) {
        launch(dots_of_run, rows * d, stream, dots(samples, a, h), gradients.context + h * d, values.context + h * d,
               run(a), rows, d, E);
      }
    }
    CUDA_CHECK(cudaMemsetAsync(sums_.data(), 0, samples * all_.positions * E * sizeof(float), stream));
  }

  // Adds what this rank's queries contribute to the gradients of kv, the keys and values of rank `source`, to
  // dkv[samples·n, 2E]. Also adds up the gradients of the queries, for finish_backward().
  void add_gradients(const Blas& blas, const AttentionValues& values, const AttentionValues& gradients, const Real* kv,
                     int source, float* dkv, int samples, const Dropout& dropout) {
    const cudaStream_t stream = blas.stream();
    const int rows = samples * run_.positions, d = all_.width, E = all_.features();
    probe("08.B", "given to parts_.add_gradients: rank of the keys", std::array{source});
    probe("08.B", "given to parts_.add_gradients: keys and values", kv, {samples * all_.positions, 2 * E}, stream);
    BlockwiseRoom in(run_, room_.data(), samples);
    Head part;  // the gradients of keys and values of one head and run
    part.k = {part_.data(), d, static_cast<long long>(run_.positions) * d};
    part.v = {part_.data() + rows * d, d, static_cast<long long>(run_.positions) * d};
    for (const Pair& pair : pairs_with(source)) {
      const int a = pair.query, b = pair.key;
      in.ahead = pair.ahead;
      for (int h = 0; h < all_.count; ++h) {
        in.sums = dots(samples, a, h);
        part.context = of_run(gradients.context + h * d, a, E);
        gradients_of_blocks(blas, run_, in, head(values, kv, a, b, h), part,
                            log_sums(values, samples, a) + h * run_.positions, samples, mask(dropout, source, a, b, h));
        const auto add = [&](float* to, ConstReals from) {
          launch(add_to_run<ConstReals>, rows * d, stream, to + h * d, from, run(b), rows, d, 2 * E);
        };
        add(dkv, part.k.data);
        add(dkv + E, part.v.data);
        launch(add_to_run<const float*>, rows * d, stream, sums_.data() + h * d, in.accumulated.data, run(a), rows, d,
               E);
      }
    }
  }

  // Writes the gradients of this rank's queries, and those of its keys and values, dkv, to gradients.qkv.
  void finish_backward(const AttentionValues& gradients, const float* dkv, int samples, cudaStream_t stream) const {
    const int rows = samples * all_.positions, E = all_.features();
    launch(copy_rows, rows * E, stream, gradients.qkv, sums_.data(), rows, E, 3 * E);
    launch(copy_rows, rows * 2 * E, stream, gradients.qkv + E, dkv, rows, 2 * E, 3 * E);
  }

 private:
  void probe_pairs(const std::vector<Pair>& pairs) const {
    if (!probing()) return;
    std::vector<int> numbers;
    for (const auto& [query, key, ahead] : pairs)  // a larger `ahead` means the same: all keys of a run
      numbers.insert(numbers.end(), {query, key, std::min(ahead, run_.positions - 1)});
    probe("08.2", "run of queries, run of keys, keys ahead (at most a run's) of each pair", numbers);
  }
  // The rows of run `a` among those of a sample.
  Positions run(int a) const { return {all_.positions, run_.positions, a * run_.positions}; }
  Matrices of_run(Real* rows, int a, int stride) const {
    return Matrices{rows, stride, static_cast<long long>(all_.positions) * stride}.from_row(a * run_.positions);
  }
  // Head h of this rank's queries in run `a`, and of the keys and values in run b.
  Head head(const AttentionValues& values, const Real* kv, int a, int b, int h) const {
    const int d = all_.width, E = all_.features();
    Real* keys = const_cast<Real*>(kv);  // only read, but Matrices are not const
    Head head;
    head.q = of_run(values.qkv + h * d, a, 3 * E);
    head.k = of_run(keys + h * d, b, 2 * E);
    head.v = of_run(keys + E + h * d, b, 2 * E);
    return head;
  }
  // [samples, H, run] for each run.
  float* log_sums(const AttentionValues& values, int samples, int a) const {
    return values.log_sums() + static_cast<std::ptrdiff_t>(a) * samples * all_.count * run_.positions;
  }
  float* dots(int samples, int a, int h) const {
    return dots_.data() + static_cast<std::ptrdiff_t>(a * all_.count + h) * samples * run_.positions;
  }

  // Returns what dropout does to the probabilities of head h, of run `a` of the queries and run b of the keys of
  // `source`: the same as if no sequence were cut.
  BlockDropout mask(const Dropout& dropout, int source, int a, int b, int h) const {
    if (!dropout.active()) return {};
    const std::int64_t T = cut_.whole, of_head = T * T;
    const int query = cut_.runs(rank_)[a], key = cut_.runs(source)[b];  // their first positions
    std::int64_t first = dropout.first() + h * of_head;  // the place in a sample of the head's first probability
    // TODO 08.3: Add to `first`, so that it is the place of the probability of these runs' first query and first key.
    //   A head has a probability for each pair of positions of the whole sequence, [T, T], with a row for each query;
    //   `first` is the place of its first one. The runs begin at the positions `query` and `key`.
    todo("08.3");
    // END TODO 08.3
    probe("08.3", "place of the first probability of two runs", std::array{static_cast<int>(first)});
    return {true, dropout.mask(all_.count * of_head), first, cut_.whole};
  }

  Heads all_, run_;  // of a rank's n positions, and of a run
  SequenceCut cut_;
  int rank_;
  std::array<bool, 2> started_{};  // whether a run of queries has a context already
  DeviceBuffer<Real> room_, part_;
  DeviceBuffer<float> sums_, dots_;  // sums_[samples·n, E]: the context or the gradient of the queries
};

}  // namespace workshop
