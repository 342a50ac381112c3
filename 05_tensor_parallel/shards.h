// SPDX-License-Identifier: Apache-2.0
// Parameters cut over the ranks of a tensor-parallel group, and put together again.
//
// Every rank draws the parameters of the whole network, as one process would, and keeps its part. So the network is the
// same one for every number of ranks, and its losses are too.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "01_single_gpu/clip.h"
#include "01_single_gpu/linear.h"
#include "01_single_gpu/model.h"
#include "01_single_gpu/optimizer.h"
#include "common/group.h"
#include "common/record.h"

namespace workshop {

// A parameter of which each rank of the group holds its part. The group must divide columns that are cut; of rows, the
// parts may differ by one.
inline Parameter sharded(const std::string& name, const std::vector<int>& shape, Split split, const Group& group) {
  return {name, shape, split, group.rank(), group.size()};
}

// This rank's part of `whole`, which is row-major.
inline std::vector<float> cut(const std::vector<float>& whole, const Parameter& p, const Group& group) {
  if (p.split == Split::none) return whole;
  std::vector<float> part(p.count());
  if (p.split == Split::rows) {
    const int n = p.shape[0] / p.pieces, rows = p.rows() / p.pieces;  // of each piece: all, and this rank's
    for (int piece = 0; piece < p.pieces; ++piece) {
      const float* from = whole.data() + piece * n * p.columns();
      float* to = part.data() + piece * rows * p.columns();
      // TODO 05.1: Copy this rank's rows of `from` to `to`.
      //   Rank r of P has the rows from n·r/P on, rounded down, so that P need not divide n, as it mostly does. They
      //   lie one after the other, so one std::copy_n(from, count, to) is enough. There are `rows` of them, of
      //   p.columns() values each; this is rank group.rank() of group.size().
      todo("05.1");
      // END TODO 05.1
    }
  } else {
    // TODO 05.2: Copy this rank's columns of `whole` to `part`.
    //   Rank r of P has the r-th of P equal blocks of columns. Row by row: a row of `whole` has group.size() *
    //   p.columns() values, a row of `part` has p.columns().
    todo("05.2");
    // END TODO 05.2
  }
  const bool rows = p.split == Split::rows;
  probe(rows ? "05.1" : "05.2", p.name + ", this rank's " + (rows ? "rows" : "columns"),
        std::vector<double>(part.begin(), part.end()));
  return part;
}

// Appends this rank's parts of a linear layer's initial parameters to `values`.
inline void append_initial(std::vector<float>& values, Generator& generator, const Parameter& weight,
                           const Parameter& bias, const Group& group) {
  const int out = weight.shape[0], in = weight.shape[1];
  std::vector<float> whole_weight(in * out), whole_bias(out);
  init_linear(generator, in, out, whole_weight.data(), whole_bias.data());
  for (const auto& part : {cut(whole_weight, weight, group), cut(whole_bias, bias, group)}) {
    values.insert(values.end(), part.begin(), part.end());
  }
}

// Chapter 01's view of this rank's part of a layer; in and out are those of the part.
inline Linear linear_part(const std::string& name, const Parameter& weight, const Parameter& bias) {
  return {name, weight.columns(), weight.rows(), weight.value, bias.value, weight.grad, bias.grad};
}

// ---- what is left of a training run --------------------------------------------------------------------------------

// whole[rows, size·columns] from `size` blocks [rows, columns] that lie one after the other.
static __global__ void join_columns(Reals whole, ConstReals blocks, int rows, int columns, int size) {
  for (int i : grid_stride(rows * columns * size)) {
    const int row = i / (columns * size), column = i % (columns * size);
    whole[i] = blocks[(column / columns * rows + row) * columns + column % columns];
  }
}

// The whole of a parameter that is cut, on every rank of the group, which must all call this. Parts may differ in size:
// so it takes a broadcast from each rank, and no all-gather. A report of a training run and no part of it.
inline DeviceBuffer<Real> gather_parameter(const Parameter& p, const Group& group, cudaStream_t stream) {
  const OffTheRecord off_the_record;
  DeviceBuffer<Real> blocks(p.whole_count(), Memory::data);
  Real* block = blocks.data();
  for (int rank = 0; rank < group.size(); ++rank) {
    Parameter theirs = p;
    theirs.part = rank;
    NCCL_CHECK(ncclBroadcast(p.value, block, theirs.count(), kReal, rank, group.comm(), stream));
    block += theirs.count();
  }
  if (p.split == Split::rows && p.pieces == 1) return blocks;
  // What a rank holds of several pieces is, as the checkpoints see it, columns of few long rows.
  const int rows = static_cast<int>(p.tensor_part(nullptr).rows);
  DeviceBuffer<Real> whole(blocks.size(), Memory::data);
  launch(join_columns, p.whole_count(), stream, whole.data(), blocks.data(), rows, p.count() / rows, group.size());
  CUDA_CHECK(cudaStreamSynchronize(stream));  // before `blocks` is gone
  return whole;
}

// Records every parameter, whole, as it is on this rank: that of number `replica` among those that must be equal.
inline void record_parameters(const std::vector<Parameter>& parameters, int replica, const Group& group,
                              cudaStream_t stream) {
  for (const Parameter& p : parameters) {
    DeviceBuffer<Real> gathered;
    if (p.split != Split::none) gathered = gather_parameter(p, group, stream);
    record_whole(replica, p, p.split != Split::none ? gathered.data() : p.value, stream);
  }
}

// ---- clipping ------------------------------------------------------------------------------------------------------

// The ranges of this rank's gradients whose squares count for the norm of the whole gradient, once the ranks' sums are
// added up: of the `parameters`, which lie one after the other in a flat array, as far as they are `within` it.
inline std::vector<Extent> counted_once(const std::vector<Parameter>& parameters, const Group& group, Extent within) {
  std::vector<Extent> ranges;
  int offset = 0;  // of the parameter in the flat array
  for (const Parameter& p : parameters) {
    const int first = std::max(offset, within.offset);
    const int last = std::min(offset + p.count(), within.offset + within.count);
    offset += p.count();
    bool counts = false;
    // TODO 05.19: Do this rank's gradients of the parameter count?
    //   Every element of the whole gradient must count on one rank of the group and no other. A parameter that is cut
    //   has other elements on every rank; one that is not, p.split == Split::none, the same on all of them, and counts
    //   on rank 0.
    todo("05.19");
    // END TODO 05.19
    if (!counts || first >= last) continue;
    const bool follows = !ranges.empty() && ranges.back().offset + ranges.back().count == first;
    if (!follows) ranges.push_back({first, 0});
    ranges.back().count += last - first;
  }
  std::vector<int> bounds;
  for (const Extent& range : ranges) bounds.insert(bounds.end(), {range.offset, range.offset + range.count});
  probe("05.19", "bounds of the gradients that count on this rank", bounds);
  return ranges;
}

// This rank's gradients of a model that the group holds together, and those of them that counted_once() lets count.
inline GradientParts gradients_of(const Model& model, const Group& group) {
  GradientParts mine{.held = {{model.grads(), static_cast<std::size_t>(model.count())}}, .counted = {}};
  for (const Extent& range : counted_once(model.parameters(), group, {0, model.count()}))
    mine.counted.emplace_back(model.grads() + range.offset, range.count);
  return mine;
}

// ---- parameters of a network that is not made of layers ------------------------------------------------------------

// This rank's parts lie one after the other in one buffer, in the order in which they were added, and their gradients
// in another: an update is one launch.
class ShardedParameters {
 public:
  ShardedParameters(const Group& group, cudaStream_t stream) : group_(group), stream_(stream) {}

