// Parameters cut over the ranks of a tensor-parallel group, and put together again.
//
// Every rank draws the parameters of the whole network, as one process would, and keeps its part. So the network is the
// same one for every number of ranks, and its losses are too.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/device.h"
#include "common/record.h"

namespace workshop {

// The ranks that share the layers of one network: all of the job, or those of a communicator of their own.
struct TensorGroup {
  ncclComm_t comm;
  int rank, size;  // of this process in comm, and of comm
};

// How a parameter is cut: its rows over the ranks, its columns, or not at all (every rank has a replica). A bias [out]
// counts as `out` rows of one column.
enum class Split { none, rows, columns };

// One parameter and this rank's part of it.
struct ShardedParameter {
  std::string name;        // PyTorch's, such as "0.weight"
  std::vector<int> shape;  // of the whole parameter: [rows, columns] or [rows]
  Split split;
  int rows = 0, columns = 0;                // of the part
  float *value = nullptr, *grad = nullptr;  // of the part, row-major

  int count() const { return rows * columns; }
};

// This rank's part of `whole`, which is row-major.
inline std::vector<float> cut(const std::vector<float>& whole, const ShardedParameter& p, const TensorGroup& group) {
  if (p.split == Split::none) return whole;
  std::vector<float> part(p.count());
  if (p.split == Split::rows) {
    // TODO 05.1: Copy this rank's rows of `whole` to `part`.
    //   Rank r of P has the r-th of P equal blocks of rows. The rows of a block lie one after the other, so one
    //   std::copy_n(from, count, to) is enough. A part has p.rows rows of p.columns values; this is rank group.rank.
    std::copy_n(whole.begin() + group.rank * p.count(), p.count(), part.begin());
    // END TODO 05.1
  } else {
    // TODO 05.2: Copy this rank's columns of `whole` to `part`.
    //   Rank r of P has the r-th of P equal blocks of columns. Row by row: a row of `whole` has group.size *
    //   p.columns values, a row of `part` has p.columns.
    for (int row = 0; row < p.rows; ++row) {
      const int first = (row * group.size + group.rank) * p.columns;
      std::copy_n(whole.begin() + first, p.columns, part.begin() + row * p.columns);
    }
    // END TODO 05.2
  }
  return part;
}

// whole[rows, size·columns] from `size` blocks [rows, columns] that lie one after the other.
__global__ void join_columns(float* whole, const float* blocks, int rows, int columns, int size) {
  for (int i : grid_stride(rows * columns * size)) {
    const int row = i / (columns * size), column = i % (columns * size);
    whole[i] = blocks[(column / columns * rows + row) * columns + column % columns];
  }
}

// The parameters of a network. This rank's parts lie one after the other in one buffer, in the order in which they were
// added, and their gradients in another: an update is one launch.
class ShardedParameters {
 public:
  ShardedParameters(const TensorGroup& group, cudaStream_t stream) : group_(group), stream_(stream) {}

  // To be called for each parameter, before allocate(). The group must divide the axis that is cut.
  void add(const std::string& name, const std::vector<int>& shape, Split split) {
    ShardedParameter p{name, shape, split};
    p.rows = shape[0] / (split == Split::rows ? group_.size : 1);
    p.columns = (shape.size() > 1 ? shape[1] : 1) / (split == Split::columns ? group_.size : 1);
    count_ += p.count();
    parameters_.push_back(p);
  }

  void allocate() {
    own_values_ = DeviceBuffer<float>(count_, Memory::parameters);
    own_grads_ = DeviceBuffer<float>(count_, Memory::gradients);
    place(own_values_.data(), own_grads_.data());
  }

  // In place of allocate(): the parameters and gradients lie in memory that somebody else holds, count() floats each.
  void place(float* values, float* grads) {
    values_ = values;
    grads_ = grads;
    int offset = 0;
    for (ShardedParameter& p : parameters_) {
      p.value = values + offset;
      p.grad = grads + offset;
      offset += p.count();
    }
  }

  // Keeps this rank's part of the whole parameter number i. Waits for the stream.
  void load(int i, const std::vector<float>& whole) {
    const ShardedParameter& p = parameters_[i];
    const std::vector<float> part = cut(whole, p, group_);
    CUDA_CHECK(cudaMemcpyAsync(p.value, part.data(), part.size() * sizeof(float), cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (p.split == Split::rows) probe("05.1", p.name + ", this rank's rows", p.value, {p.rows, p.columns}, stream_);
    if (p.split == Split::columns) {
      probe("05.2", p.name + ", this rank's columns", p.value, {p.rows, p.columns}, stream_);
    }
  }

  // The whole parameter number i, on every rank of the group, which must all call this. A report of a training run and
  // no part of it: it goes past the ledger, through NCCL's own names for the same calls.
  DeviceBuffer<float> gather(int i) const {
    const ShardedParameter& p = parameters_[i];
    const std::size_t parts = p.split == Split::none ? 1 : group_.size;
    DeviceBuffer<float> whole(p.count() * parts, Memory::data), blocks(p.count() * parts, Memory::data);
    if (p.split == Split::none) {
      CUDA_CHECK(cudaMemcpyAsync(whole.data(), p.value, whole.bytes(), cudaMemcpyDeviceToDevice, stream_));
    } else if (p.split == Split::rows) {
      NCCL_CHECK(pncclAllGather(p.value, whole.data(), p.count(), ncclFloat, group_.comm, stream_));
    } else {
      NCCL_CHECK(pncclAllGather(p.value, blocks.data(), p.count(), ncclFloat, group_.comm, stream_));
      launch(join_columns, p.count() * group_.size, stream_, whole.data(), blocks.data(), p.rows, p.columns,
             group_.size);
    }
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return whole;
  }

  // Records every parameter, whole, as it is on this rank: that of number `replica` among those that must be equal.
  void record(int replica) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const DeviceBuffer<float> whole = gather(static_cast<int>(i));
      record_parameter(replica, parameters_[i].name, whole.data(), parameters_[i].shape, stream_);
    }
  }

  const ShardedParameter& operator[](int i) const { return parameters_[i]; }
  const std::vector<ShardedParameter>& all() const { return parameters_; }
  float* values() const { return values_; }  // [count()]
  float* grads() const { return grads_; }    // [count()]
  int count() const { return count_; }       // floats on this rank

 private:
  TensorGroup group_;
  cudaStream_t stream_;
  int count_ = 0;
  std::vector<ShardedParameter> parameters_;
  float *values_ = nullptr, *grads_ = nullptr;
  DeviceBuffer<float> own_values_, own_grads_;
};

}  // namespace workshop
