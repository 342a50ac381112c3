// SPDX-License-Identifier: Apache-2.0
// Three ways to send less than a whole bucket of gradients: its largest values, values at random places, or all values
// in a few bits each. Everything runs on the device, on the given stream, and all ranks get the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/random.h"
#include "common/device/device.h"
#include "common/record/record.h"
#include "model/rows.h"

namespace workshop {

// Cuts an array of n values into at most 1,024 pieces. Each iteration of a kernel works on one piece. The last piece
// may be shorter.
struct Pieces {
  explicit Pieces(int n) : n(n), length(n / 1024 + 1), count((n + length - 1) / length) {}
  __host__ __device__ int first(int piece) const { return piece * length; }
  __host__ __device__ int last(int piece) const { return n - first(piece) < length ? n : first(piece) + length; }
  int n, length, count;
};

// ---- the k largest values ------------------------------------------------------------------------------------------

// Returns the bits of |x| as an integer. A larger magnitude has a larger integer.
__host__ __device__ inline std::uint32_t magnitude(float x) {
  std::uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

// The magnitude of the k-th largest value, as far as it is known: its upper digits (bytes). Of the values that have
// these digits, `rest` are among the k largest.
struct Threshold {
  std::uint32_t bits;
  int rest;
};

// Number of values of a piece above the threshold and equal to it.
struct Counts {
  int above, equal;
};

// Where the values picked from a piece begin in the array of all picked values, and how many of its values equal to the
// threshold are picked.
struct Offsets {
  int begin, equal;
};

static __global__ void start_threshold(Threshold* threshold, int k) {
  for ([[maybe_unused]] int once : grid_stride(1)) *threshold = {0, k};
}

// Counts, per piece, how often each value of the digit at `shift` occurs: counts[piece, 256]. Considers only magnitudes
// whose upper digits are those of the threshold.
static __global__ void count_digits(int* counts, const float* values, const Threshold* threshold, int shift,
                                    Pieces pieces) {
  for (int piece : grid_stride(pieces.count)) {
    int* count = counts + piece * 256;
    for (int digit = 0; digit < 256; ++digit) count[digit] = 0;
    for (int i = pieces.first(piece); i < pieces.last(piece); ++i) {
      const std::uint32_t bits = magnitude(values[i]);
      if ((bits >> shift) >> 8 == (threshold->bits >> shift) >> 8) ++count[(bits >> shift) & 255];
    }
  }
}

// Adds the counts of all pieces to those of the first: counts[256].
static __global__ void add_counts(int* counts, int pieces) {
  for (int digit : grid_stride(256)) {
    for (int piece = 1; piece < pieces; ++piece) counts[digit] += counts[piece * 256 + digit];
  }
}

// Sets the threshold's next digit: from 255 downward, the first one at which there are enough values.
static __global__ void choose_digit(Threshold* threshold, const int* counts, int shift) {
  for ([[maybe_unused]] int once : grid_stride(1)) {
    int digit = 255;
    for (; digit > 0 && counts[digit] < threshold->rest; --digit) threshold->rest -= counts[digit];
    threshold->bits |= static_cast<std::uint32_t>(digit) << shift;
  }
}

static __global__ void count_largest(Counts* counts, const float* values, const Threshold* threshold, Pieces pieces) {
  for (int piece : grid_stride(pieces.count)) {
    int above = 0, equal = 0;
    for (int i = pieces.first(piece); i < pieces.last(piece); ++i) {
      above += magnitude(values[i]) > threshold->bits;
      equal += magnitude(values[i]) == threshold->bits;
    }
    counts[piece] = {above, equal};
  }
}

// Computes the pieces' offsets. Of the values equal to the threshold, the first ones are picked.
static __global__ void place_largest(Offsets* offsets, const Counts* counts, const Threshold* threshold, int pieces) {
  for ([[maybe_unused]] int once : grid_stride(1)) {
    int begin = 0, rest = threshold->rest;
    for (int piece = 0; piece < pieces; ++piece) {
      const int equal = counts[piece].equal < rest ? counts[piece].equal : rest;
      offsets[piece] = {begin, equal};
      begin += counts[piece].above + equal;
      rest -= equal;
    }
  }
}

static __global__ void take_largest(Reals picked, int* places, const float* values, const Threshold* threshold,
                                    const Offsets* offsets, Pieces pieces) {
  for (int piece : grid_stride(pieces.count)) {
    int at = offsets[piece].begin, equal = offsets[piece].equal;
    for (int i = pieces.first(piece); i < pieces.last(piece); ++i) {
      const std::uint32_t bits = magnitude(values[i]);
      if (bits < threshold->bits || (bits == threshold->bits && equal-- <= 0)) continue;
      picked[at] = values[i];
      places[at++] = i;
    }
  }
}

// Finds the largest values of an array, digit by digit from the top, as a radix sort would.
class LargestValues {
 public:
  LargestValues() = default;
  explicit LargestValues(int most)  // for arrays of at most this many values
      : digits_(256 * Pieces(most).count, Memory::buckets),
        counts_(Pieces(most).count, Memory::buckets),
        offsets_(Pieces(most).count, Memory::buckets),
        threshold_(1, Memory::buckets) {}

  // Copies the k values of values[n] with the largest magnitudes to picked[k], in the order of their places[k].
  void pick(Real* picked, int* places, int k, const float* values, int n, cudaStream_t stream) const {
    const Pieces pieces(n);
    launch(start_threshold, 1, stream, threshold_.data(), k);
    for (int shift = 24; shift >= 0; shift -= 8) {
      launch(count_digits, pieces.count, stream, digits_.data(), values, threshold_.data(), shift, pieces);
      launch(add_counts, 256, stream, digits_.data(), pieces.count);
      launch(choose_digit, 1, stream, threshold_.data(), digits_.data(), shift);
    }
    launch(count_largest, pieces.count, stream, counts_.data(), values, threshold_.data(), pieces);
    launch(place_largest, 1, stream, offsets_.data(), counts_.data(), threshold_.data(), pieces.count);
    launch(take_largest, pieces.count, stream, picked, places, values, threshold_.data(), offsets_.data(), pieces);
  }

 private:
  DeviceBuffer<int> digits_;  // [pieces, 256]
  DeviceBuffer<Counts> counts_;
  DeviceBuffer<Offsets> offsets_;
  DeviceBuffer<Threshold> threshold_;
};

// ---- values at random places ---------------------------------------------------------------------------------------

// Returns where part j of k begins if [0, n) is cut into parts whose lengths differ by at most one.
__host__ __device__ inline int begin_of_part(int j, int k, int n) {
  return static_cast<int>(static_cast<std::int64_t>(n) * j / k);
}

// Draws one place in each of the k parts of [0, n), so that all are different. Within a part, each place is equally
// likely. All ranks that pass the same seed draw the same places.
static __global__ void draw_places(int* places, std::uint64_t seed, int k, int n) {
  for (int j : grid_stride(k)) {
    const int begin = begin_of_part(j, k, n), length = begin_of_part(j + 1, k, n) - begin;
    places[j] = begin + static_cast<int>((splitmix64(seed + j) >> 32) % static_cast<std::uint32_t>(length));
  }
}

// Picks the values at these places, one in each part. With `for_all`, multiplies each by the length of its part, so
// that the expected value of the result is the whole array.
static __global__ void take_at(Reals picked, const float* values, const int* places, bool for_all, int k, int n) {
  for (int j : grid_stride(k)) {
    const int length = begin_of_part(j + 1, k, n) - begin_of_part(j, k, n);
    picked[j] = values[places[j]] * static_cast<float>(for_all ? length : 1);
  }
}

static __global__ void add_at(float* values, ConstReals picked, const int* places, float factor, int k) {
  for (int j : grid_stride(k)) values[places[j]] += factor * picked[j];
}

// Subtracts the picked values at their places. Leaves zero there or, in mixed precision, the rounding errors.
static __global__ void take_away_at(float* values, ConstReals picked, const int* places, int k) {
  for (int j : grid_stride(k)) values[places[j]] -= picked[j];
}

// ---- all values in a few bits --------------------------------------------------------------------------------------

// How a value is sent: divided by the scale, in 8 bits, or only its sign.
enum class Code { int8, sign };

__host__ __device__ inline int code_bytes(Code code, int n) { return code == Code::int8 ? n : (n + 7) / 8; }

__device__ inline float decoded(Code code, const std::uint8_t* bytes, float scale, int i) {
  if (code == Code::sign) return (bytes[i / 8] >> (i % 8)) & 1 ? scale : -scale;
  return scale * static_cast<float>(static_cast<std::int8_t>(bytes[i]));
}

static __global__ void largest_or_sum(float* of_piece, const float* values, Code code, Pieces pieces) {
  for (int piece : grid_stride(pieces.count)) {
    float largest = 0, sum = 0;
    for (int i = pieces.first(piece); i < pieces.last(piece); ++i) {
      const float size = fabsf(values[i]);
      largest = size > largest ? size : largest;
      sum += size;
    }
    of_piece[piece] = code == Code::sign ? sum : largest;
  }
}

static __global__ void make_scale(float* scale, const float* of_piece, Code code, int pieces, int n) {
  for ([[maybe_unused]] int once : warp_stride(1)) {
    const float sum = sum_of(pieces, [=](int i) { return of_piece[i]; }), largest = max_of(pieces, of_piece);
    float result = 0;
    // TODO 10.11: Choose the scale of values[n] from `largest` and `sum`, the largest and the sum of the magnitudes.
    //   Code::int8 has the integers from -127 to 127: which value should become 127? Code::sign replaces each value by
    //   plus or minus the scale: the mean magnitude makes the sum of the squared errors smallest.
    result = code == Code::int8 ? largest / 127 : sum / static_cast<float>(n);
    // END TODO 10.11
    *scale = n > 0 ? result : 0;
  }
}

// Writes the code of values[n] to bytes[code_bytes(code, n)].
static __global__ void encode(std::uint8_t* bytes, const float* values, const float* scale, Code code, int n) {
  // WRITE 10.M: Write the code of values[n] to `bytes`, as decoded() above reads it.
  //   Code::int8: byte i is the integer nearest to values[i] / *scale, which is from -127 to 127. A scale of zero means
  //   that all values are zero. Code::sign: value i has bit i % 8 of byte i / 8, which is 1 if the value is at least 0;
  //   the bits after the last value are 0. Each iteration of the loop, for (int b : grid_stride(code_bytes(code, n))),
  //   writes byte b, and no other.
  for (int b : grid_stride(code_bytes(code, n))) {
    if (code == Code::int8) {
      bytes[b] = static_cast<std::uint8_t>(*scale > 0 ? static_cast<int>(rintf(values[b] / *scale)) : 0);
      continue;
    }
    std::uint8_t signs = 0;
    for (int i = 8 * b; i < 8 * b + 8 && i < n; ++i) signs |= static_cast<std::uint8_t>((values[i] >= 0) << (i % 8));
    bytes[b] = signs;
  }
  // END WRITE 10.M
}

// Decodes n values and adds factor times each to values[n].
static __global__ void add_decoded(float* values, const std::uint8_t* bytes, const float* scale, float factor,
                                   Code code, int n) {
  for (int i : grid_stride(n)) values[i] += factor * decoded(code, bytes, *scale, i);
}

}  // namespace workshop
