// SPDX-License-Identifier: Apache-2.0
// A convolution by hand: a linear layer that sees the image through windows. All windows are laid out as rows of a
// matrix (im2col; Chellapilla et al., 2006), and linear.h does the rest.
//
// Maps are channels last, [samples, height, width, channels]: the linear layer's output, with one row per window, is
// the next layer's map as it is. Weights are [channels out, channels in, k, k], as in nn.Conv2d, so a window's row has
// one channel after the other.
#pragma once

#include <algorithm>
#include <string>

#include "01_single_gpu/linear.h"

namespace workshop {

// The shape of a sample.
struct Map {
  int channels, height, width;
  bool channels_last = true;  // false: [channels, height, width], the layout of images

  __host__ __device__ int pixels() const { return height * width; }
  __host__ __device__ int size() const { return channels * pixels(); }
  // The index of a value in the sample.
  __host__ __device__ int at(int channel, int y, int x) const {
    const int pixel = y * width + x;
    return channels_last ? pixel * channels + channel : channel * pixels() + pixel;
  }
};

// A range of places, [first, last).
struct Places {
  int first, last;
};

// Windows of `size` by `size` pixels, one at every `stride`-th place of a map surrounded by `padding` pixels of zeros.
struct Windows {
  int size, stride, padding;

  // Returns the number of windows along a side of this length.
  __host__ __device__ int count(int length) const { return (length + 2 * padding - size) / stride + 1; }
  // Returns the first pixel of a window; negative if it lies in the padding.
  __host__ __device__ int begin(int window) const { return window * stride - padding; }
  // Returns which of the `count` windows contain this pixel.
  __host__ __device__ Places with(int pixel, int count) const {
    const int first = (pixel + padding - size + stride) / stride, last = (pixel + padding) / stride + 1;
    return {first > 0 ? first : 0, last < count ? last : count};
  }
};

// ---- kernels -------------------------------------------------------------------------------------------------------

// Computes rows[samples · windows, channels · k · k] from maps[samples, in.size()]. `out` has a pixel for each window.
// One channel of a window per iteration.
static __global__ void gather_windows(Reals rows, ConstReals maps, Map in, Map out, Windows w, int samples) {
  for (int i : grid_stride(samples * out.pixels() * in.channels)) {
    const int channel = i % in.channels, window = i / in.channels;
    const int sample = window / out.pixels(), place = window % out.pixels();
    const int top = w.begin(place / out.width), left = w.begin(place % out.width);
    const ConstReals map = maps + sample * in.size();
    const Reals row = rows + i * w.size * w.size;
    for (int down = 0; down < w.size; ++down) {
      for (int right = 0; right < w.size; ++right) {
        const int y = top + down, x = left + right;
        float value = 0;
        // TODO 01.20: Set `value` to that of the map at row y and column x.
        //   It is map[in.at(channel, y, x)] if that place is in the map. The rows are 0 to in.height - 1, the columns
        //   0 to in.width - 1; everything around them is zero.
        if (0 <= y && y < in.height && 0 <= x && x < in.width) value = map[in.at(channel, y, x)];
        // END TODO 01.20
        row[down * w.size + right] = value;
      }
    }
  }
}

// Computes the gradient dx of a map from the gradient drows of its windows: each value was copied to all windows that
// contain it. Each iteration adds up the gradient of one value, so no two threads write to the same place, and each sum
// always has the same order.
static __global__ void add_windows(Reals dx, ConstReals drows, Map in, Map out, Windows w, int samples) {
  for_each_element(samples * in.pixels(), in.channels, [=](int i, int channel) {
    const int pixel = i / in.channels, sample = pixel / in.pixels();
    const int y = pixel % in.pixels() / in.width, x = pixel % in.width;
    const Places rows = w.with(y, out.height), columns = w.with(x, out.width);
    float sum = 0;
    for (int row = rows.first; row < rows.last; ++row) {
      for (int column = columns.first; column < columns.last; ++column) {
        const int window = (sample * out.height + row) * out.width + column;
        const ConstReals gradient = drows + (window * in.channels + channel) * w.size * w.size;  // [k, k]
        // TODO 01.21: Add to `sum` the gradient of this value in this window.
        //   At which of the window's k · k places is the value? The window's first row is w.begin(row), its first
        //   column w.begin(column).
        sum += gradient[(y - w.begin(row)) * w.size + x - w.begin(column)];
        // END TODO 01.21
      }
    }
    dx[i] = sum;
  });
}

// ---- one layer -----------------------------------------------------------------------------------------------------

// A convolution from maps [samples, in.size()] to maps [samples, out.size()].
struct Convolution {
  Linear linear;  // from a window to the channels of a pixel
  Map in, out;
  Windows windows;

  int row() const { return in.channels * windows.size * windows.size; }  // floats per window
  int windows_size() const { return out.pixels() * row(); }              // floats of all windows of a sample
};

// Writes all windows of x to rows[samples, windows_size()].
inline void windows_of(const Convolution& c, const Real* x, Real* rows, int samples, cudaStream_t stream) {
  launch(gather_windows, samples * c.windows_size(), stream, rows, x, c.in, c.out, c.windows, samples);
  probe("01.20", {c.linear.name, ": windows"}, rows, {samples * c.out.pixels(), c.row()}, stream);
}

// Computes y from x. `rows` must have room for the windows, samples · windows_size() values.
inline void convolution_forward(const Blas& blas, const Convolution& c, const Real* x, Real* y, Real* rows,
                                int samples) {
  windows_of(c, x, rows, samples, blas.stream());
  linear_forward(blas, c.linear, rows, y, samples * c.out.pixels());
}

// Like linear_backward(). Gathers the windows again instead of keeping them, because they take several times the memory
// of the map. Then their gradient overwrites them.
inline void convolution_backward(const Blas& blas, const Convolution& c, const Real* x, const Real* dy, Real* dx,
                                 Real* rows, const Real* ones, int samples, float accumulate) {
  const int count = samples * c.out.pixels();
  windows_of(c, x, rows, samples, blas.stream());
  linear_backward_parameters(blas, c.linear, rows, dy, ones, count, accumulate);
  if (dx == nullptr) return;
  linear_backward_input(blas, c.linear, dy, rows, count);
  launch(add_windows, samples * c.windows_size(), blas.stream(), dx, rows, c.in, c.out, c.windows, samples);
  probe("01.21", {c.linear.name, ": gradient of the map"}, dx, {samples * c.in.pixels(), c.in.channels}, blas.stream());
}

}  // namespace workshop
