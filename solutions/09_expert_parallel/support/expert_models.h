// SPDX-License-Identifier: Apache-2.0
// The language model with mixtures of experts on a mesh. expert_models.cu is compiled once for all programs.
#pragma once

#include "common/nccl/group.h"
#include "common/options/options.h"
#include "model/model.h"

namespace workshop {

// The ranks over which a mesh cuts a model with mixtures of experts.
struct ExpertMesh {
  const Group &experts, &tensor, &context;
};

// Makes the language model with mixtures of experts: the ranks of mesh.experts together hold all experts, those of
// mesh.tensor split the heads and the experts' features, and those of mesh.context split the sequences. The groups must
// outlive the network. Ends the job with status 2 if the model cannot be cut in this way.
Network make_expert_network(const Options& options, const ExpertMesh& mesh);

}  // namespace workshop
