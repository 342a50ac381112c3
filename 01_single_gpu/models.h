// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train. A new one is a line here.
#pragma once

#include "alexnet.h"
#include "gpt.h"
#include "mlp.h"

namespace workshop {

inline Network make_network(const Options& options) {
  if (options.model == ModelKind::gpt) return make_gpt(options);
  if (options.model == ModelKind::alexnet) return make_alexnet(options);
  return make_mlp(options.layers, options.activation);
}

}  // namespace workshop
