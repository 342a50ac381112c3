// SPDX-License-Identifier: Apache-2.0
// Parameters cut over the ranks of a tensor-parallel group.
//
// Every rank draws the parameters of the whole network, as one process would, and keeps its part. So the network and
// its losses are the same on any number of ranks.
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
// PyTorch keeps the projections to query, key and value in one matrix, one below the other. `heads` cuts each of the
// three by its rows. Cutting the whole matrix by its rows would give a rank the queries of some heads without their
// keys.
enum class Cut { none, rows, columns, heads };

// Returns the first of `count` rows that belongs to `rank`. Its rows end where the next rank's begin. `ranks` need not
// divide `count`.
inline std::int64_t first_row(std::int64_t count, int rank, int ranks) { return count * rank / ranks; }

// Returns this rank's part of a parameter of this shape. The number of ranks must divide columns that are cut. It need
// not divide rows: ranks may differ by one row.
inline Parameter shard(const std::string& name, const std::vector<int>& shape, Cut cut, const Group& group) {
  Parameter p(name, shape);
  if (cut == Cut::none) return p;
  TensorPart& part = p.part;
  const int r = group.rank(), P = group.size();
  const std::int64_t rows = p.rows(), columns = p.columns();
  // TODO 05.1: Say which elements of the whole parameter [rows, columns] are this rank's.
  //   Set four members of `part`: the elements are `part.rows` runs of `part.columns` contiguous elements of the
  //   row-major parameter. The first run begins at element `part.first`; each following run begins `part.stride`
  //   elements after the one before. For a single run, set the stride to rows * columns.
  //   Cut::rows: one run, from row first_row(rows, r, P) to the first row of rank r + 1.
  //   Cut::heads: the same in each third of the rows, so three runs.
  //   Cut::columns: in each row, the r-th of P equal blocks of columns.
  todo("05.1");
  // END TODO 05.1
  if (cut == Cut::columns) {
    p.shape[1] /= P;
  } else {
    const int matrices = cut == Cut::heads ? 3 : 1;
    p.shape[0] = static_cast<int>(first_row(rows / matrices, r + 1, P) - first_row(rows / matrices, r, P)) * matrices;
  }
  probe("05.1", name + ", this rank's part: first, rows, columns, stride",
        std::vector<int>{static_cast<int>(part.first), static_cast<int>(part.rows), static_cast<int>(part.columns),
                         static_cast<int>(part.stride)});
  probe("05.A", name + ", this rank's part: shape", p.shape);
  return p;
}

inline bool is_cut(const Parameter& p) { return p.count() < p.whole_count(); }

// Returns the values of this part of the row-major parameter `whole`.
inline std::vector<float> values_of(const TensorPart& part, const float* whole) {
  std::vector<float> values;
  for (std::int64_t run = 0; run < part.rows; ++run) {
    const float* first = whole + part.first + run * part.stride;
    values.insert(values.end(), first, first + part.columns);
  }
  return values;
}

// ---- recording the parameters of a run -----------------------------------------------------------------------------

// Copies block[n] to `whole`, in runs of `columns` elements. The first run begins at `first`, each next one `stride`
// elements later.
static __global__ void place_runs(Reals whole, ConstReals block, int first, int columns, int stride, int n) {
  for (int i : grid_stride(n)) whole[first + i / columns * stride + i % columns] = block[i];
}

// Returns a cut parameter as a whole, on every rank. All ranks of the group must call this. It broadcasts from each
// rank instead of gathering, because the parts may differ in size. It serves the record of a run, so the ledger leaves
// it out.
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
  CUDA_CHECK(cudaStreamSynchronize(stream));  // before `block` is freed
  return whole;
}

// Records every parameter as a whole, as that of replica `replica`: a cut one is gathered from the group. All replicas
// must have equal parameters.
inline void record_parameters(const std::vector<Parameter>& parameters, int replica, const Group& group,
                              cudaStream_t stream) {
  for (const Parameter& p : parameters) {
    DeviceBuffer<Real> gathered;
    if (is_cut(p)) gathered = gather_parameter(p, group, stream);
    record_whole(replica, p, is_cut(p) ? gathered.data() : p.value, stream);
  }
}

// ---- clipping ------------------------------------------------------------------------------------------------------

// Returns the ranges of this rank's gradients whose squares count for the norm of the whole gradient, so that the sum
// over the ranks has every element once. The gradients of `parameters` lie one after the other in a flat array; only
// those `within` the given part of it are considered.
inline std::vector<Extent> counted_once(const std::vector<Parameter>& parameters, const Group& group, Extent within) {
  std::vector<Extent> ranges;
  int offset = 0;  // of the parameter in the flat array
  for (const Parameter& p : parameters) {
    const int first = std::max(offset, within.offset);
    const int last = std::min(offset + p.count(), within.offset + within.count);
    offset += p.count();
    bool counts = false;
    // TODO 05.11: Set `counts`: do this rank's gradients of the parameter p count?
    //   Every element of the whole gradient must count on exactly one rank of the group. If the parameter is cut,
    //   is_cut(p), every rank has different elements, and all ranks count theirs. If it is not, all ranks have the same
    //   elements, and they count on rank 0.
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

// Returns this rank's gradients of a model that is cut over the group, and those of them that counted_once() selects.
inline GradientParts gradients_of(const Model& model, const Group& group) {
  GradientParts mine{.held = {{model.grads(), static_cast<std::size_t>(model.count())}}, .counted = {}};
  for (const Extent& range : counted_once(model.parameters(), group, {0, model.count()}))
    mine.counted.emplace_back(model.grads() + range.offset, range.count);
  return mine;
}

}  // namespace workshop
