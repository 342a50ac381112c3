// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train, and all their layers. Add a new model here.
#include "01_single_gpu/alexnet.h"
#include "01_single_gpu/gpt.h"
#include "01_single_gpu/mlp.h"
#include "01_single_gpu/models.h"
#include "09_expert_parallel/moe.h"
#include "common/options/options.h"

namespace workshop {

Network make_network(const Options& options) {
  if (options.model == ModelKind::gpt) return make_gpt(options, options.gpt.experts > 0 ? make_moe : make_feed_forward);
  if (options.model == ModelKind::alexnet) return make_alexnet(options);
  return make_mlp(options.layers, options.activation);
}

int depth_of_network(const Options& options) {
  if (options.model == ModelKind::gpt) return gpt_depth(options);
  return make_network(options).depth();
}

}  // namespace workshop
