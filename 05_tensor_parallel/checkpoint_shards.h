// What a checkpoint keeps of parameters that are cut over the ranks of a group, and of their optimizer.
#pragma once

#include <vector>

#include "01_single_gpu/mlp.h"
#include "common/checkpoint.h"
#include "shards.h"

namespace workshop {

// This rank's parts: some rows of a parameter, some columns of it, or all.
inline std::vector<TensorPart> parts_of(const ShardedParameters& parameters, const TensorGroup& group) {
  std::vector<TensorPart> parts;
  for (const ShardedParameter& p : parameters.all()) {
    TensorPart part = whole_tensor(p.name, p.shape, p.value);
    if (p.split == Split::rows) {
      part.columns = part.stride = p.count();
      part.first = group.rank * part.columns;
    } else if (p.split == Split::columns) {
      part.rows = p.rows;
      part.columns = p.columns;
      part.stride = p.shape[1];
      part.first = group.rank * part.columns;
    }
    parts.push_back(part);
  }
  return parts;
}

// The parameters and what their optimizer keeps.
inline void add_training(Checkpoints& checkpoints, const ShardedParameters& parameters, const TensorGroup& group,
                         const ParameterUpdate& update) {
  const std::vector<TensorPart> parts = parts_of(parameters, group);
  checkpoints.add(parts);
  checkpoints.add_adamw(parts, parameters.values(), update.mean(), update.square());
}

}  // namespace workshop
