// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train. A new one is a line here.
#pragma once

#include "gpt.h"
#include "mlp.h"

namespace workshop {

inline Network make_network(const Options& options) {
  return options.model == ModelKind::gpt ? make_gpt(options) : make_mlp(options.layers, options.activation);
}

}  // namespace workshop
