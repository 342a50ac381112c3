// SPDX-License-Identifier: Apache-2.0
// The language model with mixtures whose experts are spread over ranks.
#include <memory>

#include "01_single_gpu/gpt.h"
#include "09_expert_parallel/moe_parallel.h"
#include "09_expert_parallel/support/expert_models.h"

namespace workshop {

Network make_expert_network(const Options& options, const ExpertOptions& how, const Group& group) {
  return make_gpt(options, [&](const GptOptions& o, int positions) {
    return std::make_shared<Mixture>(o, positions, std::make_shared<ParallelExperts>(options, how, group));
  });
}

}  // namespace workshop
