// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train.
#pragma once

#include "01_single_gpu/model.h"
#include "common/options.h"

namespace workshop {

// The one that --model names. In models.cu, which is compiled once for the programs of all chapters.
Network make_network(const Options& options);

}  // namespace workshop
