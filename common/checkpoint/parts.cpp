// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/parts.h"

#include <algorithm>

#include "common/checkpoint/safetensors.h"

namespace workshop {

TensorPart whole_tensor(const std::string& name, const std::vector<int>& shape, float* values) {
  const std::int64_t count = elements(shape);
  return {name, shape, 0, 1, count, count, values};
}

std::vector<TensorPart> range_of(const TensorPart& part, std::int64_t begin, std::int64_t end, float* values) {
  std::vector<TensorPart> parts;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t row = at / part.columns, column = at % part.columns;
    TensorPart next = part;
    next.first = part.first + row * part.stride + column;
    next.values = values + (at - begin);
    if (column == 0 && end - at >= part.columns) {
      next.rows = (end - at) / part.columns;  // whole runs
    } else {
      next.rows = 1;
      next.columns = next.stride = std::min(end - at, part.columns - column);
    }
    at += next.count();
    parts.push_back(next);
  }
  return parts;
}

std::vector<TensorPart> range_of(const std::vector<TensorPart>& parts, std::int64_t begin, std::int64_t end,
                                 float* values) {
  std::vector<TensorPart> ranges;
  std::int64_t offset = 0;  // of the part in the array
  for (const TensorPart& part : parts) {
    const std::int64_t from = std::max(begin, offset), to = std::min(end, offset + part.count());
    if (from < to) {
      const auto range = range_of(part, from - offset, to - offset, values + (from - begin));
      ranges.insert(ranges.end(), range.begin(), range.end());
    }
    offset += part.count();
  }
  return ranges;
}

std::vector<TensorPart> of_replica(std::vector<TensorPart> parts, int replica, int replicas) {
  for (TensorPart& part : parts) {
    part.first += replica * elements(part.shape);
    part.shape.insert(part.shape.begin(), replicas);
  }
  return parts;
}

}  // namespace workshop
