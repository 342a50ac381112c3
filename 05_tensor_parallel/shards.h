// SPDX-License-Identifier: Apache-2.0
// Parameters cut over the ranks of a tensor-parallel group.
//
// Every rank draws the parameters of the whole network, as one process would, and keeps its part. So the network is the
// same for every number of ranks, and so are its losses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "01_single_gpu/linear.h"
#include "01_single_gpu/optimizer.h"
#include "common/nccl/group.h"
#include "common/nccl/off_the_record.h"
#include "common/record/record.h"
#include "model/clip.h"
#include "model/model.h"

namespace workshop {

// How a parameter [rows, columns] or [rows] is cut over a group: not at all, by its rows, or by its columns.
//
// PyTorch keeps the projections to query, key and value in one matrix, on top of each other. `heads` cuts each of these
// three by its rows: the first P-th of all rows would be the queries of some heads, and no key.
enum class Cut { none, rows, columns, heads };

// Rows that a rank holds of `count` that P ranks need not divide: those from its first row to the next rank's.
inline std::int64_t first_row(std::int64_t count, int rank, int ranks) { return count * rank / ranks; }

// This rank's part of a parameter of this shape. The group must divide columns that are cut; of rows, the parts may
// differ by one.
inline Parameter shard(const std::string& name, const std::vector<int>& shape, Cut cut, const Group& group) {
  Parameter p(name, shape);
  if (cut == Cut::none) return p;
  const int r = group.rank(), P = group.size();
  const std::int64_t rows = p.rows(), columns = p.columns();
  TensorPart& part = p.part;
  // TODO 05.1: Say which elements of the whole parameter [rows, columns] are this rank's.
  //   Describe them as `part.rows` runs of `part.columns` elements each, which lie next to each other in the row-major
  //   whole: the first run begins at element `part.first`, and from the beginning of one to that of the next it is
  //   part.stride elements; of a single run the stride is the whole, rows * columns. Cut::rows: rank r has the rows
  //   from first_row(rows, r, P) to that of rank r + 1, one run in all. Cut::heads: the same of each third of the rows.
  //   Cut::columns: the r-th of P equal blocks of columns. Set these four members; `part` has others, too.
  todo("05.1");
  // END TODO 05.1
  probe("05.1", name + ", this rank's part: first, rows, columns, stride",
        std::vector<double>{static_cast<double>(part.first), static_cast<double>(part.rows),
                            static_cast<double>(part.columns), static_cast<double>(part.stride)});
  if (cut == Cut::columns) {
    p.shape[1] /= P;
  } else {
    const int matrices = cut == Cut::heads ? 3 : 1;
    p.shape[0] = static_cast<int>(first_row(rows / matrices, r + 1, P) - first_row(rows / matrices, r, P)) * matrices;
  }
  return p;
}

inline bool is_cut(const Parameter& p) { return p.count() < p.whole_count(); }

// The values of this part of whole[…], which is row-major.
inline std::vector<float> values_of(const TensorPart& part, const float* whole) {
  std::vector<float> values;
  for (std::int64_t run = 0; run < part.rows; ++run) {
    const float* first = whole + part.first + run * part.stride;
    values.insert(values.end(), first, first + part.columns);
  }
  return values;
}

// ---- what is left of a training run --------------------------------------------------------------------------------

// whole[first + …] = block[n], in runs of `columns` elements that lie `stride` apart.
static __global__ void place_runs(Reals whole, ConstReals block, int first, int columns, int stride, int n) {
  for (int i : grid_stride(n)) whole[first + i / columns * stride + i % columns] = block[i];
}

// The whole of a parameter that is cut, on every rank of the group, which must all call this. Parts may differ in size,
// so this takes a broadcast from each rank instead of an all-gather. A report on a training run, not a part of it.
inline DeviceBuffer<Real> gather_parameter(const Parameter& p, const Group& group, cudaStream_t stream) {
  struct Runs {
    std::int64_t first, rows, columns, stride;
  };
  const OffTheRecord off_the_record;
  DeviceBuffer<Real> whole(p.whole_count(), Memory::data), block(p.whole_count(), Memory::data);
  const std::vector<Runs> runs = group.gather(Runs{p.part.first, p.part.rows, p.part.columns, p.part.stride});
  for (int rank = 0; rank < group.size(); ++rank) {
    const Runs& theirs = runs[rank];
    const int count = static_cast<int>(theirs.rows * theirs.columns);
    NCCL_CHECK(ncclBroadcast(p.value, block.data(), count, kReal, rank, group.comm(), stream));
    launch(place_runs, count, stream, whole.data(), block.data(), static_cast<int>(theirs.first),
           static_cast<int>(theirs.columns), static_cast<int>(theirs.stride), count);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));  // before `block` is gone
  return whole;
}

// Records every parameter, whole, as it is on this rank: that of number `replica` among those that must be equal.
inline void record_parameters(const std::vector<Parameter>& parameters, int replica, const Group& group,
                              cudaStream_t stream) {
  for (const Parameter& p : parameters) {
    DeviceBuffer<Real> gathered;
    if (is_cut(p)) gathered = gather_parameter(p, group, stream);
    record_whole(replica, p, is_cut(p) ? gathered.data() : p.value, stream);
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
    // TODO 05.11: Do this rank's gradients of the parameter count?
    //   Every element of the whole gradient must count on exactly one rank of the group. Of a parameter that is cut,
    //   is_cut(p), every rank has different elements; of one that is not, all have the same, and those count on rank 0.
    todo("05.11");
    // END TODO 05.11
    if (!counts || first >= last) continue;
    const bool follows = !ranges.empty() && ranges.back().offset + ranges.back().count == first;
    if (!follows) ranges.push_back({first, 0});
    ranges.back().count += last - first;
  }
  std::vector<int> bounds;
  for (const Extent& range : ranges) bounds.insert(bounds.end(), {range.offset, range.offset + range.count});
  probe("05.11", "bounds of the gradients that count on this rank", bounds);
  return ranges;
}

// This rank's gradients of a model that the group holds together, and those of them that counted_once() lets count.
inline GradientParts gradients_of(const Model& model, const Group& group) {
  GradientParts mine{.held = {{model.grads(), static_cast<std::size_t>(model.count())}}, .counted = {}};
  for (const Extent& range : counted_once(model.parameters(), group, {0, model.count()}))
    mine.counted.emplace_back(model.grads() + range.offset, range.count);
  return mine;
}

}  // namespace workshop
