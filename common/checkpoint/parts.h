// SPDX-License-Identifier: Apache-2.0
// Describes the elements of tensors that a rank holds, and where they are. A checkpoint needs to know nothing else
// about a strategy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace workshop {

// Elements of a row-major tensor: `rows` runs of `columns` elements each. The first run starts at element `first`, and
// the starts of successive runs are `stride` elements apart. A part can be a whole tensor, a range of a flattened
// tensor, or a block of a matrix.
struct TensorPart {
  std::string tensor;      // PyTorch's name of the tensor, such as "0.weight"
  std::vector<int> shape;  // of the whole tensor
  std::int64_t first, rows, columns, stride;
  float* values;  // [rows * columns], on the device or in pinned host memory

  std::int64_t count() const { return rows * columns; }
};

// Returns the part that is a whole tensor.
TensorPart whole_tensor(const std::string& name, const std::vector<int>& shape, float* values);

// Returns elements [begin, end) of those that `part` holds, as up to three parts: the end of a run, whole runs, and the
// beginning of a run. `values` points to element `begin`.
std::vector<TensorPart> range_of(const TensorPart& part, std::int64_t begin, std::int64_t end, float* values);

// Returns elements [begin, end), for example a shard, of the flat array that contains `parts` one after the other.
// Padding after the parts is left out. `values` points to element `begin`.
std::vector<TensorPart> range_of(const std::vector<TensorPart>& parts, std::int64_t begin, std::int64_t end,
                                 float* values);

// Returns the parts for tensors that differ between replicas. The stored tensors have one more dimension, the first:
// the replica, 0 to `replicas` - 1.
std::vector<TensorPart> of_replica(std::vector<TensorPart> parts, int replica, int replicas);

}  // namespace workshop
