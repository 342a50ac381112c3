// SPDX-License-Identifier: Apache-2.0
// Pooling by hand: the largest value of each window (nn.MaxPool2d), and averages over a grid (nn.AdaptiveAvgPool2d).
// Maps are channels last (convolution.h).
#pragma once

#include <string>

#include "01_single_gpu/convolution.h"

namespace workshop {

// ---- kernels -------------------------------------------------------------------------------------------------------

// Computes y[samples, out.size()] from x[samples, in.size()], and in `from` the pixel of the map that each value came
// from. Windows must have no padding.
static __global__ void max_pool_forward(Reals y, int* from, ConstReals x, Map in, Map out, Windows w, int samples) {
  for_each_element(samples * out.pixels(), out.channels, [=](int i, int channel) {
    const int place = i / out.channels, sample = place / out.pixels();
    const int top = w.begin(place % out.pixels() / out.width), left = w.begin(place % out.width);
    const ConstReals map = x + sample * in.size();
    int largest = top * in.width + left;  // the pixel
    for (int row = top; row < top + w.size; ++row) {
      for (int column = left; column < left + w.size; ++column) {
        const int pixel = row * in.width + column;
        // TODO 01.22: If this pixel's value is the largest so far, set `largest` to the pixel.
        //   map[pixel * in.channels + channel] is its value. Among equal values PyTorch takes the first in this order.
        if (map[pixel * in.channels + channel] > map[largest * in.channels + channel]) largest = pixel;
        // END TODO 01.22
      }
    }
    from[i] = largest;
    y[i] = map[largest * in.channels + channel];
  });
}

// Computes dx[samples, in.size()] from dy[samples, out.size()]. Windows overlap, so a value may be the largest of
// several.
static __global__ void max_pool_backward(Reals dx, ConstReals dy, const int* from, Map in, Map out, Windows w,
                                         int samples) {
  for_each_element(samples * in.pixels(), in.channels, [=](int i, int channel) {
    const int place = i / in.channels, sample = place / in.pixels(), pixel = place % in.pixels();
    const Places rows = w.with(pixel / in.width, out.height), columns = w.with(pixel % in.width, out.width);
    float sum = 0;
    for (int row = rows.first; row < rows.last; ++row) {
      for (int column = columns.first; column < columns.last; ++column) {
        const int window = sample * out.size() + out.at(channel, row, column);
        // TODO 01.23: Add the gradient of this window to `sum` if its value came from this pixel.
        //   from[window] is the pixel that the value came from, dy[window] the window's gradient.
        if (from[window] == pixel) sum += dy[window];
        // END TODO 01.23
      }
    }
    dx[i] = sum;
  });
}

// Returns the pixels of one of `cells` cells along a side of this length. Cells overlap where the side cannot be
// divided evenly, and repeat pixels where there are more cells than pixels.
__host__ __device__ inline Places pixels_of(int cell, int cells, int length) {
  return {cell * length / cells, ((cell + 1) * length + cells - 1) / cells};
}

// Computes y[samples, channels, cells, cells], the layout that the next linear layer reads, from x[samples, in.size()].
static __global__ void average_pool_forward(Reals y, ConstReals x, Map in, int cells, int samples) {
  for (int i : grid_stride(samples * in.channels * cells * cells)) {
    const int channel = i / (cells * cells) % in.channels, sample = i / (cells * cells) / in.channels;
    const Places rows = pixels_of(i / cells % cells, cells, in.height);
    const Places columns = pixels_of(i % cells, cells, in.width);
    const ConstReals map = x + sample * in.size();
    float mean = 0;
    // TODO 01.24: Set `mean` to the mean of the cell's pixels, map[in.at(channel, row, column)].
    //   The cell has rows.first <= row < rows.last, and columns in the same way. Cells may differ in size.
    for (int row = rows.first; row < rows.last; ++row) {
      for (int column = columns.first; column < columns.last; ++column) mean += map[in.at(channel, row, column)];
    }
    mean /= static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
    // END TODO 01.24
    y[i] = mean;
  }
}

// Computes dx[samples, in.size()] from dy: each value gets its share of the gradient of every cell that contains it.
static __global__ void average_pool_backward(Reals dx, ConstReals dy, Map in, int cells, int samples) {
  for_each_element(samples * in.pixels(), in.channels, [=](int i, int channel) {
    const int place = i / in.channels, sample = place / in.pixels(), pixel = place % in.pixels();
    const int y = pixel / in.width, x = pixel % in.width;
    const ConstReals gradient = dy + (sample * in.channels + channel) * cells * cells;
    float sum = 0;
    for (int row = 0; row < cells; ++row) {
      const Places rows = pixels_of(row, cells, in.height);
      if (y < rows.first || y >= rows.last) continue;
      for (int column = 0; column < cells; ++column) {
        const Places columns = pixels_of(column, cells, in.width);
        if (x < columns.first || x >= columns.last) continue;
        const int count = (rows.last - rows.first) * (columns.last - columns.first);
        sum += gradient[row * cells + column] / static_cast<float>(count);
      }
    }
    dx[i] = sum;
  });
}

// ---- with their probes ---------------------------------------------------------------------------------------------

// Max pooling from maps `in` to maps `out`.
struct MaxPool {
  std::string name;
  Map in, out;
  Windows windows;
};

inline void max_pool(const MaxPool& p, const Real* x, Real* y, int* from, int samples, cudaStream_t stream) {
  const int work = samples * p.out.size() * p.windows.size * p.windows.size;
  launch(max_pool_forward, work, stream, y, from, x, p.in, p.out, p.windows, samples);
  probe("01.22", {p.name, ": pixels of the largest"}, from, {samples * p.out.pixels(), p.out.channels}, stream);
}

inline void max_pool_gradient(const MaxPool& p, const Real* dy, const int* from, Real* dx, int samples,
                              cudaStream_t stream) {
  launch(max_pool_backward, samples * p.in.size(), stream, dx, dy, from, p.in, p.out, p.windows, samples);
  probe("01.23", {p.name, ": gradient below the pooling"}, dx, {samples * p.in.pixels(), p.in.channels}, stream);
}

// Average pooling from maps `in` to `cells` by `cells` averages per channel.
struct AveragePool {
  std::string name;
  Map in;
  int cells;
  int size() const { return in.channels * cells * cells; }
};

inline void average_pool(const AveragePool& p, const Real* x, Real* y, int samples, cudaStream_t stream) {
  launch(average_pool_forward, samples * p.size(), stream, y, x, p.in, p.cells, samples);
  probe("01.24", {p.name, ": averages"}, y, {samples * p.in.channels, p.cells * p.cells}, stream);
}

inline void average_pool_gradient(const AveragePool& p, const Real* dy, Real* dx, int samples, cudaStream_t stream) {
  launch(average_pool_backward, samples * p.in.size(), stream, dx, dy, p.in, p.cells, samples);
}

}  // namespace workshop
