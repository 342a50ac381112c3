// What a checkpoint keeps of a model and its optimizer.
#pragma once

#include <vector>

#include "common/checkpoint.h"
#include "mlp.h"

namespace workshop {

// All parameters that the model holds, each of them whole.
inline std::vector<TensorPart> parts_of(const Mlp& model) {
  std::vector<TensorPart> parts;
  for (const Parameter& p : model.parameters()) parts.push_back(whole_tensor(p.name, p.shape, p.value));
  return parts;
}

// The model and what the optimizer of all its parameters keeps.
inline void add_training(Checkpoints& checkpoints, const Mlp& model, const ParameterUpdate& update) {
  const std::vector<TensorPart> parts = parts_of(model);
  checkpoints.add(parts);
  checkpoints.add_adamw(parts, model.values(), update.mean(), update.square());
}

}  // namespace workshop
