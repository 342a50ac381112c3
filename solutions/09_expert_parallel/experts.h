// SPDX-License-Identifier: Apache-2.0
// The experts of a mixture: linear layers as in the MLP that they replace, each for the tokens that have chosen it.
#pragma once

#include <string>
#include <vector>

#include "01_single_gpu/linear.h"
#include "common/base/random.h"
#include "model/activation.h"
#include "model/model.h"

namespace workshop {

// What the experts read and compute, with one row per token that has chosen an expert. The rows of an expert are
// contiguous: those of expert i are first[i] … first[i + 1] - 1.
struct ExpertRows {
  Real *x, *z, *a, *y;  // [rows, E], before and after GELU [rows, 4E], [rows, E]
};

class Experts {
 public:
  // Experts [first, first + count) of `all`.
  Experts(int first, int count, int all, int width) : first_(first), all_(all), width_(width), linear_(2 * count) {}

  int count() const { return static_cast<int>(linear_.size()) / 2; }

  // Returns the parameters of these experts in memory order; `block` is the block's name.
  std::vector<Parameter> parameters(const std::string& block) const {
    std::vector<Parameter> parameters;
    for (int e = first_; e < first_ + count(); ++e) {
      const std::string name = block + ".experts." + std::to_string(e);
      parameters.push_back({name + ".linear1.weight", {4 * width_, width_}});
      parameters.push_back({name + ".linear1.bias", {4 * width_}});
      parameters.push_back({name + ".linear2.weight", {width_, 4 * width_}});
      parameters.push_back({name + ".linear2.bias", {width_}});
    }
    return parameters;
  }
  // Draws the initial values of all experts, in PyTorch's order, and keeps those of these.
  void draw(Generator& generator, float* values) const {
    const int E = width_, matrix = 4 * E * E, of_expert = 2 * matrix + 5 * E;
    std::vector<float> others(of_expert);
    for (int e = 0; e < all_; ++e) {
      const bool mine = e >= first_ && e < first_ + count();
      float* const to = mine ? values + (e - first_) * of_expert : others.data();
      init_linear(generator, E, 4 * E, to, to + matrix);
      init_linear(generator, 4 * E, E, to + matrix + 4 * E, to + 2 * matrix + 4 * E);
    }
  }
  // Uses the memory of these parameters from now on.
  void bind(const std::string& block, const Parameter* p) {
    for (int i = 0; i < count(); ++i, p += 4) {
      const std::string name = block + ".experts." + std::to_string(first_ + i);
      linear_[2 * i] = linear_of(name + ".linear1", p[0], p[1]);
      linear_[2 * i + 1] = linear_of(name + ".linear2", p[2], p[3]);
    }
  }

  // Computes rows.y from rows.x, and keeps rows.z and rows.a. `first` has count() + 1 numbers.
  void forward(const Blas& blas, const ExpertRows& rows, const int* first) const {
    // WRITE 09.D: Compute rows.z, rows.a and rows.y of each expert from its rows of rows.x.
    //   Expert i of count() has the layers linear_[2 * i] and linear_[2 * i + 1], with GELU between them, and the rows
    //   first[i] … first[i + 1] - 1. There may be none. rows.x and rows.y have width_ values in a row, rows.z and
    //   rows.a, before and after GELU, have 4 * width_. Call linear_forward(blas, layer, x, y, number of rows) and
    //   activation_forward(Activation::gelu, a, z, number of values, stream).
    for (int i = 0; i < count(); ++i) {
      const Linear &linear1 = linear_[2 * i], &linear2 = linear_[2 * i + 1];
      // TODO 09.6: Compute rows.y of expert i, as the MLP does: linear1, GELU, linear2.
      //   Its rows are first[i] … first[i + 1] - 1, of width_ values each in rows.x and rows.y, and of 4 * width_ in
      //   rows.z and rows.a, which the backward pass needs. Call linear_forward(blas, layer, x, y, number of rows) and
      //   activation_forward(Activation::gelu, a, z, number of values, stream). No token may have chosen it: linear
      //   layers of 0 rows are all right.
      const int n = first[i + 1] - first[i], features = 4 * width_;
      const Real* x = rows.x + first[i] * width_;
      Real *z = rows.z + first[i] * features, *a = rows.a + first[i] * features, *y = rows.y + first[i] * width_;
      linear_forward(blas, linear1, x, z, n);
      activation_forward(Activation::gelu, a, z, n * features, blas.stream());
      linear_forward(blas, linear2, a, y, n);
      // END TODO 09.6
    }
    // END WRITE 09.D
    probe("09.6", {name(), ": outputs"}, rows.y, {first[count()] - first[0], width_}, blas.stream());
  }

  // Computes the gradients of the parameters, and dx[rows, E] from dy[rows, E]. dz[rows, 4E] is scratch; dx may be dy.
  void backward(const ExpertRows& rows, const int* first, Real* dy, Real* dz, Real* dx, const Gradients& g) const {
    const cudaStream_t stream = g.blas.stream();
    for (int i = 0; i < count(); ++i) {
      const int n = first[i + 1] - first[i], features = 4 * width_, at = first[i];
      Real* gradient = dz + at * features;
      linear_backward(g.blas, linear_[2 * i + 1], rows.a + at * features, dy + at * width_, gradient, g.ones, n,
                      g.accumulate);
      activation_backward(Activation::gelu, gradient, rows.z + at * features, n * features, stream);
      linear_backward(g.blas, linear_[2 * i], rows.x + at * width_, gradient, dx + at * width_, g.ones, n,
                      g.accumulate);
    }
  }

 private:
  std::string name() const { return linear_[0].name.substr(0, linear_[0].name.find(".experts") + 8); }

  int first_, all_, width_;
  std::vector<Linear> linear_;  // two per expert
};

}  // namespace workshop
