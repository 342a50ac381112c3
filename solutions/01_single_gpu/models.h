// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train.
#pragma once

#include "model/model.h"

namespace workshop {

// The one that --model names. In models.cu, which is compiled once for the programs of all chapters.
Network make_network(const Options& options);
// How many layers that has, without its data set.
int depth_of_network(const Options& options);

}  // namespace workshop
