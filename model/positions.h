// SPDX-License-Identifier: Apache-2.0
// Which positions of a sequence the rows of a rank's matrices are: all of them or, in chapter 08, some.
#pragma once

#include <cuda_runtime.h>

namespace workshop {

// Of a sequence of `whole` positions, a sample has `count` rows here. The first `run` rows are the positions from
// `first` on; the others are the positions from `second` on.
struct Positions {
  Positions(int whole) : Positions(whole, whole, 0) {}  // all
  Positions(int whole, int count, int first) : Positions(whole, count, first, count, 0) {}
  Positions(int whole, int count, int first, int run, int second)
      : whole(whole), count(count), first(first), run(run), second(second) {}

  int whole, count, first, run, second;

  // Returns the position of a sample's row.
  __host__ __device__ int operator[](int row) const { return row < run ? first + row : second + row - run; }
  // `row` counts the rows of all samples here, [samples·count]. Returns its index among all positions, [samples·whole].
  __host__ __device__ int row_of_whole(int row) const { return row / count * whole + (*this)[row % count]; }
};

}  // namespace workshop
