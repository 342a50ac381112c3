// SPDX-License-Identifier: Apache-2.0
// The language model with mixtures whose experts are spread over ranks. expert_models.cu is compiled once for all
// programs.
#pragma once

#include "09_expert_parallel/support/expert_options.h"
#include "common/nccl/group.h"
#include "common/options/options.h"
#include "model/model.h"

namespace workshop {

// Makes the language model with mixtures of experts, which the ranks of the group have together. The group must outlive
// the network.
Network make_expert_network(const Options& options, const ExpertOptions& how, const Group& group);

}  // namespace workshop