  // Call for each parameter, before allocate().
  void add(const std::string& name, const std::vector<int>& shape, Split split) {
    parameters_.push_back(sharded(name, shape, split, group_));
    count_ += parameters_.back().count();
  }

  void allocate() {
    values_ = DeviceBuffer<Real>(count_, Memory::parameters);
    grads_ = DeviceBuffer<Real>(count_, Memory::gradients);
    int offset = 0;
    for (Parameter& p : parameters_) {
      p.value = values() + offset;
      p.grad = grads() + offset;
      offset += p.count();
    }
  }

  // Keeps this rank's part of the whole parameter number i. Waits for the stream.
  void load(int i, const std::vector<float>& whole) {
    const std::vector<float> cut_off = cut(whole, parameters_[i], group_);
    const std::vector<Real> part(cut_off.begin(), cut_off.end());
    CUDA_CHECK(cudaMemcpyAsync(parameters_[i].value, part.data(), part.size() * sizeof(Real), cudaMemcpyHostToDevice,
                               stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  // What a checkpoint keeps of them, which lie in float32 from `weights` on.
  std::vector<TensorPart> parts(float* weights) const { return parts_of(parameters_, weights); }

  const Parameter& operator[](int i) const { return parameters_[i]; }
  const std::vector<Parameter>& all() const { return parameters_; }
  Real* values() const { return values_.data(); }  // [count()]
  Real* grads() const { return grads_.data(); }    // [count()]
  int count() const { return count_; }             // floats on this rank

 private:
  const Group& group_;
  cudaStream_t stream_;
  int count_ = 0;
  std::vector<Parameter> parameters_;
  DeviceBuffer<Real> values_, grads_;
};

// Has checkpoints keep them, and what the optimizer of all of them keeps.
inline void add_all(Training& training, const ShardedParameters& parameters, Optimizer& optimizer) {
  float* weights = optimizer.weights(parameters.values());
  training.add_all(parameters.parts(weights), weights, optimizer.state(parameters.values()));
}

}  // namespace workshop
