// SPDX-License-Identifier: Apache-2.0
// The models that every strategy can train.
#pragma once

#include "model/model.h"

namespace workshop {

// Makes the model that --model names. Defined in models.cu, which is compiled once for the programs of all chapters.
Network make_network(const Options& options);
// Returns its number of layers, without reading its data set.
int depth_of_network(const Options& options);

}  // namespace workshop
