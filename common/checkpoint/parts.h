// SPDX-License-Identifier: Apache-2.0
// Which elements of which tensor a rank holds, and where: all that a checkpoint has to know of a strategy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

// Elements of a row-major tensor: `rows` runs of `columns` elements each, whose beginnings lie `stride` elements apart,
// the first one at element `first`. A whole tensor, a range of a flattened one, and a block of a matrix are such parts.
struct TensorPart {
  std::string tensor;      // its name: PyTorch's, such as "0.weight"
  std::vector<int> shape;  // of the whole tensor
  std::int64_t first, rows, columns, stride;
  float* values;  // [rows * columns], on the device or in pinned memory of the host

  std::int64_t count() const { return rows * columns; }
};

// All of a tensor.
TensorPart whole_tensor(const std::string& name, const std::vector<int>& shape, float* values);

// Elements [begin, end) of what `part` holds, as up to three parts: the end of a run, whole runs, and the beginning of
// one. `values` is where element `begin` is.
std::vector<TensorPart> range_of(const TensorPart& part, std::int64_t begin, std::int64_t end, float* values);

// Elements [begin, end) of the flat array in which `parts` lie one after the other; what lies behind them, padding, is
// no part. `values` is where element `begin` is. So a shard of a flat array is described.
std::vector<TensorPart> range_of(const std::vector<TensorPart>& parts, std::int64_t begin, std::int64_t end,
                                 float* values);

// Parts of which each of so many replicas has its own: their tensors have one dimension more, the replica.
std::vector<TensorPart> of_replica(std::vector<TensorPart> parts, int replica, int replicas);

}  // namespace workshop
