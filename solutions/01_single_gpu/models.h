// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train.
#pragma once

#include "common/options/options.h"
#include "model/model.h"

namespace workshop {

// The one that --model names. In models.cu, which is compiled once for the programs of all chapters.
Network make_network(const Options& options);

}  // namespace workshop
